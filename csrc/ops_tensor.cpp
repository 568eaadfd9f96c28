#include "ops_tensor.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <map>
#include <mutex>
#include <stdexcept>

#include "cpu/cpu_backend.h"
#ifdef L2PF_WITH_CUDA
#include "cuda/cuda_backend.h"
// CPU-only builds of torch lack it; weak, so that the library loads there too.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void**);
#endif

namespace l2pf {
namespace {

using torch::stable::Tensor;

std::mutex& devices_mutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

// Why prefetches outside a forward are off, by device; a key exists for every device used so far.
std::map<DeviceIndex, std::string>& devices() {
  static auto& devices = *new std::map<DeviceIndex, std::string>;
  return devices;
}

void note_used(DeviceIndex device) {
  thread_local DeviceIndex last_noted = kCpu - 1;
  if (device == last_noted) return;
  const std::lock_guard lock(devices_mutex());
  devices().try_emplace(device);
  last_noted = device;
}

std::invalid_argument bad_tensor(const char* op, const char* argument, const std::string& got) {
  return std::invalid_argument("dsv41::" + std::string(op) + ": expected `" + argument +
                               "` to be a strided tensor on CPU or CUDA, got " + got);
}

DeviceIndex device_of(const Tensor& tensor, const char* op, const char* argument) {
  if (!tensor.defined()) throw bad_tensor(op, argument, "an undefined tensor");
  int32_t layout = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_layout(tensor.get(), &layout));
  if (layout != aoti_torch_layout_strided()) throw bad_tensor(op, argument, "a sparse or otherwise non-strided tensor");
  int32_t type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
  if (type == aoti_torch_device_type_cpu()) return kCpu;
  if (type == aoti_torch_device_type_cuda()) return tensor.get_device_index();
  throw bad_tensor(op, argument, "a tensor on device type " + std::to_string(type));
}

// A tensor of its own on the same storage: it outlives `param.data = ...`, which a hold on the parameter would not.
std::shared_ptr<const void> hold_storage(const Tensor& tensor) {
  const int64_t size = 1;  // an empty tensor would not say where its storage is
  const int64_t stride = 1;
  AtenTensorHandle held = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(tensor.get(), 1, &size, &stride, 0, &held));
  return std::make_shared<const Tensor>(held);
}

// Whether the storage that `segment` holds still has its bytes where they were: `resize_` frees and moves them.
bool backed_by_storage(const Segment& segment) {
  const auto* held = static_cast<const Tensor*>(segment.owner.get());
  void* data = nullptr;
  int64_t storage_bytes = 0;
  // The size first: torch logs an error for the address of an emptied storage.
  if (aoti_torch_get_storage_size(held->get(), &storage_bytes) != AOTI_TORCH_SUCCESS || storage_bytes == 0)
    return false;
  if (aoti_torch_get_data_ptr(held->get(), &data) != AOTI_TORCH_SUCCESS) return false;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return data && begin <= segment.address && segment.end() <= begin + static_cast<uintptr_t>(storage_bytes);
}

}  // namespace

Backend& backend_of(DeviceIndex device) {
  if (device == kCpu) return CpuBackend::instance();
#ifdef L2PF_WITH_CUDA
  return CudaBackend::instance();
#else
  throw std::invalid_argument("expected a CPU tensor, got one on " + device_name(device) +
                              ": this build of dsv41_l2pf has no CUDA half");
#endif
}

Place current_place(DeviceIndex device) {
  Place place{device, nullptr};
#ifdef L2PF_WITH_CUDA
  if (device != kCpu) {
    if (!aoti_torch_get_current_cuda_stream)
      throw std::invalid_argument("expected a torch built with CUDA, got a CPU-only one");
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &place.stream));
  }
#endif
  return place;
}

Anchor anchor_of(const Tensor& tensor, const char* op, const char* argument) {
  const DeviceIndex device = device_of(tensor, op, argument);
  note_used(device);
  return {&backend_of(device), current_place(device)};
}

WeightSegment segment_of(const Tensor& weight, const char* op, bool keep_alive) {
  WeightSegment result;
  result.device = device_of(weight, op, "weights");
  if (weight.numel() == 0) return result;  // has no data pointer, and nothing to bring
  const auto sizes = weight.sizes();
  const auto strides = weight.strides();
  const int64_t element_bytes = static_cast<int64_t>(weight.element_size());
  TensorView view;
  view.data = reinterpret_cast<uintptr_t>(weight.const_data_ptr());
  view.element_bytes = element_bytes;
  view.sizes = {sizes.data(), sizes.size()};
  view.strides = {strides.data(), strides.size()};
  view.storage = view.data - static_cast<uintptr_t>(weight.storage_offset() * element_bytes);
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(weight.get(), &view.storage_bytes));
  const ViewSegment covered = segment_of_view(view);
  result.is_dense = covered.kind != ViewKind::kNotDense;
  if (covered.kind != ViewKind::kDense) return result;
  result.segment = covered.segment;
  if (keep_alive) {
    result.segment->owner = hold_storage(weight);
    result.segment->backed_by_owner = backed_by_storage;
  }
  return result;
}

std::string device_name(DeviceIndex device) { return device == kCpu ? "cpu" : "cuda:" + std::to_string(device); }

bool current_stream_is_capturing() {
#ifdef L2PF_WITH_CUDA
  {
    // Asking for a stream would initialise CUDA in a process that never used it.
    const std::lock_guard lock(devices_mutex());
    if (devices().empty() || devices().rbegin()->first == kCpu) return false;
  }
  try {
    const DeviceIndex device = CudaBackend::instance().current_device();
    return CudaBackend::instance().capture_id(current_place(device)) != 0;
  } catch (const BackendError&) {
    return false;
  }
#else
  return false;
#endif
}

std::vector<UsedDevice> used_devices() {
  const std::lock_guard lock(devices_mutex());
  std::vector<UsedDevice> used;
  for (const auto& [device, error] : devices())
    used.push_back({device_name(device), device, &backend_of(device), error});
  return used;
}

void latch_device_off(DeviceIndex device, const std::string& reason) {
  const std::lock_guard lock(devices_mutex());
  devices()[device] = reason;
}

bool device_is_latched_off(DeviceIndex device) {
  const std::lock_guard lock(devices_mutex());
  return !devices()[device].empty();
}

}  // namespace l2pf
