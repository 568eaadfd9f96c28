#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend.h"

namespace l2pf {

// What makes two forwards alike. `model` is a number the caller hands out once per model, never an address.
struct Signature {
  int64_t model = 0;
  int64_t num_tokens = 0;
  std::string mode;

  friend auto operator<=>(const Signature&, const Signature&) = default;
};

enum class State { kUnlearned, kPlanned, kFrozen };
std::string_view to_string(State state);

// What a forward takes along when it begins; later changes of the signature do not reach a running forward.
struct Snapshot {
  State state = State::kUnlearned;
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<Table> table;
  std::vector<bool> is_off;  // by window: someone set its budget to 0, so a graph captured now gets no node for it
  Form form = Form::kAuto;
  bool wants_window_us = false;  // the budget is `auto`, and the collectives' lengths are not known yet
  bool latched_off = false;
  uint64_t generation = 0;
};

// What a forward brings back when it ends.
struct ForwardResult {
  bool captured = false;
  bool aborted = false;  // the model raised
  int64_t num_collectives = 0;
  int64_t num_launched = 0;
  int64_t num_off = 0;                         // windows left out of a capture because they are off
  int64_t num_unbacked = 0;                    // windows left out because their weights were freed or moved
  bool sequence_differs = false;               // a collective of another kind, or past the plan
  Recording recording;                         // empty unless the forward was learning
  std::vector<std::shared_ptr<Timer>> timers;  // one a collective, or none
  uint64_t generation = 0;
};

// What was learned from one recording.
struct Learned {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<Table> table;         // null when the plan has no window
  std::vector<WindowSetting> settings;  // by window
  std::vector<bool> pinned;             // by window: someone set it, so a new automatic budget leaves it alone
  Recording recording;
};

// The state table of one signature (DESIGN section 4). Not thread-safe: the prefetcher locks.
//
//            | eager forward                                 | capturing forward
//  Unlearned | record; >= 1 collective -> Planned, else stay | no windows; reason says why -> Frozen
//  Planned   | prefetch and re-record; latest sight wins     | windows become graph nodes -> Frozen
//  Frozen    | prefetch only                                 | prefetch only
class SignatureState {
 public:
  Snapshot snapshot() const;

  // True when the recording asks for another plan than the present one; then `learn` follows.
  bool wants_plan(const ForwardResult& result) const;
  // Returns what was known before: its last hold on weights may run code of their owner, so the caller lets go of it
  // outside its locks.
  [[nodiscard]] Learned learn(Learned learned);
  void finish(const ForwardResult& result);
  void latch_off(const std::string& reason);
  // Back to Unlearned; forwards that still run change nothing. Returns what was known, as `learn` does.
  [[nodiscard]] Learned invalidate();

  // Reads the timers of the forward before; true when the collectives' lengths became known just now. The second
  // forward replaces what the first one measured, in which transports were still being set up.
  bool take_window_us();
  // Lengths of other collectives than those of the next plan say nothing about it.
  void forget_lengths_unless_of(const Plan& next);
  // Microseconds that the collective took in an eager forward; 0 when not known.
  double window_us(int64_t collective_index) const;

  // Settings for `plan`: those of the present plan where the window is the same one, else `initial`.
  std::vector<WindowSetting> carried_settings(const Plan& plan, const std::vector<WindowSetting>& initial) const;
  void set_setting(int window_index, const WindowSetting& setting) { learned_.settings[window_index] = setting; }
  void pin(int window_index) { learned_.pinned[window_index] = true; }
  bool pinned(int window_index) const { return learned_.pinned[window_index]; }

  State state() const { return state_; }
  const std::shared_ptr<const Plan>& plan() const { return learned_.plan; }
  const std::shared_ptr<Table>& table() const { return learned_.table; }
  const std::vector<WindowSetting>& settings() const { return learned_.settings; }
  const std::string& reason() const { return reason_; }
  bool latched_off() const { return latched_off_; }
  uint64_t generation() const { return generation_; }
  int64_t num_eager() const { return num_eager_; }
  int64_t num_captures() const { return num_captures_; }
  int64_t num_launched() const { return num_launched_; }
  int64_t num_skipped_views() const { return learned_.recording.num_skipped_views(); }

 private:
  void finish_capture(const ForwardResult& result);

  State state_ = State::kUnlearned;
  Learned learned_;
  std::vector<std::shared_ptr<Timer>> timers_;
  std::vector<double> window_us_;  // by collective
  std::string reason_ = "no eager forward seen yet";
  bool latched_off_ = false;
  uint64_t generation_ = 0;
  int64_t num_eager_ = 0;
  int64_t num_captures_ = 0;
  int64_t num_launched_ = 0;
};

}  // namespace l2pf
