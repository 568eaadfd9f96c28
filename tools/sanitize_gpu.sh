#!/usr/bin/env bash
# sanitize_gpu.sh [TOOL]...: the GPU's C++ tests, and with memcheck the operators' Python tests, under memcheck,
# racecheck, initcheck and synccheck of compute-sanitizer. `make gpu` builds them before.
# Environment: OUT (a folder that gets the logs).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
[ "$#" -gt 0 ] || set -- memcheck racecheck initcheck synccheck
tests=build-gpu/tests/cpp/cuda_backend_test
[ -x "$tests" ] || {
  echo "sanitize_gpu: expected $tests, found none: run make gpu first" >&2
  exit 2
}
command -v compute-sanitizer >/dev/null || {
  echo "missing: compute-sanitizer: it comes with the CUDA toolkit" >&2
  exit 1
}
export L2PF_REQUIRE_CUDA=1 PYTHONUNBUFFERED=1
logs="${OUT:-$(mktemp -d)}"
[ -z "${OUT:-}" ] || export L2PF_RECORDS="${L2PF_RECORDS:-$OUT/records.json}"
status=0

# check TOOL WHAT COMMAND...: runs COMMAND under TOOL; sets `said` to its tests and the tool's own verdict
check() {
  local tool="$1" what="$2" log="$logs/$1-$2.log"
  shift 2
  echo "==> $tool: $what"
  compute-sanitizer --tool "$tool" --error-exitcode 9 "$@" >"$log" 2>&1 || {
    status=1
    tail -n 40 "$log"
  }
  said="$(grep -hE '^\[==========\].*ran|[0-9]+ passed.* in |SUMMARY' "$log" | sed 's/^=* *//' | tr '\n' ';')"
  echo "$said"
}

for tool in "$@"; do
  # Calibration times kernels: it has nothing to say at this speed. Under initcheck a launch waits for the one before,
  # and so does what a test holds back.
  left_out='*Calibration*'
  [ "$tool" != initcheck ] || left_out="$left_out:*AForkWaitsForWhatItsStreamHasEnqueued"
  check "$tool" tests "$tests" --gtest_filter="-$left_out"
  found="$said"
  if [ "$tool" = memcheck ]; then
    check memcheck operators python3 -m pytest -q -p no:cacheprovider tests/gpu/test_ops_cuda.py -k "not opcheck"
    found="$found $said"
  fi
  tools/records.py add "$tool" "make sanitize-gpu" "$found"
done
exit "$status"
