#pragma once

#include <functional>
#include <vector>

#include "../backend.h"
#include "device_scope.h"
#include "event.h"
#include "owned_stream.h"
#include "prefetch_kernel.h"

namespace l2pf {

// Device memory for one calibration.
class ProbeBuffer {
 public:
  explicit ProbeBuffer(int64_t num_bytes) : num_bytes_(num_bytes) {
    L2PF_CUDA_CHECK(cudaMalloc(&data_, static_cast<size_t>(num_bytes)));
  }
  ~ProbeBuffer() { L2PF_CUDA_WARN(cudaFree(data_)); }
  ProbeBuffer(const ProbeBuffer&) = delete;
  ProbeBuffer& operator=(const ProbeBuffer&) = delete;

  char* data() const { return static_cast<char*>(data_); }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  void* data_ = nullptr;
  int64_t num_bytes_;
};

// A stream and a pair of events that time what runs on it.
class ProbeStream {
 public:
  operator cudaStream_t() const { return stream_; }

  // Microseconds that `body` takes on the stream, without the launch latency of its first kernel. `before` runs
  // untimed.
  double time_us(const std::function<void()>& body, const std::function<void()>& before = {});

 private:
  OwnedStream stream_;
  Event begin_{cudaEventDefault};
  Event end_{cudaEventDefault};
};

// What `share` (in [0, 1)) of `values`, which holds at least one, lie below.
double quantile(std::vector<double> values, double share);
// Median of `num_samples` calls.
double median_of(int num_samples, const std::function<double()>& sample);

}  // namespace l2pf
