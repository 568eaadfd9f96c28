#pragma once

#include "cuda_check.h"

namespace l2pf {

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
    if (changed_) cudaSetDevice(previous_);
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
  ~RelaxedCaptureScope() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace l2pf
