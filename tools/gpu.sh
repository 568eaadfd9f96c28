#!/usr/bin/env bash
# The GPU half with the current python3's torch and no network: build, ctest, pytest, demo. Every step runs, whatever
# the one before did; the last lines say how each went, and the exit status is 0 only when all passed.
# Environment: L2PF_CUDA_ARCHS (default 90), L2PF_GTEST_SOURCE, OUT (a folder that gets each step's log).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export L2PF_CUDA_ARCHS="${L2PF_CUDA_ARCHS:-90}" L2PF_REQUIRE_CUDA=1 PYTHONUNBUFFERED=1
export CMAKE_ARGS="-DL2PF_CUDA=ON ${CMAKE_ARGS:-}"
logs="${OUT:-$(mktemp -d)}"
[ -z "${OUT:-}" ] || export L2PF_RECORDS="${L2PF_RECORDS:-$OUT/records.json}"
summary=()
failed=0

# step NAME COMMAND...
step() {
  local name="$1" begin=$SECONDS result=PASS
  shift
  echo "==> gpu: $name: $*"
  "$@" 2>&1 | tee "$logs/gpu-$name.log" || {
    result=FAIL
    failed=1
  }
  # The runner's own verdict, else its last line.
  local said
  said="$(grep -E '% tests passed|^=+ .* in [0-9.]+s' "$logs/gpu-$name.log" | tail -n 1)"
  said="${said:-$(tail -n 1 "$logs/gpu-$name.log")}"
  summary+=("$result  $name  $((SECONDS - begin)) s  $(cut -c1-100 <<<"$said")")
  case "$name" in
    ctest | pytest) tools/records.py add "gpu_$name" "make gpu" "$(tr -d = <<<"$said")" ;;
    demo) tools/records.py add gpu_demo "make gpu" "$(grep -oE '(tokens equal|step of on / off|result)[^┃]*' \
      "$logs/gpu-demo.log" | tr -s '│ ' ' ' | tr '\n' ';')" ;;
  esac
}

# shellcheck disable=SC2317  # called through step
# A skipped GPU test proves nothing, so here it fails the step.
run_ctest() {
  ctest --test-dir build-gpu --output-on-failure --no-tests=error | tee "$logs/ctest-all" || return 1
  ! grep -E '\*\*\*(Skipped|Not Run)' "$logs/ctest-all"
}

step tools tools/check_tools.sh gpu
# Without GoogleTest the rest still runs; its absence is the ctest step's failure.
[ "${summary[0]%% *}" = PASS ] || export L2PF_BUILD_TESTS=OFF
step build tools/build.sh "$(command -v python3)" build-gpu
step ctest run_ctest
step pytest python3 -m pytest -m cuda --continue-on-collection-errors
step demo python3 -m dsv41_l2pf demo
rm -f "$logs/ctest-all"

echo "==> gpu: summary"
printf '%s\n' "${summary[@]}"
exit "$failed"
