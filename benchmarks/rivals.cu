// Our own code of the geometry that other projects published; the figures are theirs, see README.md for the sources.
//
//   seed        min(segments, 8) CTAs x 64 threads, 16 KiB bulk pieces, one segment a CTA
//   bulk_4k     16 CTAs x 128 threads, 4 KiB bulk pieces over all CTAs, evict_last
//   paced_load  16 CTAs x 256 threads, 16-byte loads cached in L2 only, a cap on the bytes in flight
#include <algorithm>

#include "bench_api.h"
#include "cuda/ptx.cuh"
#include "sink.cuh"

namespace {

struct Segment {
  uint64_t address;
  int64_t num_bytes;
};

constexpr int64_t kSeedPieceBytes = 16 << 10;
constexpr int kSeedMaxCtas = 8;
constexpr int kSeedThreads = 64;

constexpr int64_t kBulk4kPieceBytes = 4 << 10;
constexpr int kBulk4kCtas = 16;
constexpr int kBulk4kThreads = 128;

constexpr int kPacedCtas = 16;
constexpr int kPacedThreads = 256;
constexpr int64_t kPacedLoadBytes = 16;

namespace ptx {

__device__ uint64_t policy_evict_last() {
  uint64_t policy = 0;
#if __CUDA_ARCH__ >= 800
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

__device__ void bulk_prefetch_l2_with_policy(uint64_t address, uint32_t num_bytes, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(address), "r"(num_bytes),
               "l"(policy)
               : "memory");
#else
  (void)address, (void)num_bytes, (void)policy;
#endif
}

__device__ uint32_t load_l2_only(uint64_t address) {
  uint32_t a, b, c, d;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "l"(address)
               : "memory");
  return a ^ b ^ c ^ d;
}

}  // namespace ptx

__global__ void bench_seed(const Segment* segments, int num_segments) {
  for (int s = blockIdx.x; s < num_segments; s += gridDim.x) {
    const Segment segment = segments[s];
    for (int64_t at = threadIdx.x * kSeedPieceBytes; at < segment.num_bytes; at += blockDim.x * kSeedPieceBytes) {
      const int64_t num_bytes = min(segment.num_bytes - at, kSeedPieceBytes);
      l2pf::ptx::bulk_prefetch_l2(segment.address + at, static_cast<uint32_t>(num_bytes));
    }
  }
}

__global__ void bench_bulk_4k(const Segment* segments, int num_segments) {
  const uint64_t policy = ptx::policy_evict_last();
  const int64_t first = (static_cast<int64_t>(threadIdx.x) * gridDim.x + blockIdx.x) * kBulk4kPieceBytes;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kBulk4kPieceBytes;
  for (int s = 0; s < num_segments; ++s) {
    const Segment segment = segments[s];
    for (int64_t at = first; at < segment.num_bytes; at += step) {
      const int64_t num_bytes = min(segment.num_bytes - at, kBulk4kPieceBytes);
      ptx::bulk_prefetch_l2_with_policy(segment.address + at, static_cast<uint32_t>(num_bytes), policy);
    }
  }
}

template <int kLoadsInFlight>
__global__ void bench_paced_load(const Segment* segments, int num_segments) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPacedLoadBytes;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kPacedLoadBytes;
  for (int s = 0; s < num_segments; ++s) {
    const Segment segment = segments[s];
    for (int64_t at = first; at < segment.num_bytes; at += kLoadsInFlight * step) {
      uint32_t words[kLoadsInFlight];
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i)
        words[i] = at + i * step < segment.num_bytes ? ptx::load_l2_only(segment.address + at + i * step) : 0;
      uint32_t folded = 0;
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) folded ^= words[i];
      l2pf_bench::consume(folded);  // the next loads start when these have come: that is the cap
    }
  }
}

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
const Segment* as_segments(const void* segments) { return static_cast<const Segment*>(segments); }

}  // namespace

int l2pf_bench_seed(const void* segments, int num_segments, void* stream) {
  bench_seed<<<std::min(num_segments, kSeedMaxCtas), kSeedThreads, 0, as_stream(stream)>>>(as_segments(segments),
                                                                                           num_segments);
  return cudaGetLastError();
}

int l2pf_bench_bulk_4k(const void* segments, int num_segments, void* stream) {
  bench_bulk_4k<<<kBulk4kCtas, kBulk4kThreads, 0, as_stream(stream)>>>(as_segments(segments), num_segments);
  return cudaGetLastError();
}

int l2pf_bench_paced_load(const void* segments, int num_segments, long long in_flight_bytes, void* stream) {
  const long long loads = in_flight_bytes / (kPacedCtas * kPacedThreads * kPacedLoadBytes);
  auto* kernel = loads >= 8   ? &bench_paced_load<8>
                 : loads >= 4 ? &bench_paced_load<4>
                 : loads >= 2 ? &bench_paced_load<2>
                              : &bench_paced_load<1>;
  kernel<<<kPacedCtas, kPacedThreads, 0, as_stream(stream)>>>(as_segments(segments), num_segments);
  return cudaGetLastError();
}
