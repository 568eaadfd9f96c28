#include "forward.h"

#include <utility>

namespace l2pf {

Forward::Forward(int64_t handle, std::shared_ptr<Prefetcher> prefetcher, Signature signature, bool capturing)
    : handle_(handle),
      prefetcher_(std::move(prefetcher)),
      signature_(std::move(signature)),
      snapshot_(prefetcher_->begin(signature_)),
      began_in_capture_(capturing),
      captured_(capturing) {}

int Forward::window_for(CollectiveKind kind, DeviceIndex device) {
  if (!snapshot_.plan) return -1;
  const auto& collectives = snapshot_.plan->collectives;
  const int64_t index = num_collectives_ - 1;
  if (index >= static_cast<int64_t>(collectives.size()) || collectives[index] != kind) {
    sequence_differs_ = true;
    return -1;
  }
  // From the first difference on, positions no longer mean what they meant when the plan was learned.
  if (sequence_differs_ || !snapshot_.table || snapshot_.plan->device != device) return -1;
  return snapshot_.plan->window_index(index);
}

bool Forward::is_backed(int window_index) {
  const bool backed = snapshot_.plan->windows[window_index].is_backed();
  num_unbacked_ += !backed;
  return backed;
}

Prefetch Forward::prefetch(int window_index) const { return {snapshot_.table, window_index, {}, snapshot_.form}; }

void Forward::follow_capture() {
  const uint64_t now = backend_->capture_id(place_);
  if (now != capture_id_) Outstanding::of(*backend_).forget_capture(place_.device, capture_id_);
  capture_id_ = now;
}

template <typename Call>
void Forward::guarded(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    snapshot_.latched_off = true;
    prefetcher_->latch_off(signature_, snapshot_.generation, error.what());
  }
}

void Forward::collective_begin(CollectiveKind kind, Backend& backend, const Place& place,
                               const std::optional<Segment>& input) {
  ++num_collectives_;
  if (records()) recording_.open_collective(kind, place.device);
  open_window_index_ = -1;
  const int window_index = window_for(kind, place.device);
  if (!backend_)
    backend_ = &backend;
  else if (place.device != place_.device)
    return;
  place_ = place;
  if (snapshot_.latched_off) return;
  guarded([&] {
    follow_capture();
    if (capture_id_ != 0) {
      captured_ = true;
      if (window_index < 0) return;
      if (snapshot_.is_off[window_index]) {
        ++num_off_;
        return;
      }
      if (!is_backed(window_index)) return;
      backend.mark(place);
      open_window_index_ = window_index;
      open_input_ = input;
      return;
    }
    auto& outstanding = Outstanding::of(backend);
    outstanding.join(place, 0);
    if (window_index >= 0 && is_backed(window_index)) {
      outstanding.fork(prefetch(window_index), place);
      ++num_launched_;
    }
    if (snapshot_.wants_window_us) {
      timers_.push_back(backend.start_timer(place));
      timer_runs_ = true;
    }
  });
}

void Forward::collective_end(Backend& backend, const Place& place, const std::optional<Segment>& output) {
  const int window_index = std::exchange(open_window_index_, -1);
  const bool timer_runs = std::exchange(timer_runs_, false);
  if (snapshot_.latched_off || place.device != place_.device) return;
  guarded([&] {
    if (timer_runs) timers_.back()->stop(place);
    if (window_index < 0) return;
    // The capture ended between begin and end: there is no graph to add to any more.
    if (backend.capture_id(place) != capture_id_) return;
    Prefetch own = prefetch(window_index);
    own.carry(open_input_);
    own.carry(output);
    Outstanding::of(backend).attach(own, prefetcher_->options().placement, place, capture_id_);
    ++num_launched_;
  });
}

void Forward::record_weight(const RecordedWeight& weight, DeviceIndex device) {
  if (!records()) return;
  if (weight)
    recording_.add_segment(*weight, device);
  else
    recording_.skip_view();
}

void Forward::close() {
  if (backend_) {
    guarded([&] { follow_capture(); });
    guarded([&] { Outstanding::of(*backend_).join(place_, capture_id_); });
  }
  ForwardResult result{.captured = captured_,
                       .aborted = aborted_,
                       .num_collectives = num_collectives_,
                       .num_launched = num_launched_,
                       .num_off = num_off_,
                       .num_unbacked = num_unbacked_,
                       .sequence_differs = sequence_differs_,
                       .recording = std::move(recording_),
                       .timers = std::move(timers_),
                       .generation = snapshot_.generation};
  prefetcher_->finish(signature_, std::move(result), backend_, place_);
}

namespace {

struct Brackets {
  std::optional<Forward> forward;
  int num_ignored_inside = 0;   // begun while `forward` was open
  int num_ignored_outside = 0;  // not accepted, and no forward open
};

Brackets& brackets() {
  thread_local Brackets brackets;
  return brackets;
}

}  // namespace

bool begin_forward(int64_t handle, std::shared_ptr<Prefetcher> prefetcher, Signature signature, bool capturing) {
  auto& own = brackets();
  if (own.forward) {
    ++own.num_ignored_inside;
    return false;
  }
  if (!prefetcher->accepts(signature)) {
    ++own.num_ignored_outside;
    return false;
  }
  own.forward.emplace(handle, std::move(prefetcher), std::move(signature), capturing);
  return true;
}

void end_forward() {
  auto& own = brackets();
  if (own.forward) {
    if (own.num_ignored_inside > 0) {
      --own.num_ignored_inside;
      return;
    }
    // Taken out first: a StrictError must not leave the forward open.
    Forward forward = std::move(*own.forward);
    own.forward.reset();
    forward.close();
  } else if (own.num_ignored_outside > 0) {
    --own.num_ignored_outside;
  }
}

void abort_forward() {
  if (auto& own = brackets(); own.forward && own.num_ignored_inside == 0) own.forward->abort();
  end_forward();
}

Forward* current_forward() {
  auto& own = brackets();
  return own.forward ? &*own.forward : nullptr;
}

}  // namespace l2pf
