#!/usr/bin/env bash
# sanitize.sh [REGEX]: builds the C++ tests that need no GPU under ThreadSanitizer, then under AddressSanitizer and
# UBSan, and runs those whose name matches REGEX (all). Environment: CMAKE_ARGS (more words for cmake).
set -euo pipefail
cd "$(dirname "$0")/.."
status=0
for sanitizers in thread address,undefined; do
  build_dir="build-sanitize-${sanitizers%%,*}"
  echo "==> $sanitizers"
  # One GPU architecture: no kernel runs.
  # shellcheck disable=SC2086  # CMAKE_ARGS is a list of words
  cmake -S . -B "$build_dir" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DL2PF_TORCH=OFF -DL2PF_BUILD_TESTS=ON \
    -DL2PF_CUDA_ARCHS=90 -DL2PF_GTEST_SOURCE="${L2PF_GTEST_SOURCE:-}" -DL2PF_SANITIZE="$sanitizers" ${CMAKE_ARGS:-}
  cmake --build "$build_dir" --parallel "$(nproc)"
  ctest --test-dir "$build_dir" --label-exclude cuda --output-on-failure --no-tests=error --tests-regex "${1:-.}" |
    tee "$build_dir/ctest.log" || status=1
  verdict="$(grep 'tests passed' "$build_dir/ctest.log")"
  [ -n "${1:-}" ] || tools/records.py add "${sanitizers/,/_}" "make sanitize" "$verdict"
done
exit "$status"
