#!/usr/bin/env bash
# multi_gpu.sh [WORD...]: one visit to a machine with several GPUs: builds with the current python3's torch, without
# network, runs benchmarks.multi_gpu on all GPUs (WORDs are its own, see --help), then the tests that need two GPUs.
# It ends within VISIT_S seconds (default 530), whatever hangs. Every step runs, whatever the one before did; the last
# lines say how each went, and the exit status is 0 only when all passed.
# Environment: NUM_GPUS (default: all), OUT (a folder that gets JSON and logs; without it the JSON, the picture and a
# page go to benchmarks/results/<gpu>x<number>), L2PF_COMMIT, L2PF_CUDA_ARCHS (default: the GPU's).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
visit_s="${VISIT_S:-530}"
num_found="$(nvidia-smi --list-gpus 2>/dev/null | wc -l)"
num_gpus="${NUM_GPUS:-$num_found}"
if [ "$num_gpus" -lt 2 ] || [ "$num_gpus" -gt "$num_found" ]; then
  echo "multi-gpu: expected a machine with at least ${NUM_GPUS:-2} NVIDIA GPUs, got $num_found" >&2
  exit 2
fi
IFS=, read -r name capability < <(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader)
export L2PF_CUDA_ARCHS="${L2PF_CUDA_ARCHS:-$(tr -d ' .' <<<"$capability")-real}" L2PF_BUILD_TESTS=OFF
export L2PF_REQUIRE_GPUS=2 PYTHONUNBUFFERED=1
export CMAKE_ARGS="-DL2PF_CUDA=ON -DL2PF_BUILD_BENCHMARKS=ON ${CMAKE_ARGS:-}"
# Multicast between GPUs can put a host's GPUs, which others share, out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
results="${OUT:-benchmarks/results/$(tr '[:upper:]' '[:lower:]' <<<"${name##* }")x$num_gpus}"
logs="${OUT:-$(mktemp -d)}"
mkdir -p "$results"
summary=()
failed=0

# step NAME SECONDS COMMAND...: at most SECONDS, and no longer than the visit.
step() {
  local name="$1" limit_s="$2" begin=$SECONDS result=PASS left_s=$((visit_s - SECONDS))
  shift 2
  [ "$limit_s" -lt "$left_s" ] || limit_s=$left_s
  echo "==> multi-gpu: $name (at most $limit_s s)"
  if [ "$limit_s" -lt 5 ] || ! timeout -k 15 "$limit_s" "$@" 2>&1 | tee "$logs/multi-gpu-$name.log"; then
    result=FAIL
    failed=1
  fi
  summary+=("$result  $name  $((SECONDS - begin)) s")
}

python="$(command -v python3)"
words=(--out "$results" --no-plot --deadline-s 200 --commit "${L2PF_COMMIT:-}")
nvidia-smi topo -m 2>/dev/null || true
step build 240 tools/build.sh "$python" build-bench
step benchmark 280 "$python" -m torch.distributed.run --nproc-per-node "$num_gpus" --master-addr 127.0.0.1 \
  --master-port 29577 -m benchmarks.multi_gpu "${words[@]}" "$@"
step tests 300 "$python" -m pytest -m two_gpus tests/gpu/test_two_gpus.py
if [ -z "${OUT:-}" ]; then
  step page 60 "$python" -m benchmarks.page --results "$results" --page "$results/README.md"
fi
echo "==> multi-gpu: summary"
printf '%s\n' "${summary[@]}"
exit "$failed"
