#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend.h"

namespace l2pf {

// One device that was used in this process, for the status.
struct UsedDevice {
  std::string device;  // "cpu", "cuda:0"
  DeviceIndex index = kCpu;
  Backend* backend = nullptr;
  std::string error;  // why prefetches outside a forward are off there; empty when they are not
};

// The JSON document that the `status` operator returns; DESIGN section 3. Never throws.
std::string status_json(std::string_view version, bool cuda_built, const std::vector<UsedDevice>& devices) noexcept;

}  // namespace l2pf
