#include "probe_kernels.h"
#include "ptx.cuh"

namespace l2pf {
namespace {

constexpr int kReadThreads = 512;
// CTAs offered per SM: enough that every SM, the wanted one among them, gets one.
constexpr int kCtasPerSm = 8;
constexpr uint32_t kUnlikelyValue = 0x9e3779b9;

__device__ uint32_t unlikely_sink;

__device__ __forceinline__ uint32_t fold(const uint4& v) { return v.x ^ v.y ^ v.z ^ v.w; }

__global__ void __launch_bounds__(kReadThreads) full_read(const uint4* data, int64_t num_vectors) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  uint32_t folded = 0;
  for (; i + 3 * step < num_vectors; i += 4 * step) {
    const uint4 a = data[i];
    const uint4 b = data[i + step];
    const uint4 c = data[i + 2 * step];
    const uint4 d = data[i + 3 * step];
    folded ^= fold(a) ^ fold(b) ^ fold(c) ^ fold(d);
  }
  for (; i < num_vectors; i += step) folded ^= fold(data[i]);
  if (folded == kUnlikelyValue) unlikely_sink = folded;
}

__global__ void l2pf_spin(int64_t duration_ns) {
  const uint64_t begin = ptx::global_time_ns();
  while (ptx::global_time_ns() - begin < static_cast<uint64_t>(duration_ns)) {
  }
}

__global__ void latencies(const char* lines, int num_lines, int64_t stride, int sm, uint32_t* cycles) {
  __shared__ volatile uint32_t seen;
  if (ptx::sm_index() != sm || threadIdx.x != 0) return;
  // The SM got several CTAs. Those that come after the first would read lines which it has just brought near.
  if (atomicCAS(cycles, 0, 1) != 0) return;
  for (int i = 0; i < num_lines; ++i) {
    const int64_t begin = clock64();
    // A warp issues in order, so the clock is read again only once the word is there to be stored.
    seen = ptx::load_from_l2(lines + i * stride);
    cycles[i] = static_cast<uint32_t>(clock64() - begin);
  }
}

}  // namespace

cudaError_t launch_full_read(const void* data, int64_t num_bytes, int num_ctas, cudaStream_t stream) {
  full_read<<<num_ctas, kReadThreads, 0, stream>>>(static_cast<const uint4*>(data), num_bytes / 16);
  return cudaGetLastError();
}

// Returns the launch's own error, see launch_prefetch: a window is timed in somebody else's forward.
cudaError_t launch_spin(int64_t duration_ns, cudaStream_t stream) {
  void* arguments[] = {&duration_ns};
  return cudaLaunchKernel(&l2pf_spin, dim3(1), dim3(1), arguments, 0, stream);
}

cudaError_t launch_latencies(const void* lines, int num_lines, int64_t stride, int sm, int num_sms, uint32_t* cycles,
                             cudaStream_t stream) {
  latencies<<<num_sms * kCtasPerSm, 32, 0, stream>>>(static_cast<const char*>(lines), num_lines, stride, sm, cycles);
  return cudaGetLastError();
}

}  // namespace l2pf
