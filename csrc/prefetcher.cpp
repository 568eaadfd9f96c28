#include "prefetcher.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace l2pf {

Snapshot Prefetcher::begin(const Signature& signature) {
  const std::lock_guard lock(mutex_);
  auto snapshot = signatures_[signature].snapshot();
  snapshot.form = options_.form;
  // The length of a collective matters to nothing but an automatic budget.
  snapshot.wants_window_us = snapshot.wants_window_us && options_.budget_bytes == kAutoBudget;
  return snapshot;
}

void Prefetcher::finish(const Signature& signature, ForwardResult result, Backend* backend, const Place& place) {
  Learned replaced;  // released after the lock
  const std::lock_guard lock(mutex_);
  auto& state = signatures_[signature];
  // What pauses meanwhile may have replaced the weights that this forward saw.
  if (is_paused() && !result.captured) result.aborted = true;
  if (backend && !state.latched_off() && !is_paused()) {
    if (state.wants_plan(result)) replaced = learn(state, result, *backend, place);
    // The timers still are those of the forward before: this one's are not done yet.
    if (!result.captured) refresh_budgets(state, *backend, place);
  }
  const bool was_frozen = state.state() == State::kFrozen;
  state.finish(result);
  if (options_.strict && !was_frozen && state.state() == State::kFrozen && result.num_launched == 0 &&
      result.num_off == 0)
    throw StrictError("dsv41_l2pf (strict): the captured forward of " + std::to_string(signature.num_tokens) +
                      " tokens, mode " + signature.mode + ", has no window: " + state.reason());
}

Learned Prefetcher::learn(SignatureState& state, ForwardResult& result, Backend& backend, const Place& place) {
  try {
    auto plan = std::make_shared<const Plan>(make_plan(result.recording, plan_options(backend, place.device)));
    state.forget_lengths_unless_of(*plan);
    std::vector<WindowSetting> initial;
    for (const auto& window : plan->windows)
      initial.push_back(
          {configured_limit(window, state, backend, plan->device), options_.form, options_.in_flight_bytes});
    auto settings = state.carried_settings(*plan, initial);
    auto table = plan->windows.empty() ? nullptr : backend.make_table(plan, settings, place);
    std::erase_if(tables_, [](const auto& made) { return made.expired(); });
    if (table) tables_.push_back(table);
    return state.learn({std::move(plan), std::move(table), std::move(settings), {}, std::move(result.recording)});
  } catch (const std::exception& error) {
    state.latch_off(error.what());
    return {};
  }
}

void Prefetcher::refresh_budgets(SignatureState& state, Backend& backend, const Place& place) {
  try {
    if (!state.take_window_us()) return;
    for (size_t i = 0; state.table() && i < state.plan()->windows.size(); ++i) {
      const int window_index = static_cast<int>(i);
      auto setting = state.settings()[i];
      setting.byte_limit = configured_limit(state.plan()->windows[i], state, backend, place.device);
      if (state.pinned(window_index) || setting == state.settings()[i]) continue;
      backend.patch_table(*state.table(), window_index, setting, place);
      state.set_setting(window_index, setting);
    }
  } catch (const std::exception& error) {
    state.latch_off(error.what());
  }
}

void Prefetcher::latch_off(const Signature& signature, uint64_t generation, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  auto& state = signatures_[signature];
  if (state.generation() == generation) state.latch_off(reason);
}

namespace {

void switch_off(Table& table, const Patch& patch) {
  for (int i = 0; i < table.num_windows(); ++i) patch(table, i, {0, Form::kAuto});
}

}  // namespace

std::vector<std::shared_ptr<Table>> Prefetcher::live_tables() {
  std::vector<std::shared_ptr<Table>> live;
  for (const auto& made : tables_)
    if (auto table = made.lock()) live.push_back(std::move(table));
  return live;
}

void Prefetcher::invalidate(const Patch& patch) {
  std::vector<Learned> dying;  // these are released after the lock
  std::vector<std::shared_ptr<Table>> live;
  std::vector<std::shared_ptr<const Plan>> retired;
  const std::lock_guard lock(mutex_);
  for (auto& [signature, state] : signatures_) dying.push_back(state.invalidate());
  if (!patch) return;
  live = live_tables();
  for (const auto& table : live) {
    try {
      switch_off(*table, patch);
      retired.push_back(table->retire());
    } catch (const BackendError&) {
      // Its windows are as they were, and so is its hold on what they read.
    }
  }
}

void Prefetcher::pause(const Patch& patch) {
  std::vector<std::shared_ptr<Table>> live;  // released after the lock
  std::exception_ptr first_error;
  const std::lock_guard lock(mutex_);
  if (++num_pauses_ > 1) return;
  live = live_tables();
  for (const auto& table : live) {
    try {
      switch_off(*table, patch);
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  }
  if (first_error) std::rethrow_exception(first_error);
}

void Prefetcher::resume(const Patch& patch) {
  const std::lock_guard lock(mutex_);
  if (!is_paused()) throw std::invalid_argument("expected a paused prefetcher, got one that is not paused");
  if (--num_pauses_ > 0) return;
  for (auto& [signature, state] : signatures_) {
    if (!state.table()) continue;
    try {
      for (size_t i = 0; i < state.settings().size(); ++i)
        patch(*state.table(), static_cast<int>(i), state.settings()[i]);
    } catch (const std::exception& error) {
      state.latch_off(error.what());
    }
  }
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
  auto setting = state.settings()[window_index];
  setting.byte_limit = budget_bytes == kAutoBudget ? configured_limit(window, state, backend, state.plan()->device)
                                                   : std::min(window.num_bytes, budget_bytes);
  if (form) setting.form = *form;
  if (!is_paused()) backend.patch_table(*state.table(), window_index, setting, place);
  state.set_setting(window_index, setting);
  state.pin(window_index);
}

void Prefetcher::for_each(const std::function<void(const Signature&, const SignatureState&)>& visit) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [signature, state] : signatures_) visit(signature, state);
}

PlanOptions Prefetcher::plan_options(Backend& backend, DeviceIndex device) const {
  auto options = options_.plan;
  options.unplanned_limit_bytes = backend.device_info(device).l2_bytes / 2;
  return options;
}

int64_t Prefetcher::configured_limit(const Window& window, const SignatureState& state, Backend& backend,
                                     DeviceIndex device) const {
  const int64_t budget_bytes = options_.budget_bytes == kAutoBudget
                                   ? backend.auto_budget_bytes(device, state.window_us(window.collective_index))
                                   : options_.budget_bytes;
  return std::min(window.num_bytes, budget_bytes);
}

}  // namespace l2pf
