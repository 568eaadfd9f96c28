#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace l2pf {

// Reads `num_bytes` (a multiple of 16) with wide loads from `num_ctas` CTAs: what a weight-bound GEMM does with memory.
cudaError_t launch_full_read(const void* data, int64_t num_bytes, int num_ctas, cudaStream_t stream);

// Keeps one SM busy for `duration_ns`, so that what is enqueued behind it is not timed with its own launch.
cudaError_t launch_spin(int64_t duration_ns, cudaStream_t stream);

// One SM reads `num_lines` lines, `stride` bytes apart, one after the other; `cycles`, `num_lines` words that are zero
// before, becomes the latency of each. `num_sms` is the device's.
cudaError_t launch_latencies(const void* lines, int num_lines, int64_t stride, int sm, int num_sms, uint32_t* cycles,
                             cudaStream_t stream);

}  // namespace l2pf
