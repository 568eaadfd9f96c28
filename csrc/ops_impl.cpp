#include "ops_impl.h"

#include <chrono>
#include <thread>
#include <utility>

#include "forward.h"
#include "ops_checks.h"
#include "ops_tensor.h"
#include "registry.h"
#ifdef L2PF_WITH_CUDA
#include "cuda/emulated_collective.h"
#endif

namespace l2pf::ops {
namespace {

// The budget of a call without one: the current forward's prefetcher knows, else `auto`.
int64_t configured_budget(const Anchor& anchor) {
  const Forward* forward = current_forward();
  const int64_t budget = forward ? forward->options().budget_bytes : kAutoBudget;
  return budget == kAutoBudget ? anchor.backend->auto_budget_bytes(anchor.place.device, 0) : budget;
}

// What a prefetch without a plan brings: the dense part of `weights`, cut to the budget; empty when there is nothing.
Prefetch bare_prefetch(const char* op, const Anchor& at, const std::vector<Tensor>& weights, int64_t budget_bytes) {
  require_at_least(budget_bytes, kAutoBudget, op, "budget_bytes");
  std::vector<Segment> segments;
  for (const Tensor& weight : weights) {
    auto covered = segment_of(weight, op, /*keep_alive=*/true);
    if (covered.device != at.place.device)
      throw bad_argument(op, "weights on the anchor's device " + device_name(at.place.device),
                         "one on " + device_name(covered.device));
    if (covered.segment) segments.push_back(std::move(*covered.segment));
  }
  const int64_t budget = budget_bytes == kAutoBudget ? configured_budget(at) : budget_bytes;
  const Forward* const forward = current_forward();
  const int64_t in_flight_bytes = forward ? forward->options().in_flight_bytes : kAutoInFlight;
  return {nullptr, 0, cut_to_budget(segments, budget), Form::kAuto, {}, in_flight_bytes};
}

// What a captured collective carries in `tensor`; nothing where its view is not dense. Never throws: it is no reason to
// raise in front of a collective, nor to prefetch nothing.
std::optional<Segment> carried_in(const Tensor& tensor, const char* op) noexcept {
  try {
    return segment_of(tensor, op, /*keep_alive=*/false).segment;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::optional<Segment> carried_in(const Forward& forward, const Tensor& tensor, const char* op) {
  return forward.captured() ? carried_in(tensor, op) : std::nullopt;
}

// Runs `body` unless the device is latched off; a device error latches it off and is not raised: the caller may stand
// right before a collective.
template <typename Body>
void guarded(const Anchor& at, const Body& body, bool wanted = true) {
  if (!wanted || device_is_latched_off(at.place.device)) return;
  try {
    body();
  } catch (const std::exception& error) {
    latch_device_off(at.place.device, error.what());
  }
}

// Between window_begin and window_end of a capture.
struct OpenWindow {
  Prefetch prefetch;
  uint64_t capture_id = 0;
};
thread_local std::optional<OpenWindow> open_window;

}  // namespace

void l2_prefetch(Tensor anchor, std::vector<Tensor> weights, int64_t budget_bytes) {
  const Anchor at = anchor_of(anchor, "l2_prefetch", "anchor");
  const Prefetch prefetch = bare_prefetch("l2_prefetch", at, weights, budget_bytes);
  guarded(
      at,
      [&] {
        auto& outstanding = Outstanding::of(*at.backend);
        if (const uint64_t capture_id = at.backend->capture_id(at.place))
          outstanding.attach(prefetch, Placement::kLaunchOrder, at.place, capture_id);
        else
          outstanding.fork(prefetch, at.place);
      },
      !prefetch.segments.empty());
}

void window_begin(Tensor input, std::vector<Tensor> weights, int64_t budget_bytes) {
  const Anchor at = anchor_of(input, "window_begin", "input");
  const Prefetch prefetch = bare_prefetch("window_begin", at, weights, budget_bytes);
  open_window.reset();
  if (current_forward()) return;
  guarded(
      at,
      [&] {
        const uint64_t capture_id = at.backend->capture_id(at.place);
        if (capture_id == 0) {
          Outstanding::of(*at.backend).fork(prefetch, at.place);
        } else {
          at.backend->mark(at.place);
          open_window = {prefetch, capture_id};
          open_window->prefetch.carry(carried_in(input, "window_begin"));
        }
      },
      !prefetch.segments.empty());
}

void window_end(Tensor output) {
  const Anchor at = anchor_of(output, "window_end", "output");
  auto window = std::exchange(open_window, std::nullopt);
  guarded(
      at,
      [&] {
        // A capture that ended in between has no graph to add to any more.
        if (at.backend->capture_id(at.place) != window->capture_id) return;
        window->prefetch.carry(carried_in(output, "window_end"));
        Outstanding::of(*at.backend).attach(window->prefetch, Placement::kAuto, at.place, window->capture_id);
      },
      window.has_value());
}

void join_windows(Tensor anchor) {
  const Forward* forward = current_forward();
  // A capture that began inside the forward, as a CUDA graph tree's does, is over before the forward is.
  if (!forward || (current_stream_is_capturing() && !forward->began_in_capture())) l2_join(anchor);
}

void l2_join(Tensor anchor) {
  const Anchor at = anchor_of(anchor, "l2_join", "anchor");
  guarded(at, [&] { Outstanding::of(*at.backend).join(at.place, at.backend->capture_id(at.place)); });
}

void collective_begin(Tensor input, Text kind) {
  const auto known =
      require_word(collective_kind(kind), "collective_begin", "`kind` to be one of " + collective_kinds(), kind);
  Forward* forward = current_forward();
  if (!forward) return;
  const Anchor at = anchor_of(input, "collective_begin", "input");
  forward->collective_begin(known, *at.backend, at.place, carried_in(*forward, input, "collective_begin"));
}

void collective_end(Tensor output) {
  Forward* forward = current_forward();
  if (!forward) return;
  const Anchor at = anchor_of(output, "collective_end", "output");
  forward->collective_end(*at.backend, at.place, carried_in(*forward, output, "collective_end"));
}

void record_weight(std::vector<Tensor> weights) {
  Forward* forward = current_forward();
  if (!forward || !forward->records()) return;
  for (const Tensor& weight : weights) {
    auto covered = segment_of(weight, "record_weight", /*keep_alive=*/true);
    if (covered.segment || !covered.is_dense) forward->record_weight(std::move(covered.segment), covered.device);
  }
}

void record_unplanned(int64_t num_bytes) {
  require_at_least(num_bytes, 0, "record_unplanned", "num_bytes");
  if (Forward* forward = current_forward()) forward->record_unplanned(num_bytes);
}

bool begin_forward(int64_t prefetcher, int64_t model, int64_t num_tokens, Text mode) {
  require_at_least(num_tokens, 0, "begin_forward", "num_tokens");
  return l2pf::begin_forward(prefetcher, Registry::instance().get(prefetcher), {model, num_tokens, std::move(mode)},
                             current_stream_is_capturing());
}

void end_forward() { l2pf::end_forward(); }

void abort_forward() { l2pf::abort_forward(); }

void emulated_all_reduce(Tensor data, double delay_us, int64_t num_ctas) {
  constexpr const char* op = "emulated_all_reduce";
  if (!(delay_us >= 0 && delay_us <= 1e6)) throw bad_argument(op, "`delay_us` in [0, 1e6]", std::to_string(delay_us));
  require_at_least(num_ctas, 1, op, "num_ctas");
  [[maybe_unused]] const Anchor at = anchor_of(data, op, "data");
#ifdef L2PF_WITH_CUDA
  if (at.place.device != kCpu) {
    const int64_t num_bytes = data.numel() * static_cast<int64_t>(data.element_size());
    EmulatedCollective::instance().launch(data.mutable_data_ptr(), num_bytes, delay_us, static_cast<int>(num_ctas),
                                          at.place);
    return;
  }
#endif
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double, std::micro>(delay_us);
  while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
}

}  // namespace l2pf::ops
