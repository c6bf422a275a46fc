# shellcheck shell=bash
# To be sourced in the root of the repository, with the words that the script was given: sets OUT to
# the whole path of the folder of results, and finds the packages that a machine lacks in work/pack.
site=${SITE:-/tmp/dopsd-site}
is_toy=
[[ " $* " == *" --toy "* ]] && is_toy=1
OUT=${OUT:-reports/gpu${is_toy:+-toy}} # nothing of a rehearsal stands among what was measured
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) && export OUT || exit
PYTHONPATH=$PWD
if [ -d work/pack/wheels ]; then
  if python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))'; then
    [ -d "$site" ] || python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" work/pack/wheels/*.whl || exit
    PYTHONPATH=$PYTHONPATH:$site
  else
    echo "work/pack/wheels are for Python 3.12 and are not used by $(python3 --version)"
  fi
fi
# dopsd and all measurements use it; a driver can refuse it
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export PYTHONPATH PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
needed=(torch transformers accelerate safetensors numpy pytest pydantic peft ruamel shtab rich regex)
lacking=$(python3 -c 'import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n) is None))' "${needed[@]}")
if [ -n "$lacking" ]; then
  echo "$(python3 --version) lacks $lacking: install dopsd there, or bring work/pack (make gpu-pack)" >&2
  exit 2
fi
if [ -z "$is_toy" ] && ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "torch sees no GPU here; rehearse on the CPU with: $0 --toy" >&2
  exit 2
fi
if [ -z "$is_toy" ] && ! python3 -c 'import torch; torch.ones(2**20, device="cuda").sum().item()' 2>"$OUT/allocator.log"; then
  echo "the driver refuses expandable segments; measuring without them ($OUT/allocator.log)"
  PYTORCH_CUDA_ALLOC_CONF=backend:native
fi
[ -s "$OUT/allocator.log" ] || rm -f "$OUT/allocator.log" # some transfers bring few files back
