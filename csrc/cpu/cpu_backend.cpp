#include "cpu_backend.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>

namespace l2pf {
namespace {

// Where the OS reports nothing (some virtual machines): a small last-level cache, so that a budget stays harmless.
constexpr int64_t kUnknownCacheBytes = 8 << 20;
// Share of the cache that prefetched weights may fill; activations and the step's own reads need the rest.
constexpr double kUsableShare = 0.6;

int64_t last_level_cache_bytes() {
  const int64_t reported =
      std::max({sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL4_CACHE_SIZE)});
  return reported > 0 ? reported : kUnknownCacheBytes;
}

class CpuTable final : public Table {
 public:
  CpuTable(std::shared_ptr<const Plan> plan, std::span<const WindowSetting> settings)
      : Table(std::move(plan)), settings_(settings.begin(), settings.end()) {}

  WindowSetting setting(int window_index) {
    const std::lock_guard lock(mutex_);
    return settings_[window_index];
  }
  void patch(int window_index, const WindowSetting& setting) {
    const std::lock_guard lock(mutex_);
    settings_[window_index] = setting;
  }

 private:
  std::mutex mutex_;
  std::vector<WindowSetting> settings_;
};

class HostTimer final : public Timer {
 public:
  void stop(const Place&) override { elapsed_ = Clock::now() - begin_; }
  std::optional<double> elapsed_us() override {
    if (!elapsed_) return std::nullopt;
    return std::chrono::duration<double, std::micro>(*elapsed_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin_ = Clock::now();
  std::optional<Clock::duration> elapsed_;
};

}  // namespace

CpuBackend& CpuBackend::instance() {
  static auto& backend = *new CpuBackend;
  return backend;
}

DeviceInfo CpuBackend::device_info(DeviceIndex) { return {"CPU", last_level_cache_bytes(), {Form::kLines}}; }

int64_t CpuBackend::auto_budget_bytes(DeviceIndex, double) {
  return static_cast<int64_t>(kUsableShare * static_cast<double>(last_level_cache_bytes()));
}

std::shared_ptr<Table> CpuBackend::make_table(std::shared_ptr<const Plan> plan, std::span<const WindowSetting> settings,
                                              const Place&) {
  return std::make_shared<CpuTable>(std::move(plan), settings);
}

void CpuBackend::patch_table(Table& table, int window_index, const WindowSetting& setting, const Place&) {
  static_cast<CpuTable&>(table).patch(window_index, setting);
}

void CpuBackend::fork(const Prefetch& prefetch, const Place&) {
  auto segments = prefetch.segments;
  if (prefetch.table) {
    auto& table = static_cast<CpuTable&>(*prefetch.table);
    if (const auto plan = table.plan())
      segments =
          cut_to_budget(plan->windows[prefetch.window_index].segments, table.setting(prefetch.window_index).byte_limit);
  }
  const int64_t ticket = worker().post(std::move(segments));
  const std::lock_guard lock(mutex_);
  outstanding_ticket_ = std::max(outstanding_ticket_, ticket);
}

void CpuBackend::mark(const Place&) { throw BackendError("the CPU has no graph capture"); }
void CpuBackend::attach(const Prefetch&, Placement, const Place&) {
  throw BackendError("the CPU has no graph capture");
}

void CpuBackend::join(const Place&) {
  auto& own = worker();
  int64_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    ticket = outstanding_ticket_;
  }
  own.wait(ticket);
}

std::shared_ptr<Timer> CpuBackend::start_timer(const Place&) { return std::make_shared<HostTimer>(); }

PrefetchWorker& CpuBackend::worker() {
  const std::lock_guard lock(mutex_);
  if (worker_pid_ != getpid()) {
    worker_ = new PrefetchWorker;
    worker_pid_ = getpid();
    outstanding_ticket_ = 0;
  }
  return *worker_;
}

}  // namespace l2pf
