#!/usr/bin/env bash
# Test this machine's GPU, then measure it, in at most 8 minutes. `make gpu` installs and runs this.
#   benchmarks/gpu/test_and_measure.sh [--toy]      --toy: rehearse on a CPU with tiny shapes
# OUT: the folder of results, reports/gpu unless it is set. Results are written as they come:
#   tests.log, tests.jsonl (each difference and its bound), measured.jsonl, measured.md (the table)
# LIMIT: seconds for all of it, 480; TEST_LIMIT: of the tests, 170, and 0 leaves them out.
# Where work/pack/wheels exists (`make gpu-pack`), its packages are used: no network is needed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
began=$SECONDS whole=${LIMIT:-480} tested=${TEST_LIMIT:-170}
left() { echo $((whole - (SECONDS - began))); }
# shellcheck source=benchmarks/gpu/environment.sh
. benchmarks/gpu/environment.sh
trap 'exit 130' INT
toy=()
if [ -n "$is_toy" ]; then
  toy=(--toy)
  export CUDA_TESTS_DEVICE=cpu
fi

each=() # seconds of a test, where the plug-in is there: one that hangs must not take all
python3 -c 'import pytest_timeout' 2>/dev/null && each=(-o timeout=90)
tests="left out"
if ((tested)); then
  echo "== tests/cuda: does this GPU compute what a CPU does? (at most $tested s)"
  CUDA_TESTS_RESULTS=$OUT/tests.jsonl timeout -s INT -k 10 "$tested" \
    python3 -m pytest tests/cuda -m cuda -s -rs "${each[@]}" 2>&1 | tee -i "$OUT/tests.log"
  tests=${PIPESTATUS[0]}
  case $tests in 0) tests=passed ;; 1) tests=failed ;; 2 | 124 | 137) tests="cut off" ;; *) tests="ended with $tests" ;; esac
fi

echo "== benchmarks/gpu/measure.py: how fast is it? ($(left) s are left)"
measured=1
for _ in 1 2 3 4; do # a part that hangs or breaks CUDA ends the process: the next one goes on
  (($(left) > 20)) || break
  timeout -s INT -k 10 "$(left)" python3 benchmarks/gpu/measure.py --out "$OUT" --seconds $(($(left) - 30)) "${toy[@]}"
  measured=$?
  case $measured in 0 | 2 | 124 | 130 | 137) break ;; esac
done
python3 benchmarks/gpu/measure.py --table "$OUT/measured.jsonl" >"$OUT/measured.md"
echo "tests: $tests; measuring ended with $measured; everything is in $OUT"
[ "$tests" = passed ] || [ "$tests" = "left out" ] || exit 1
exit $measured
