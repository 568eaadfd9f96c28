// What is no prefetch: a streamed read of bytes that nobody prefetches (routed experts), which is also how a weight is
// made hot for the ideal, and a kernel that only waits.
#include "bench_api.h"
#include "sink.cuh"

namespace {

constexpr int kReadThreads = 512;
constexpr int kLoadsInFlight = 4;

__device__ uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__device__ uint32_t fold(const uint4& words) { return words.x ^ words.y ^ words.z ^ words.w; }

__global__ void __launch_bounds__(kReadThreads) bench_read(const uint4* data, int64_t num_words) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  uint32_t folded = 0;
  for (; at + (kLoadsInFlight - 1) * step < num_words; at += kLoadsInFlight * step) {
    uint4 words[kLoadsInFlight];
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i) words[i] = data[at + i * step];
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i) folded ^= fold(words[i]);
  }
  for (; at < num_words; at += step) folded ^= fold(data[at]);
  l2pf_bench::consume(folded);
}

__global__ void bench_spin(uint64_t wait_ns) {
  const uint64_t begin = now_ns();
  while (now_ns() - begin < wait_ns) {
  }
}

}  // namespace

int l2pf_bench_read(const void* data, long long num_bytes, int num_ctas, void* stream) {
  bench_read<<<num_ctas, kReadThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const uint4*>(data),
                                                                               num_bytes / 16);
  return cudaGetLastError();
}

int l2pf_bench_spin(double wait_us, void* stream) {
  bench_spin<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<uint64_t>(wait_us * 1e3));
  return cudaGetLastError();
}

int l2pf_bench_reset_persisting_l2() { return cudaCtxResetPersistingL2Cache(); }
