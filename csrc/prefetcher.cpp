#include "prefetcher.h"

#include <algorithm>

namespace l2pf {

Snapshot Prefetcher::begin(const Signature& signature) {
  const std::lock_guard lock(mutex_);
  auto snapshot = signatures_[signature].snapshot();
  snapshot.form = options_.form;
  return snapshot;
}

void Prefetcher::finish(const Signature& signature, ForwardResult result, Backend* backend, const Place& place) {
  const std::lock_guard lock(mutex_);
  auto& state = signatures_[signature];
  if (backend && !state.latched_off() && state.wants_plan(result)) learn(state, result, *backend, place);
  const bool was_frozen = state.state() == State::kFrozen;
  state.finish(result);
  if (options_.strict && !was_frozen && state.state() == State::kFrozen && result.num_launched == 0)
    throw StrictError("dsv41_l2pf (strict): the captured forward of " + std::to_string(signature.num_tokens) +
                      " tokens, mode " + signature.mode + ", has no window: " + state.reason());
}

void Prefetcher::learn(SignatureState& state, ForwardResult& result, Backend& backend, const Place& place) {
  try {
    auto plan = std::make_shared<const Plan>(make_plan(result.recording, options_.plan));
    const int64_t budget_bytes = configured_budget(backend, plan->device);
    std::vector<WindowSetting> initial;
    for (const auto& window : plan->windows)
      initial.push_back({std::min(window.num_bytes, budget_bytes), options_.form});
    auto settings = state.carried_settings(*plan, initial);
    auto table = plan->windows.empty() ? nullptr : backend.make_table(plan, settings, place);
    state.set_plan(std::move(plan), std::move(table), std::move(settings), std::move(result.recording));
  } catch (const BackendError& error) {
    state.latch_off(error.what());
  }
}

void Prefetcher::latch_off(const Signature& signature, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  signatures_[signature].latch_off(reason);
}

void Prefetcher::invalidate() {
  const std::lock_guard lock(mutex_);
  for (auto& [signature, state] : signatures_) state.invalidate();
}

const SignatureState& Prefetcher::planned_locked(const Signature& signature) const {
  const auto it = signatures_.find(signature);
  if (it == signatures_.end() || !it->second.table())
    throw std::invalid_argument("expected a signature with a plan, got model " + std::to_string(signature.model) +
                                ", " + std::to_string(signature.num_tokens) + " tokens, mode " + signature.mode);
  return it->second;
}

DeviceIndex Prefetcher::device_of(const Signature& signature) const {
  const std::lock_guard lock(mutex_);
  return planned_locked(signature).plan()->device;
}

void Prefetcher::set_window(const Signature& signature, int64_t collective_index, int64_t budget_bytes,
                            std::optional<Form> form, Backend& backend, const Place& place) {
  const std::lock_guard lock(mutex_);
  planned_locked(signature);
  auto& state = signatures_[signature];
  const int window_index = state.plan()->window_index(collective_index);
  if (window_index < 0)
    throw std::invalid_argument("expected a collective index that has a window, got " +
                                std::to_string(collective_index));
  const auto& window = state.plan()->windows[window_index];
  const int64_t budget =
      budget_bytes == kAutoBudget ? configured_budget(backend, state.plan()->device) : budget_bytes;
  auto setting = state.settings()[window_index];
  setting.byte_limit = std::min(window.num_bytes, budget);
  if (form) setting.form = *form;
  backend.patch_table(*state.table(), window_index, setting, place);
  state.set_setting(window_index, setting);
}

void Prefetcher::for_each(const std::function<void(const Signature&, const SignatureState&)>& visit) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [signature, state] : signatures_) visit(signature, state);
}

int64_t Prefetcher::configured_budget(Backend& backend, DeviceIndex device) const {
  return options_.budget_bytes == kAutoBudget ? backend.auto_budget_bytes(device) : options_.budget_bytes;
}

}  // namespace l2pf
