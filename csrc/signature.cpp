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

bool same_sequence(const std::shared_ptr<const Plan>& a, const std::shared_ptr<const Plan>& b) {
  return a && b && a->collectives == b->collectives;
}

std::string why_no_window(const Plan& plan) {
  if (plan.evicted_bytes > 0) return "too much else is read before the weights: they would be evicted";
  if (plan.switched_off_bytes > 0) return "weights were read after all-gathers only, which are switched off";
  return "no weight was read after a collective";
}

}  // namespace

Snapshot SignatureState::snapshot() const {
  return {state_, plan_, table_, Form::kAuto, window_us_.empty(), latched_off_, generation_};
}

bool SignatureState::wants_plan(const ForwardResult& result) const {
  if (result.captured || result.aborted || result.generation != generation_ || state_ == State::kFrozen) return false;
  // Zero collectives is a forward that went another way (a profiling run, a transport not yet up), not a model
  // without collectives: an earlier plan stays.
  if (result.num_collectives == 0) return false;
  return !plan_ || !(recording_ == result.recording);
}

void SignatureState::set_plan(std::shared_ptr<const Plan> plan, std::shared_ptr<Table> table,
                              std::vector<WindowSetting> settings, Recording recording) {
  const auto old_plan = std::exchange(plan_, std::move(plan));
  const auto old_pinned = std::exchange(pinned_, std::vector<bool>(plan_->windows.size(), false));
  for (size_t i = 0; same_sequence(old_plan, plan_) && i < pinned_.size(); ++i) {
    const int old = old_plan->window_index(plan_->windows[i].collective_index);
    pinned_[i] = old >= 0 && old_pinned[old];
  }
  table_ = std::move(table);
  settings_ = std::move(settings);
  recording_ = std::move(recording);
  state_ = State::kPlanned;
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
    reason_ = plan_ ? "the last eager forward saw no collective: the earlier plan stays"
                    : "no collective seen in an eager forward: nothing to learn from";
  } else if (plan_ && plan_->windows.empty()) {
    reason_ = why_no_window(*plan_);
  } else {
    reason_.clear();
  }
}

void SignatureState::finish_capture(const ForwardResult& result) {
  ++num_captures_;
  state_ = State::kFrozen;
  if (latched_off_) return;
  if (!plan_) {
    reason_ = "captured before any eager forward with a collective: this graph runs without prefetch";
  } else if (result.num_collectives != plan_->num_collectives()) {
    reason_ = "mismatch: captured " + std::to_string(result.num_collectives) + " collectives, learned " +
              std::to_string(plan_->num_collectives());
  } else if (result.sequence_differs) {
    reason_ = "mismatch: captured collectives of other kinds than learned";
  } else if (plan_->windows.empty()) {
    reason_ = why_no_window(*plan_);
  } else if (result.num_launched < static_cast<int64_t>(plan_->windows.size())) {
    reason_ = "mismatch: " + std::to_string(result.num_launched) + " of " + std::to_string(plan_->windows.size()) +
              " windows became nodes";
  } else {
    reason_.clear();
  }
}

bool SignatureState::take_window_us() {
  if (timers_.empty() || !plan_ || static_cast<int64_t>(timers_.size()) != plan_->num_collectives()) return false;
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

double SignatureState::window_us(int64_t collective_index) const {
  const auto index = static_cast<size_t>(collective_index);
  return index < window_us_.size() ? window_us_[index] : 0;
}

void SignatureState::latch_off(const std::string& reason) {
  if (latched_off_) return;  // what fails next is likely a consequence
  latched_off_ = true;
  reason_ = "latched off: " + reason;
}

void SignatureState::invalidate() {
  const uint64_t generation = generation_ + 1;
  *this = SignatureState();
  generation_ = generation;
  reason_ = "invalidated: the next eager forward learns again";
}

std::vector<WindowSetting> SignatureState::carried_settings(const Plan& plan,
                                                            const std::vector<WindowSetting>& initial) const {
  auto settings = initial;
  if (!plan_ || plan_->collectives != plan.collectives) return settings;
  for (size_t i = 0; i < plan.windows.size(); ++i) {
    const int old = plan_->window_index(plan.windows[i].collective_index);
    if (old >= 0 && plan_->windows[old].num_bytes == plan.windows[i].num_bytes) settings[i] = settings_[old];
  }
  return settings;
}

}  // namespace l2pf
