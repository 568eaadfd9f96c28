#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "../backend.h"
#include "block_pool.h"
#include "cuda_table.h"
#include "event.h"
#include "owned_stream.h"

namespace l2pf {

// CUDA devices: kernels on a side stream in eager code, graph nodes while capturing.
class CudaBackend final : public Backend {
 public:
  static CudaBackend& instance();

  DeviceIndex current_device();
  int num_sms(DeviceIndex device);

  // What calibration found; tables made from now on use it. Throws std::invalid_argument for what this GPU cannot do.
  struct Choice {
    Form form = Form::kLoad;
    int num_ctas = 0;
    int piece_bytes = 0;
    int start_delay_ns = kDefaultStartDelayNs;
    int64_t hot_knee_bytes = 0;
    double fill_gbps = 0;
    std::vector<int64_t> partition_of_sm;  // empty: L2 is in one piece
  };
  void apply(DeviceIndex device, const Choice& choice);

  DeviceInfo device_info(DeviceIndex device) override;
  int64_t auto_budget_bytes(DeviceIndex device, double window_us) override;
  uint64_t capture_id(const Place& place) override;
  std::shared_ptr<Table> make_table(std::shared_ptr<const Plan> plan, std::span<const WindowSetting> settings,
                                    const Place& place) override;
  void patch_table(Table& table, int window_index, const WindowSetting& setting, const Place& place) override;
  void fork(const Prefetch& prefetch, const Place& place) override;
  void mark(const Place& place) override;
  void attach(const Prefetch& prefetch, Placement placement, const Place& place) override;
  void join(const Place& place) override;
  std::shared_ptr<Timer> start_timer(const Place& place) override;

 private:
  // What one device needs; made at its first use and kept for the life of the process.
  struct Device {
    explicit Device(DeviceIndex index);

    DeviceInfo info;
    int num_sms = 0;
    KernelChoice choice;
    int64_t hot_knee_bytes = 0;
    double fill_gbps = 0;           // 0 until calibrated
    bool has_launch_order = false;  // programmatic edges exist from sm_90 on
    BlockPool tables;
    OwnedStream side_stream;
    Event order;
  };

  Device& device(DeviceIndex index);

  std::mutex mutex_;
  std::map<DeviceIndex, std::unique_ptr<Device>> devices_;
};

}  // namespace l2pf
