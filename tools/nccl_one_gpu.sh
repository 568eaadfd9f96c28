#!/usr/bin/env bash
# nccl_one_gpu.sh: two NCCL ranks as two processes on one GPU, each of which takes itself for another host: builds the
# GPU half with the current python3's torch and runs their tests. The ranks are time-sliced: times mean nothing here.
# Environment: L2PF_CUDA_ARCHS (default: the GPU's), OUT (a folder that gets the log).
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v nvidia-smi >/dev/null; then
  echo "nccl-one-gpu: expected a machine with an NVIDIA GPU, got one without nvidia-smi" >&2
  exit 2
fi
capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)"
export L2PF_CUDA_ARCHS="${L2PF_CUDA_ARCHS:-${capability/./}-real}" L2PF_BUILD_TESTS=OFF
export L2PF_REQUIRE_CUDA=1 PYTHONUNBUFFERED=1 CMAKE_ARGS="-DL2PF_CUDA=ON ${CMAKE_ARGS:-}"
# Multicast between GPUs needs more than one, and can hang a host that others share.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
logs="${OUT:-$(mktemp -d)}"
[ -z "${OUT:-}" ] || export L2PF_RECORDS="${L2PF_RECORDS:-$OUT/records.json}"
echo "==> nccl-one-gpu: building for $L2PF_CUDA_ARCHS"
tools/build.sh "$(command -v python3)" build-gpu >"$logs/nccl-build.log" 2>&1 || {
  cat "$logs/nccl-build.log"
  echo "nccl-one-gpu: the build failed: its output is above" >&2
  exit 1
}
echo "==> nccl-one-gpu: running"
python3 -m pytest -v tests/gpu/test_nccl_one_gpu.py 2>&1 | tee "$logs/nccl-one-gpu.log"
verdict="$(grep -E '^=+ .* in [0-9.]+s' "$logs/nccl-one-gpu.log" | tail -n 1 | tr -d =)"
tools/records.py add nccl_one_gpu "make nccl-one-gpu" "$verdict"
