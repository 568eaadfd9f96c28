#pragma once

#include <gtest/gtest.h>

#include <climits>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "backend.h"

// A device made of strings: it records the verbs that the core calls, and fails where a test says so.
namespace l2pf::testing_support {

inline Place place(DeviceIndex device, uintptr_t stream = 1) { return {device, reinterpret_cast<Stream>(stream)}; }

// A weight that is never read. Its owner is its own, so that a test can watch how long it is held.
inline Segment weight(uintptr_t address, int64_t num_bytes = 64) {
  return {address, num_bytes, std::make_shared<int>(0)};
}

class FakeTable final : public Table {
 public:
  FakeTable(std::shared_ptr<const Plan> plan, std::span<const WindowSetting> settings)
      : Table(std::move(plan)), settings(settings.begin(), settings.end()) {}
  std::vector<WindowSetting> settings;
};

class FakeBackend final : public Backend {
 public:
  std::vector<std::string> verbs;          // "fork 0@1 window 2": device 0, stream 1
  std::map<uintptr_t, uint64_t> captures;  // capture id of a stream; a stream that is not here is eager
  std::string failing_verb;                // throws BackendError("<verb> failed")
  int num_calls_spared = 0;                // of the failing verb, before the first failure
  int num_failures_left = INT_MAX;
  bool fails_with_system_error = false;       // as where no thread can be made
  std::vector<std::weak_ptr<Table>> tables;   // every table ever made
  std::vector<std::shared_ptr<Table>> graph;  // what attached nodes read, held as a captured graph holds it
  std::vector<std::vector<Segment>> carried;  // of every attached prefetch
  int64_t auto_budget = 1 << 20;              // of a window whose collective's length is not known
  double fill_bytes_per_us = 16;
  std::optional<double> timed_us;  // what every timer shows; nothing: not done yet
  int num_capture_id_calls = 0;

  DeviceInfo device_info(DeviceIndex) override {
    fail_if_told("device_info");
    return {"fake", 32 << 20, {Form::kLines, Form::kLoad}};
  }
  int64_t auto_budget_bytes(DeviceIndex, double window_us) override {
    fail_if_told("auto_budget_bytes");
    return window_us > 0 ? static_cast<int64_t>(window_us * fill_bytes_per_us) : auto_budget;
  }
  uint64_t capture_id(const Place& place) override {
    const std::lock_guard lock(mutex_);
    ++num_capture_id_calls;
    fail_if_told("capture_id");
    const auto it = captures.find(reinterpret_cast<uintptr_t>(place.stream));
    return it == captures.end() ? 0 : it->second;
  }
  std::shared_ptr<Table> make_table(std::shared_ptr<const Plan> plan, std::span<const WindowSetting> settings,
                                    const Place& place) override {
    note("make_table", place, " windows " + std::to_string(settings.size()));
    auto table = std::make_shared<FakeTable>(std::move(plan), settings);
    const std::lock_guard lock(mutex_);
    tables.push_back(table);
    return table;
  }
  void patch_table(Table& table, int window_index, const WindowSetting& setting, const Place& place) override {
    note("patch_table", place,
         " window " + std::to_string(window_index) + " limit " + std::to_string(setting.byte_limit) + " form " +
             std::string(to_string(setting.form)));
    static_cast<FakeTable&>(table).settings[window_index] = setting;
  }
  void fork(const Prefetch& prefetch, const Place& place) override { note("fork", place, what(prefetch)); }
  void mark(const Place& place) override { note("mark", place, ""); }
  void attach(const Prefetch& prefetch, Placement placement, const Place& place) override {
    note("attach", place, what(prefetch) + " " + std::string(to_string(placement)));
    const std::lock_guard lock(mutex_);
    graph.push_back(prefetch.table);
    carried.push_back(prefetch.carried);
  }
  void join(const Place& place) override { note("join", place, ""); }
  std::shared_ptr<Timer> start_timer(const Place&) override {
    fail_if_told("start_timer");
    return std::make_shared<FakeTimer>(*this);
  }

  // The verbs since the last call.
  std::vector<std::string> take_verbs() { return std::exchange(verbs, {}); }
  int num_verbs(const std::string& name) const {
    int found = 0;
    for (const auto& verb : verbs) found += verb.starts_with(name + " ");
    return found;
  }

 private:
  struct FakeTimer final : Timer {
    explicit FakeTimer(FakeBackend& backend) : backend(backend) {}
    void stop(const Place&) override { backend.fail_if_told("stop_timer"); }
    std::optional<double> elapsed_us() override {
      backend.fail_if_told("elapsed_us");
      return backend.timed_us;
    }
    FakeBackend& backend;
  };
  static std::string what(const Prefetch& prefetch) {
    return prefetch.table ? " window " + std::to_string(prefetch.window_index)
                          : " segments " + std::to_string(prefetch.segments.size());
  }
  // Noted before it fails: a verb that failed was called.
  void note(const std::string& verb, const Place& place, const std::string& details) {
    const std::lock_guard lock(mutex_);
    verbs.push_back(verb + " " + std::to_string(place.device) + "@" +
                    std::to_string(reinterpret_cast<uintptr_t>(place.stream)) + details);
    fail_if_told(verb);
  }
  void fail_if_told(const std::string& verb) {
    if (verb != failing_verb || num_failures_left == 0) return;
    if (num_calls_spared > 0) {
      --num_calls_spared;
      return;
    }
    --num_failures_left;
    if (fails_with_system_error) throw std::system_error(ENOMEM, std::generic_category(), verb + " failed");
    throw BackendError(verb + " failed");
  }

  std::mutex mutex_;
};

// Never destroyed: Outstanding keeps one entry per backend address for the life of the process.
inline FakeBackend& new_fake_backend() {
  static auto& all = *new std::deque<FakeBackend>;
  return all.emplace_back();
}

using Verbs = std::vector<std::string>;

#define EXPECT_CONTAINS(part, text) EXPECT_PRED_FORMAT2(::testing::IsSubstring, std::string(part), std::string(text))

}  // namespace l2pf::testing_support
