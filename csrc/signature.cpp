#include "signature.h"

#include <utility>

namespace l2pf {

std::string_view to_string(State state) {
  switch (state) {
    case State::kUnlearned:
      return "unlearned";
    case State::kPlanned:
      return "planned";
    case State::kFrozen:
      return "frozen";
  }
  return "?";
}

namespace {

// The position in `old_plan` of the window that `plan.windows[i]` is seen again as, or -1.
int same_window(const Plan* old_plan, const Plan& plan, size_t i) {
  if (!old_plan || old_plan->collectives != plan.collectives) return -1;
  const int old = old_plan->window_index(plan.windows[i].collective_index);
  return old >= 0 && old_plan->windows[old].num_bytes == plan.windows[i].num_bytes ? old : -1;
}

std::string why_no_window(const Plan& plan) {
  if (plan.evicted_bytes > 0) return "too much else is read before the weights: they would be evicted";
  if (plan.switched_off_bytes > 0) return "weights were read after all-gathers only, which are switched off";
  return "no weight was read after a collective";
}

}  // namespace

Snapshot SignatureState::snapshot() const {
  std::vector<bool> is_off(settings().size());
  for (size_t i = 0; i < is_off.size(); ++i) is_off[i] = pinned(static_cast<int>(i)) && settings()[i].byte_limit == 0;
  return {state_, plan(), table(), std::move(is_off), Form::kAuto, window_us_.empty(), latched_off_, generation_};
}

bool SignatureState::wants_plan(const ForwardResult& result) const {
  if (result.captured || result.aborted || result.generation != generation_ || state_ == State::kFrozen) return false;
  // Zero collectives is a forward that went another way (a profiling run, a transport not yet up), not a model
  // without collectives: an earlier plan stays.
  if (result.num_collectives == 0) return false;
  // A new storage may lie where an emptied one was: the same addresses, but the plan holds the emptied one.
  return !plan() || !(learned_.recording == result.recording) || !plan()->is_backed();
}

Learned SignatureState::learn(Learned learned) {
  learned.pinned.assign(learned.plan->windows.size(), false);
  for (size_t i = 0; i < learned.pinned.size(); ++i) {
    const int old = same_window(plan().get(), *learned.plan, i);
    learned.pinned[i] = old >= 0 && pinned(old);
  }
  state_ = State::kPlanned;
  return std::exchange(learned_, std::move(learned));
}

void SignatureState::finish(const ForwardResult& result) {
  if (result.generation != generation_ || result.aborted) return;
  num_launched_ = result.num_launched;
  if (result.captured) {
    finish_capture(result);
    return;
  }
  ++num_eager_;
  timers_ = result.timers;
  if (latched_off_ || state_ == State::kFrozen) return;
  if (result.num_collectives == 0) {
    reason_ = plan() ? "the last eager forward saw no collective: the earlier plan stays"
                     : "no collective seen in an eager forward: nothing to learn from";
  } else if (plan() && plan()->windows.empty()) {
    reason_ = why_no_window(*plan());
  } else {
    reason_.clear();
  }
}

void SignatureState::finish_capture(const ForwardResult& result) {
  ++num_captures_;
  state_ = State::kFrozen;
  if (latched_off_) return;
  if (!plan()) {
    reason_ = "captured before any eager forward with a collective: this graph runs without prefetch";
  } else if (result.num_collectives != plan()->num_collectives()) {
    reason_ = "mismatch: captured " + std::to_string(result.num_collectives) + " collectives, learned " +
              std::to_string(plan()->num_collectives());
  } else if (result.sequence_differs) {
    reason_ = "mismatch: captured collectives of other kinds than learned";
  } else if (plan()->windows.empty()) {
    reason_ = why_no_window(*plan());
  } else if (result.num_off == static_cast<int64_t>(plan()->windows.size())) {
    reason_ = "every window was off before the capture: this graph runs without prefetch";
  } else if (result.num_unbacked > 0) {
    reason_ = "the weights of " + std::to_string(result.num_unbacked) + " of " +
              std::to_string(plan()->windows.size()) +
              " windows were freed or moved: call invalidate() and capture again";
  } else if (result.num_launched + result.num_off < static_cast<int64_t>(plan()->windows.size())) {
    reason_ = "mismatch: " + std::to_string(result.num_launched) + " of " + std::to_string(plan()->windows.size()) +
              " windows became nodes";
  } else {
    reason_.clear();
  }
}

bool SignatureState::take_window_us() {
  if (timers_.empty() || !plan() || static_cast<int64_t>(timers_.size()) != plan()->num_collectives()) return false;
  std::vector<double> window_us;
  for (const auto& timer : timers_) {
    const auto elapsed_us = timer->elapsed_us();
    if (!elapsed_us) return false;
    window_us.push_back(*elapsed_us);
  }
  timers_.clear();
  window_us_ = std::move(window_us);
  return true;
}

void SignatureState::forget_lengths_unless_of(const Plan& next) {
  if (plan() && plan()->collectives == next.collectives) return;
  timers_.clear();
  window_us_.clear();
}

double SignatureState::window_us(int64_t collective_index) const {
  const auto index = static_cast<size_t>(collective_index);
  return index < window_us_.size() ? window_us_[index] : 0;
}

void SignatureState::latch_off(const std::string& reason) {
  if (latched_off_) return;  // what fails next is likely a consequence
  latched_off_ = true;
  reason_ = "latched off: " + reason;
}

Learned SignatureState::invalidate() {
  const uint64_t generation = generation_ + 1;
  Learned learned = std::move(learned_);
  *this = SignatureState();
  generation_ = generation;
  reason_ = "invalidated: the next eager forward learns again";
  return learned;
}

std::vector<WindowSetting> SignatureState::carried_settings(const Plan& plan,
                                                            const std::vector<WindowSetting>& initial) const {
  auto settings = initial;
  for (size_t i = 0; i < plan.windows.size(); ++i)
    if (const int old = same_window(learned_.plan.get(), plan, i); old >= 0) settings[i] = learned_.settings[old];
  return settings;
}

}  // namespace l2pf
