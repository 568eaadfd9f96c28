#include "partitions.h"

#include <algorithm>
#include <cstdint>

#include "probe_kernels.h"

namespace l2pf {
namespace {

constexpr int kLinesPerSm = 64;
constexpr int kLineBytes = 128;
// The least of several rounds: whatever else runs only ever adds to a latency.
constexpr int kRounds = 5;
// A second partition adds 60..90 cycles to 280 on the GPUs seen; within one the spread of neighbours is a few cycles.
constexpr double kGapShare = 0.1;

}  // namespace

std::vector<int64_t> split_latencies(const std::vector<uint32_t>& cycles) {
  auto sorted = cycles;
  std::sort(sorted.begin(), sorted.end());
  // Both groups hold a good part of the SMs, so the gap lies in the middle half.
  const size_t first = sorted.size() / 4;
  const size_t last = sorted.size() - sorted.size() / 4;
  size_t widest = 0;
  for (size_t i = std::max<size_t>(first, 1); i < last; ++i)
    if (widest == 0 || sorted[i] - sorted[i - 1] > sorted[widest] - sorted[widest - 1]) widest = i;
  if (widest == 0 || sorted[widest] - sorted[widest - 1] < kGapShare * sorted[widest - 1]) return {};
  const uint32_t threshold = sorted[widest];
  std::vector<int64_t> partitions;
  for (const uint32_t latency : cycles) partitions.push_back(latency >= threshold ? 1 : 0);
  return partitions;
}

std::vector<int64_t> measure_partitions(ProbeBuffer& scratch, int num_sms, cudaStream_t stream) {
  const int64_t lines_bytes = static_cast<int64_t>(num_sms) * kLinesPerSm * kLineBytes;
  ProbeBuffer device_cycles(num_sms * static_cast<int64_t>(sizeof(uint32_t)));
  auto* const cycles = reinterpret_cast<uint32_t*>(device_cycles.data());
  std::vector<uint32_t> least(num_sms, UINT32_MAX);
  std::vector<uint32_t> host(num_sms);
  for (int round = 0; round < kRounds; ++round) {
    // Written anew, a line is in its home partition alone.
    L2PF_CUDA_CHECK(cudaMemsetAsync(scratch.data(), 0, static_cast<size_t>(lines_bytes), stream));
    L2PF_CUDA_CHECK(cudaMemsetAsync(cycles, 0, host.size() * sizeof(uint32_t), stream));
    for (int sm = 0; sm < num_sms; ++sm) {
      const char* const lines = scratch.data() + static_cast<int64_t>(sm) * kLinesPerSm * kLineBytes;
      // SM 0 brings the lines to its own side; another SM of that side finds all of them near, one of the other half.
      L2PF_CUDA_CHECK(launch_latency(lines, kLinesPerSm, 0, num_sms, nullptr, stream));
      L2PF_CUDA_CHECK(launch_latency(lines, kLinesPerSm, sm, num_sms, cycles, stream));
    }
    L2PF_CUDA_CHECK(
        cudaMemcpyAsync(host.data(), cycles, host.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost, stream));
    L2PF_CUDA_CHECK(cudaStreamSynchronize(stream));
    for (int sm = 0; sm < num_sms; ++sm) least[sm] = std::min(least[sm], host[sm]);
  }
  return split_latencies(least);
}

}  // namespace l2pf
