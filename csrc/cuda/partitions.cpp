#include "partitions.h"

#include <algorithm>
#include <cstdint>

#include "probe_kernels.h"

namespace l2pf {
namespace {

constexpr int kNumLines = 64;
// Past a page's worth of the address bits that choose a line's partition.
constexpr int64_t kLineStride = 4096 + 128;
// The least of several rounds: whatever else runs only ever adds to a latency.
constexpr int kRounds = 3;
// A line is far when it takes this much longer than an SM's near ones: 1.5 on an H200, whose near ones lie within 1.15.
constexpr double kFarRatio = 1.3;
// The lines that tell: far from at least this share of the SMs, which is also the least a partition may hold.
constexpr double kLeastShare = 0.25;
constexpr size_t kLeastLines = 3;
// An SM of the other partition is far from at least this share of them, one of SM 0's from no more than the rest.
constexpr double kAgreement = 0.8;

std::vector<bool> far_lines(const uint32_t* cycles, int num_lines) {
  std::vector<uint32_t> sorted(cycles, cycles + num_lines);
  std::sort(sorted.begin(), sorted.end());
  const double near = sorted[num_lines / 4];
  std::vector<bool> far(num_lines);
  std::transform(cycles, cycles + num_lines, far.begin(), [&](uint32_t c) { return c > kFarRatio * near; });
  return far;
}

double share(int64_t part, size_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

}  // namespace

std::vector<int64_t> split_latencies(const std::vector<uint32_t>& cycles, int num_lines) {
  const size_t num_sms = num_lines > 0 ? cycles.size() / num_lines : 0;
  std::vector<std::vector<bool>> far;
  for (size_t sm = 0; sm < num_sms; ++sm) far.push_back(far_lines(&cycles[sm * num_lines], num_lines));
  std::vector<int> telling;
  for (int line = 0; line < num_lines && num_sms > 0; ++line) {
    const auto num_far = std::count_if(far.begin(), far.end(), [&](const auto& of_sm) { return of_sm[line]; });
    if (share(num_far, num_sms) >= kLeastShare) telling.push_back(line);
  }
  if (telling.size() < kLeastLines) return {};
  std::vector<int64_t> partitions;
  for (const auto& of_sm : far) {
    const auto num_far = std::count_if(telling.begin(), telling.end(), [&](int line) { return of_sm[line]; });
    const double far_share = share(num_far, telling.size());
    if (far_share > 1 - kAgreement && far_share < kAgreement) return {};
    partitions.push_back(far_share >= kAgreement ? 1 : 0);
  }
  const double second = share(std::count(partitions.begin(), partitions.end(), 1), num_sms);
  if (second < kLeastShare || second > 1 - kLeastShare) return {};
  return partitions;
}

std::vector<int64_t> measure_partitions(ProbeBuffer& scratch, int num_sms, cudaStream_t stream) {
  constexpr size_t kRowBytes = kNumLines * sizeof(uint32_t);
  const size_t num_words = static_cast<size_t>(num_sms) * kNumLines;
  ProbeBuffer device_cycles(static_cast<int64_t>((num_sms + 1) * kRowBytes));
  auto* const cycles = reinterpret_cast<uint32_t*>(device_cycles.data());
  uint32_t* const unused = cycles + num_words;
  std::vector<uint32_t> least(num_words, UINT32_MAX);
  std::vector<uint32_t> host(num_words);
  for (int round = 0; round < kRounds; ++round) {
    L2PF_CUDA_CHECK(cudaMemsetAsync(cycles, 0, num_words * sizeof(uint32_t), stream));
    for (int sm = 0; sm < num_sms; ++sm) {
      // Written anew and then read by SM 0, a line is on that side, at home there or as a copy. Seen from the other
      // side, those at home there are near and the rest are far.
      L2PF_CUDA_CHECK(cudaMemsetAsync(scratch.data(), 0, kNumLines * kLineStride, stream));
      L2PF_CUDA_CHECK(cudaMemsetAsync(unused, 0, kRowBytes, stream));
      L2PF_CUDA_CHECK(launch_latencies(scratch.data(), kNumLines, kLineStride, 0, num_sms, unused, stream));
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
