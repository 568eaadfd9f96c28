#pragma once

#include <cstdint>

namespace l2pf_bench {

static __device__ uint32_t unlikely_sink;

// A load whose value nobody uses does not hold its warp back, and a warp that exits drops its loads in flight:
// measured, the lines then never arrive. So every loaded value ends here.
__device__ __forceinline__ void consume(uint32_t value) {
  if (value == 0x9e3779b9) unlikely_sink = value;
}

}  // namespace l2pf_bench
