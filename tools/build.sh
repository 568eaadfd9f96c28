#!/usr/bin/env bash
# build.sh PYTHON [BUILD_DIR]: configures and builds everything against PYTHON's torch.
# Environment: L2PF_BUILD_TESTS (ON or OFF), L2PF_CUDA_ARCHS, L2PF_GTEST_SOURCE, CMAKE_ARGS (more words for cmake).
set -euo pipefail
cd "$(dirname "$0")/.."
build_dir="${2:-build}"
generator=()
if [ ! -f "$build_dir/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
gtest_source="${L2PF_GTEST_SOURCE:+$(realpath "$L2PF_GTEST_SOURCE")}"
# shellcheck disable=SC2086  # CMAKE_ARGS is a list of words
cmake --no-warn-unused-cli -S . -B "$build_dir" "${generator[@]}" -DL2PF_PYTHON="$1" -DL2PF_BUILD_TESTS="${L2PF_BUILD_TESTS:-ON}" \
  -DL2PF_CUDA_ARCHS="${L2PF_CUDA_ARCHS:-}" -DL2PF_GTEST_SOURCE="$gtest_source" ${CMAKE_ARGS:-}
cmake --build "$build_dir" --parallel "$(nproc)"
