#pragma once

#include <utility>

#include "cuda_check.h"

namespace l2pf {

// Owns one event, made on the current device. Orders work between two streams of that device.
class Event {
 public:
  explicit Event(unsigned flags = cudaEventDisableTiming) { L2PF_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags)); }
  ~Event() {
    if (event_) L2PF_CUDA_WARN(cudaEventDestroy(event_));
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  operator cudaEvent_t() const { return event_; }

  // `after` waits for what `before` has enqueued so far.
  void order(cudaStream_t before, cudaStream_t after) {
    L2PF_CUDA_CHECK(cudaEventRecord(event_, before));
    L2PF_CUDA_CHECK(cudaStreamWaitEvent(after, event_, 0));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace l2pf
