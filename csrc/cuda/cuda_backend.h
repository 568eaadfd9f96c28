#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "../backend.h"
#include "block_pool.h"
#include "cuda_table.h"
#include "event.h"

namespace l2pf {

// CUDA devices: kernels on a side stream in eager code, graph nodes while capturing.
class CudaBackend final : public Backend {
 public:
  static CudaBackend& instance();

  DeviceIndex current_device();

  DeviceInfo device_info(DeviceIndex device) override;
  int64_t auto_budget_bytes(DeviceIndex device) override;
  uint64_t capture_id(const Place& place) override;
  std::shared_ptr<Table> make_table(std::shared_ptr<const Plan> plan, std::span<const WindowSetting> settings,
                                    const Place& place) override;
  void patch_table(Table& table, int window_index, const WindowSetting& setting, const Place& place) override;
  void fork(const Prefetch& prefetch, const Place& place) override;
  void mark(const Place& place) override;
  void attach(const Prefetch& prefetch, Placement placement, const Place& place) override;
  void join(const Place& place) override;

 private:
  // What one device needs; made at its first use and kept for the life of the process.
  struct Device {
    explicit Device(DeviceIndex index);

    DeviceInfo info;
    KernelChoice choice;
    bool has_launch_order = false;  // programmatic edges exist from sm_90 on
    BlockPool tables;
    cudaStream_t side_stream = nullptr;
    Event order;
  };

  Device& device(DeviceIndex index);

  std::mutex mutex_;
  std::map<DeviceIndex, std::unique_ptr<Device>> devices_;
};

}  // namespace l2pf
