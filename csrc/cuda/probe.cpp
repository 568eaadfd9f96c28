#include "probe.h"

#include <algorithm>
#include <utility>

#include "probe_kernels.h"

namespace l2pf {
namespace {

// Long enough for the host to enqueue the timed work behind it.
constexpr int64_t kSpinNs = 25'000;

}  // namespace

double ProbeStream::time_us(const std::function<void()>& body, const std::function<void()>& before) {
  L2PF_CUDA_CHECK(launch_spin(kSpinNs, stream_));
  if (before) before();
  L2PF_CUDA_CHECK(cudaEventRecord(begin_, stream_));
  body();
  L2PF_CUDA_CHECK(cudaEventRecord(end_, stream_));
  L2PF_CUDA_CHECK(cudaEventSynchronize(end_));
  float elapsed_ms = 0;
  L2PF_CUDA_CHECK(cudaEventElapsedTime(&elapsed_ms, begin_, end_));
  return elapsed_ms * 1e3;
}

double quantile(std::vector<double> values, double share) {
  const auto index = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), values.begin() + index, values.end());
  return values[index];
}

double median_of(int num_samples, const std::function<double()>& sample) {
  std::vector<double> samples;
  for (int i = 0; i < num_samples; ++i) samples.push_back(sample());
  return quantile(std::move(samples), 0.5);
}

}  // namespace l2pf
