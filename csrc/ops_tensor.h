#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "status.h"

// What the operators need to know of a torch tensor, and nothing else of torch.
namespace l2pf {

struct Anchor {
  Backend* backend = nullptr;
  Place place;
};

// The backend of the tensor's device and that device's current stream. Throws std::invalid_argument (expected,
// got) for undefined, sparse and other non-strided tensors and for devices other than CPU and CUDA.
Anchor anchor_of(const torch::stable::Tensor& tensor, const char* op, const char* argument);

// The segment that a weight's view covers, or nothing when the view is not dense or holds no aligned byte
// (`is_dense` tells the two apart). The segment keeps the weight's storage alive, and nothing else of the tensor.
struct WeightSegment {
  std::optional<Segment> segment;
  bool is_dense = true;
  DeviceIndex device = kCpu;
};
WeightSegment segment_of(const torch::stable::Tensor& weight, const char* op, bool keep_alive);

std::string device_name(DeviceIndex device);

// The backend of a device that a plan names.
Backend& backend_of(DeviceIndex device);
// That device and its current stream.
Place current_place(DeviceIndex device);
// True when CUDA is in use and the current stream of the current device is being captured.
bool current_stream_is_capturing();

std::vector<UsedDevice> used_devices();
// Prefetches outside a forward have no signature to latch off, so their device is.
void latch_device_off(DeviceIndex device, const std::string& reason);
bool device_is_latched_off(DeviceIndex device);

}  // namespace l2pf
