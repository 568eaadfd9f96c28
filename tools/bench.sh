#!/usr/bin/env bash
# bench.sh [--build-only] [--quick] NAME...: builds the library and the rivals with the current python3's torch, without
# network, and runs the named benchmarks (gap, decode, transformers, dispatch) in turn, whatever the one before did.
# --quick: a few cases and rounds, to see whether they run; kept out of benchmarks/.
# The last lines say how each went; the exit status is 0 only when all passed.
# Environment: OUT (a folder that gets the JSON files and a log; without it they go to benchmarks/results/h200 and
# benchmarks/README.md is written), L2PF_COMMIT (what the JSON says was measured, where there is no git),
# L2PF_CUDA_ARCHS (default: the GPU's), L2PF_BENCH_ARGS (more words for every benchmark).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
results="${OUT:-benchmarks/results/h200}"
write_page="$([ -n "${OUT:-}" ] && echo no || echo yes)"
declare -A modules=([gap]=gap [decode]=decode [transformers]=transformers_decode [dispatch]=dispatch)
build_only=0
arguments=(--commit "${L2PF_COMMIT:-}")
names=()
for word in "$@"; do
  case "$word" in
    --build-only) build_only=1 ;;
    --quick)
      arguments+=(--quick)
      write_page=no
      results="${OUT:-$(mktemp -d)}"
      ;;
    *)
      if [ -z "${modules[$word]:-}" ]; then
        echo "bench: expected gap, decode, transformers, dispatch, --quick or --build-only, got '$word'" >&2
        exit 2
      fi
      names+=("$word")
      ;;
  esac
done
if [ "$build_only" = 0 ] && [ "${#names[@]}" = 0 ]; then
  echo "bench: expected the name of a benchmark: gap, decode, transformers or dispatch" >&2
  exit 2
fi

if [ "$build_only" = 0 ] && ! command -v nvidia-smi >/dev/null; then
  echo "bench: expected a machine with an NVIDIA GPU, got one without nvidia-smi" >&2
  exit 2
fi

if [ -z "${L2PF_CUDA_ARCHS:-}" ]; then
  capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)"
  L2PF_CUDA_ARCHS="${capability:+${capability/./}-real}"
fi
export L2PF_CUDA_ARCHS PYTHONUNBUFFERED=1 L2PF_BUILD_TESTS=OFF
export CMAKE_ARGS="-DL2PF_CUDA=ON -DL2PF_BUILD_BENCHMARKS=ON ${CMAKE_ARGS:-}"
begin=$SECONDS
echo "==> bench: building for ${L2PF_CUDA_ARCHS:-all GPUs}"
log="$(mktemp)"
tools/build.sh "$(command -v python3)" build-bench >"$log" 2>&1 || {
  cat "$log"
  rm -f "$log"
  echo "bench: the build failed: its output is above" >&2
  exit 1
}
rm -f "$log"
echo "==> bench: built in $((SECONDS - begin)) s"
[ "$build_only" = 0 ] || exit 0

mkdir -p "$results"
[ -z "${OUT:-}" ] || arguments+=(--no-plot) # the page draws them from the JSON
log="${OUT:+$OUT/bench.log}"
log="${log:-/dev/null}"
summary=()
failed=0
for name in "${names[@]}"; do
  begin=$SECONDS result=PASS
  # shellcheck disable=SC2086  # L2PF_BENCH_ARGS is a list of words
  python3 -m "benchmarks.${modules[$name]}" --out "$results" "${arguments[@]}" ${L2PF_BENCH_ARGS:-} 2>&1 |
    tee -a "$log" || {
    result=FAIL
    failed=1
  }
  summary+=("$result  $name  $((SECONDS - begin)) s")
done
if [ "$write_page" = yes ]; then python3 -m benchmarks.page --results "$results" || failed=1; fi
echo "==> bench: summary"
printf '%s\n' "${summary[@]}"
exit "$failed"
