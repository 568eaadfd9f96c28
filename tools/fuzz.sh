#!/usr/bin/env bash
# fuzz.sh [SECONDS]: builds the fuzzers with clang++ and runs them side by side for SECONDS (600), each from its corpus
# in fuzz/corpus. Exit status 1: one found something.
# What they find beyond it stays in build-fuzz. Environment: CXX (clang++), CMAKE_ARGS (more words for cmake).
set -euo pipefail
cd "$(dirname "$0")/.."
seconds="${1:-600}"
if ! command -v "${CXX:-clang++}" >/dev/null; then
  echo "missing: ${CXX:-clang++}: install Debian's clang (apt-get install clang)" >&2
  exit 1
fi
# shellcheck disable=SC2086  # CMAKE_ARGS is a list of words
cmake -S . -B build-fuzz -DCMAKE_CXX_COMPILER="${CXX:-clang++}" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DL2PF_CUDA=OFF \
  -DL2PF_TORCH=OFF -DL2PF_BUILD_TESTS=OFF -DL2PF_BUILD_FUZZERS=ON -DL2PF_SANITIZE=address,undefined,fuzzer-no-link \
  ${CMAKE_ARGS:-}
cmake --build build-fuzz --parallel "$(nproc)"
names=(plan table_image)
pids=()
echo "==> fuzzing ${names[*]} for $seconds s"
for name in "${names[@]}"; do
  found="build-fuzz/found/$name"
  mkdir -p "$found"
  "build-fuzz/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build-fuzz/$name-" "$found" "fuzz/corpus/$name" >"build-fuzz/$name.log" 2>&1 &
  pids+=("$!")
done
status=0
for i in "${!names[@]}"; do
  name="${names[$i]}"
  if wait "${pids[$i]}"; then
    units="$(sed -n 's/^stat::number_of_executed_units: *//p' "build-fuzz/$name.log")"
    echo "$name: $units executions in $seconds s, no crash"
    tools/records.py add "fuzz_$name" "make fuzz FUZZ_SECONDS=$seconds" "$units executions in $seconds s, no crash"
  else
    status=1
    tail -n 60 "build-fuzz/$name.log"
  fi
done
exit "$status"
