#!/usr/bin/env bash
# Test this machine's GPU, then measure it, in at most 8 minutes. `make gpu` installs and runs this.
#   benchmarks/gpu/test_and_measure.sh [--toy]      --toy: rehearse on a CPU with tiny shapes
# OUT: the folder of results, reports/gpu unless it is set. Results are written as they come:
#   tests.log, tests.jsonl (each difference and its bound), measured.jsonl, measured.md (the table)
# Where work/pack/wheels exists (`make gpu-pack`), its packages are used: no network is needed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
began=$SECONDS whole=${LIMIT:-480}
left() { echo $((whole - (SECONDS - began))); }
export OUT=${OUT:-reports/gpu}
mkdir -p "$OUT"
. benchmarks/gpu/environment.sh
toy=()
if [ "${1-}" = --toy ]; then
  toy=(--toy)
  export CUDA_TESTS_DEVICE=cpu
fi

echo "== tests/cuda: does this GPU compute what a CPU does? (at most 150 s)"
CUDA_TESTS_RESULTS=$OUT/tests.jsonl timeout -s INT -k 10 "${TEST_LIMIT:-170}" \
  python3 -m pytest tests/cuda -m cuda -s -rs 2>&1 | tee "$OUT/tests.log"
tests=${PIPESTATUS[0]}

echo "== benchmarks/gpu/measure.py: how fast is it? ($(left) s are left)"
for _ in 1 2 3 4; do # a part that hangs or breaks CUDA ends the process: the next one goes on
  (($(left) > 20)) || break
  timeout -s INT -k 10 "$(left)" python3 benchmarks/gpu/measure.py --out "$OUT" --seconds $(($(left) - 30)) "${toy[@]}"
  measured=$?
  ((measured == 3)) || break
done
echo "tests ended with $tests, measuring with ${measured-none: no time was left}; everything is in $OUT"
exit $((tests || ${measured:-1}))
