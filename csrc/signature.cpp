#include "signature.h"

namespace l2pf {

std::string_view to_string(State state) {
  switch (state) {
    case State::kUnlearned: return "unlearned";
    case State::kPlanned: return "planned";
    case State::kFrozen: return "frozen";
  }
  return "?";
}

Snapshot SignatureState::snapshot() const {
  return {state_, plan_, table_, Form::kAuto, latched_off_, generation_};
}

bool SignatureState::wants_plan(const ForwardResult& result) const {
  if (result.captured || result.generation != generation_ || state_ == State::kFrozen) return false;
  // Zero collectives is a forward that went another way (a profiling run, a transport not yet up), not a model
  // without collectives: an earlier plan stays.
  if (result.num_collectives == 0) return false;
  return !plan_ || !(recording_ == result.recording);
}

void SignatureState::set_plan(std::shared_ptr<const Plan> plan, std::shared_ptr<Table> table,
                              std::vector<WindowSetting> settings, Recording recording) {
  plan_ = std::move(plan);
  table_ = std::move(table);
  settings_ = std::move(settings);
  recording_ = std::move(recording);
  state_ = State::kPlanned;
}

void SignatureState::finish(const ForwardResult& result) {
  if (result.generation != generation_) return;
  num_launched_ = result.num_launched;
  if (result.captured) {
    finish_capture(result);
    return;
  }
  ++num_eager_;
  if (latched_off_ || state_ == State::kFrozen) return;
  if (result.num_collectives == 0) {
    reason_ = plan_ ? "the last eager forward saw no collective: the earlier plan stays"
                    : "no collective seen in an eager forward: nothing to learn from";
  } else if (plan_ && plan_->windows.empty()) {
    reason_ = "no weight was read after a collective";
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
    reason_ = "no weight was read after a collective";
  } else if (result.num_launched < static_cast<int64_t>(plan_->windows.size())) {
    reason_ = "mismatch: " + std::to_string(result.num_launched) + " of " + std::to_string(plan_->windows.size()) +
              " windows became nodes";
  } else {
    reason_.clear();
  }
}

void SignatureState::latch_off(const std::string& reason) {
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
