# shellcheck shell=bash
# To be sourced in the root of the repository: the packages that a machine without a network lacks.
site=${SITE:-/tmp/dopsd-site}
if [ -d work/pack/wheels ] && [ ! -d "$site" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" work/pack/wheels/*.whl || exit
fi
if [ -d "$site" ]; then
  export PYTHONPATH=$PWD:$site
else
  export PYTHONPATH=$PWD
fi
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
