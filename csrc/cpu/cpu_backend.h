#pragma once

#include <mutex>

#include "../backend.h"
#include "prefetch_worker.h"

namespace l2pf {

// Software prefetch of the planned bytes on one worker thread, forked and joined as on a GPU. The embedded default
// where there is no GPU; nothing is ever captured here.
class CpuBackend final : public Backend {
 public:
  static CpuBackend& instance();

  DeviceInfo device_info(DeviceIndex device) override;
  int64_t auto_budget_bytes(DeviceIndex device, double window_us) override;
  uint64_t capture_id(const Place&) override { return 0; }
  std::shared_ptr<Table> make_table(std::shared_ptr<const Plan> plan, std::span<const WindowSetting> settings,
                                    const Place& place) override;
  void patch_table(Table& table, int window_index, const WindowSetting& setting, const Place& place) override;
  void fork(const Prefetch& prefetch, const Place& place) override;
  void mark(const Place& place) override;
  void attach(const Prefetch& prefetch, Placement placement, const Place& place) override;
  void join(const Place& place) override;
  std::shared_ptr<Timer> start_timer(const Place& place) override;

  // Cache lines prefetched by this process.
  int64_t num_lines() { return worker().num_lines(); }

 private:
  PrefetchWorker& worker();

  std::mutex mutex_;
  PrefetchWorker* worker_ = nullptr;  // never destroyed: its thread has no end
  int worker_pid_ = 0;                // a process fork leaves the child without the thread, so it makes its own
  int64_t outstanding_ticket_ = 0;
};

}  // namespace l2pf
