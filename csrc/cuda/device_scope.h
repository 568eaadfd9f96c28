#pragma once

#include "cuda_check.h"

namespace l2pf {

// Calls that are not ours rely on what a scope puts back, so it tries again when that fails.
template <typename Call>
void put_back(const Call& call, const char* name) noexcept {
  const cudaError_t error = call();
  if (error == cudaSuccess) return;
  cuda_warn(error, name);
  cuda_warn(call(), name);
}

// Makes a device current and puts the previous one back, whatever happens in between.
class DeviceScope {
 public:
  explicit DeviceScope(DeviceIndex device) {
    L2PF_CUDA_CHECK(cudaGetDevice(&previous_));
    if (device == previous_) return;
    L2PF_CUDA_CHECK(cudaSetDevice(device));
    changed_ = true;
  }
  ~DeviceScope() {
    if (changed_) put_back([this] { return cudaSetDevice(previous_); }, "cudaSetDevice");
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  DeviceIndex previous_ = 0;
  bool changed_ = false;
};

// Lets this thread allocate and copy while another one captures: those calls belong to no capture.
class RelaxedCaptureScope {
 public:
  RelaxedCaptureScope() { L2PF_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~RelaxedCaptureScope() {
    put_back([this] { return cudaThreadExchangeStreamCaptureMode(&mode_); }, "cudaThreadExchangeStreamCaptureMode");
  }
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace l2pf
