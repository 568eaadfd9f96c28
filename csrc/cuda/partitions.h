#pragma once

#include <cstdint>
#include <vector>

#include "probe.h"

namespace l2pf {

// The L2 partition next to each SM (0 or 1, SM 0 is next to 0), found by latency. Empty when L2 is in one piece, or the
// latencies do not tell. `scratch` is overwritten.
std::vector<int64_t> measure_partitions(ProbeBuffer& scratch, int num_sms, cudaStream_t stream);

// Splits SMs by which of the lines that SM 0 has loaded are far from them: those of its own partition are far from
// none, those of the other all from the same ones. cycles: the latency of each line, for one SM after the other. Empty
// when the SMs are not of these two kinds.
std::vector<int64_t> split_latencies(const std::vector<uint32_t>& cycles, int num_lines);

}  // namespace l2pf
