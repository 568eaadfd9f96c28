#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plan.h"
#include "words.h"

// The seam between the state machine and a device. Everything above it is tested without a GPU.
namespace l2pf {

// A cudaStream_t on CUDA; unused on the CPU.
using Stream = void*;

// Where an operator runs: the device of its anchor and that device's current stream.
struct Place {
  DeviceIndex device = kCpu;
  Stream stream = nullptr;
};

// A device call that failed. The core latches the signature off and lets the forward go on.
class BackendError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The backend chooses.
inline constexpr int64_t kAutoInFlight = -1;
// One load of each thread of one CTA; no cap is lower.
inline constexpr int64_t kLeastInFlightBytes = 64 << 10;

// How much of a window is prefetched and how; changing it needs no recapture.
struct WindowSetting {
  int64_t byte_limit = 0;  // 0 switches the window off
  Form form = Form::kAuto;
  int64_t in_flight_bytes = kAutoInFlight;  // cap on what is asked of memory at a time; 0: none

  friend bool operator==(const WindowSetting&, const WindowSetting&) = default;
};

// Device copy of a plan. Keeps the plan, and through it the weights, alive until it is retired; freed by its last
// owner, which may be a graph.
class Table {
 public:
  explicit Table(std::shared_ptr<const Plan> plan)
      : device_(plan->device), num_windows_(static_cast<int>(plan->windows.size())), plan_(std::move(plan)) {}
  virtual ~Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  DeviceIndex device() const { return device_; }
  int num_windows() const { return num_windows_; }
  // Null once retired.
  std::shared_ptr<const Plan> plan() const {
    const std::lock_guard lock(mutex_);
    return plan_;
  }
  // Lets go of the plan; whoever calls has switched every window off for good. The caller drops what it is given
  // outside its locks.
  [[nodiscard]] std::shared_ptr<const Plan> retire() {
    const std::lock_guard lock(mutex_);
    return std::exchange(plan_, nullptr);
  }

 private:
  const DeviceIndex device_;
  const int num_windows_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Plan> plan_;
};

// One prefetch to start: a window of a table, or segments carried by value where there is no plan.
struct Prefetch {
  std::shared_ptr<Table> table;
  int window_index = 0;
  std::vector<Segment> segments;  // used when `table` is null; already cut to the budget
  Form form = Form::kAuto;
  // Capturing: the collective's own input and output, read last so that the weights do not push them out of L2. Nobody
  // holds them: the prefetch reads them while the collective beside it does.
  std::vector<Segment> carried = {};
  int64_t in_flight_bytes = kAutoInFlight;  // of `segments`; a table's windows have their own

  // In place, input and output are one, and read once.
  void carry(const std::optional<Segment>& segment) {
    const auto same = [&](const Segment& known) { return known.address == segment->address; };
    if (segment && std::none_of(carried.begin(), carried.end(), same)) carried.push_back(*segment);
  }
};

// What a prefetch takes of a device while it runs: of each SM that a CTA is on, and how many CTAs there are.
struct Footprint {
  int num_ctas = 0;
  int num_threads = 0;          // of a CTA
  int num_registers = 0;        // of a thread
  int shared_bytes = 0;         // of a CTA
  int64_t in_flight_bytes = 0;  // cap where a prefetcher sets none; 0: none
};

struct DeviceInfo {
  std::string name;
  int64_t l2_bytes = 0;
  std::vector<Form> forms;
  std::optional<Footprint> footprint = {};  // where prefetches are kernels
};

// Times a stretch of a stream in eager code.
class Timer {
 public:
  virtual ~Timer() = default;
  virtual void stop(const Place& place) = 0;
  // Microseconds between start and stop; nothing while the device has not got there. Never waits.
  virtual std::optional<double> elapsed_us() = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual DeviceInfo device_info(DeviceIndex device) = 0;
  // The budget of a window when the user asks for `auto`, bytes. `window_us` 0: not measured.
  virtual int64_t auto_budget_bytes(DeviceIndex device, double window_us) = 0;

  // Non-zero while the stream is being captured; different for each capture.
  virtual uint64_t capture_id(const Place& place) = 0;

  // Eager only. `settings[i]` belongs to `plan->windows[i]`.
  virtual std::shared_ptr<Table> make_table(std::shared_ptr<const Plan> plan, std::span<const WindowSetting> settings,
                                            const Place& place) = 0;
  // Ordered on `place.stream`: replays enqueued later see the new setting. Never while capturing.
  virtual void patch_table(Table& table, int window_index, const WindowSetting& setting, const Place& place) = 0;

  // Eager: starts `prefetch` on the side stream behind what the stream has enqueued so far.
  virtual void fork(const Prefetch& prefetch, const Place& place) = 0;
  // Capturing: remembers the frontier a collective starts from.
  virtual void mark(const Place& place) = 0;
  // Capturing: adds `prefetch` as a graph node that overlaps the frontier's kernels.
  virtual void attach(const Prefetch& prefetch, Placement placement, const Place& place) = 0;
  // The stream waits for the outstanding prefetch of its device (eager), or for those on branches of its capture.
  virtual void join(const Place& place) = 0;

  // Eager: starts timing what the stream is given next.
  virtual std::shared_ptr<Timer> start_timer(const Place& place) = 0;
};

}  // namespace l2pf
