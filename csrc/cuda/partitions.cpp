#include "partitions.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "probe_kernels.h"

namespace l2pf {
namespace {

constexpr int kNumLines = 64;
// Past a page's worth of the address bits that choose a line's partition.
constexpr int64_t kLineStride = 4096 + 128;
// The least of several rounds: whatever else runs only ever adds to a latency.
constexpr int kRounds = 3;
// Of the lines two SMs of one partition see alike, or two of different ones see differently. Chance gives half.
constexpr double kAgreement = 0.8;
// Either partition holds at least this share of the SMs.
constexpr double kLeastShare = 0.25;

// +1 where a line is far from its SM, -1 where it is near: beyond or within the middle of what this SM sees.
std::vector<int> far_or_near(const uint32_t* cycles, int num_lines) {
  std::vector<uint32_t> sorted(cycles, cycles + num_lines);
  std::sort(sorted.begin(), sorted.end());
  const uint32_t middle = (sorted[num_lines / 8] + sorted[num_lines - 1 - num_lines / 8]) / 2;
  std::vector<int> signs(num_lines);
  std::transform(cycles, cycles + num_lines, signs.begin(), [&](uint32_t c) { return c > middle ? 1 : -1; });
  return signs;
}

// From 1, all alike, to -1, all different.
double likeness(const std::vector<int>& a, const std::vector<int>& b) {
  int sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return static_cast<double>(sum) / static_cast<double>(a.size());
}

}  // namespace

std::vector<int64_t> split_latencies(const std::vector<uint32_t>& cycles, int num_lines) {
  const size_t num_sms = num_lines > 0 ? cycles.size() / num_lines : 0;
  std::vector<std::vector<int>> signs;
  for (size_t sm = 0; sm < num_sms; ++sm) signs.push_back(far_or_near(&cycles[sm * num_lines], num_lines));
  std::vector<int64_t> partitions;
  size_t num_in_second = 0;
  for (const auto& seen : signs) {
    const double alike = likeness(signs.front(), seen);
    if (std::abs(alike) < 2 * kAgreement - 1) return {};
    partitions.push_back(alike < 0 ? 1 : 0);
    num_in_second += alike < 0 ? 1 : 0;
  }
  const auto least = kLeastShare * static_cast<double>(num_sms);
  if (static_cast<double>(num_in_second) < least || static_cast<double>(num_sms - num_in_second) < least) return {};
  return partitions;
}

std::vector<int64_t> measure_partitions(ProbeBuffer& scratch, int num_sms, cudaStream_t stream) {
  const size_t num_words = static_cast<size_t>(num_sms) * kNumLines;
  ProbeBuffer device_cycles(static_cast<int64_t>(num_words * sizeof(uint32_t)));
  auto* const cycles = reinterpret_cast<uint32_t*>(device_cycles.data());
  std::vector<uint32_t> least(num_words, UINT32_MAX);
  std::vector<uint32_t> host(num_words);
  for (int round = 0; round < kRounds; ++round) {
    L2PF_CUDA_CHECK(cudaMemsetAsync(cycles, 0, num_words * sizeof(uint32_t), stream));
    for (int sm = 0; sm < num_sms; ++sm) {
      // Written anew, a line is in its home partition alone; the SM before has left copies on its own side.
      L2PF_CUDA_CHECK(cudaMemsetAsync(scratch.data(), 0, kNumLines * kLineStride, stream));
      uint32_t* const of_sm = cycles + static_cast<ptrdiff_t>(sm) * kNumLines;
      L2PF_CUDA_CHECK(launch_latencies(scratch.data(), kNumLines, kLineStride, sm, num_sms, of_sm, stream));
    }
    L2PF_CUDA_CHECK(cudaMemcpyAsync(host.data(), cycles, num_words * sizeof(uint32_t), cudaMemcpyDeviceToHost, stream));
    L2PF_CUDA_CHECK(cudaStreamSynchronize(stream));
    std::transform(host.begin(), host.end(), least.begin(), least.begin(),
                   [](uint32_t a, uint32_t b) { return std::min(a, b); });
  }
  return split_latencies(least, kNumLines);
}

}  // namespace l2pf
