#pragma once

#include <cstdint>
#include <vector>

#include "probe.h"

namespace l2pf {

// The L2 partition next to each SM (0 or 1), found by latency: lines that SM 0 has loaded are near to its own side.
// Empty when the latencies do not fall into two groups, that is, L2 is in one piece. `scratch` is overwritten.
std::vector<int64_t> measure_partitions(ProbeBuffer& scratch, int num_sms, cudaStream_t stream);

// Splits latencies (cycles, one an SM) at their widest gap; empty when there is no gap worth the name.
std::vector<int64_t> split_latencies(const std::vector<uint32_t>& cycles);

}  // namespace l2pf
