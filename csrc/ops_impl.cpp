#include "ops_impl.h"

#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "forward.h"
#include "ops_tensor.h"
#include "registry.h"
#include "status.h"
#ifdef L2PF_WITH_CUDA
#include "cuda/calibration.h"
#include "cuda/cuda_backend.h"
#include "cuda/emulated_collective.h"
#endif

namespace l2pf::ops {
namespace {

std::invalid_argument bad_argument(const std::string& op, const std::string& expected, const std::string& got) {
  return std::invalid_argument("dsv41::" + op + ": expected " + expected + ", got " + got);
}

template <typename T>
T require_word(std::optional<T> word, const char* op, const std::string& expected, const std::string& got) {
  if (!word) throw bad_argument(op, expected, "'" + got + "'");
  return *word;
}

void require_at_least(int64_t value, int64_t least, const char* op, const std::string& name) {
  if (value < least)
    throw bad_argument(op, "`" + name + "` of at least " + std::to_string(least), std::to_string(value));
}

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
  return {nullptr, 0, cut_to_budget(segments, budget), Form::kAuto};
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

void patch_where_it_lives(Table& table, int window_index, const WindowSetting& setting) {
  const DeviceIndex device = table.device();
  backend_of(device).patch_table(table, window_index, setting, current_place(device));
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
        }
      },
      !prefetch.segments.empty());
}

void window_end(Tensor output) {
  const Anchor at = anchor_of(output, "window_end", "output");
  const auto window = std::exchange(open_window, std::nullopt);
  guarded(
      at,
      [&] {
        // A capture that ended in between has no graph to add to any more.
        if (at.backend->capture_id(at.place) != window->capture_id) return;
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
  forward->collective_begin(known, *at.backend, at.place);
}

void collective_end(Tensor output) {
  Forward* forward = current_forward();
  if (!forward) return;
  const Anchor at = anchor_of(output, "collective_end", "output");
  forward->collective_end(*at.backend, at.place);
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

std::string status() {
#ifdef L2PF_WITH_CUDA
  return status_json(L2PF_VERSION, true, used_devices());
#else
  return status_json(L2PF_VERSION, false, used_devices());
#endif
}

int64_t create_prefetcher(int64_t budget_bytes, bool all_gather, Text form_word, Text placement_word,
                          int64_t max_tokens, bool back_to_back, bool strict) {
  constexpr const char* op = "create_prefetcher";
  require_at_least(budget_bytes, kAutoBudget, op, "budget_bytes");
  require_at_least(max_tokens, 1, op, "max_tokens");
  PrefetcherOptions options;
  options.budget_bytes = budget_bytes;
  options.form = require_word(form(form_word), op, "`form` to be one of " + forms(), form_word);
  options.placement =
      require_word(placement(placement_word), op, "`placement` to be one of " + placements(), placement_word);
  options.max_tokens = max_tokens;
  options.strict = strict;
  options.plan = {all_gather, back_to_back};
  return Registry::instance().create(options);
}

void destroy_prefetcher(int64_t prefetcher) { Registry::instance().destroy(prefetcher); }

void invalidate(int64_t prefetcher) {
  const auto target = Registry::instance().get(prefetcher);
  // A capturing stream takes no copies: its graph and earlier ones then go on with what they hold.
  target->invalidate(current_stream_is_capturing() ? Patch() : Patch(patch_where_it_lives));
}

void pause(int64_t prefetcher) {
  const auto target = Registry::instance().get(prefetcher);
  if (current_stream_is_capturing()) throw bad_argument("pause", "no capture in progress", "a capturing stream");
  target->pause(patch_where_it_lives);
  for (const UsedDevice& used : used_devices())
    Outstanding::of(*used.backend).join(current_place(used.index), /*capture_id=*/0);
}

void resume(int64_t prefetcher) {
  const auto target = Registry::instance().get(prefetcher);
  if (current_stream_is_capturing()) throw bad_argument("resume", "no capture in progress", "a capturing stream");
  target->resume(patch_where_it_lives);
}

void set_window(int64_t prefetcher, int64_t model, int64_t num_tokens, Text mode, int64_t collective_index,
                int64_t budget_bytes, Text form_word) {
  constexpr const char* op = "set_window";
  require_at_least(budget_bytes, kAutoBudget, op, "budget_bytes");
  std::optional<Form> new_form;
  if (!form_word.empty()) new_form = require_word(form(form_word), op, "`form` to be one of " + forms(), form_word);
  const Signature signature{model, num_tokens, std::move(mode)};
  const auto target = Registry::instance().get(prefetcher);
  const DeviceIndex device = target->device_of(signature);
  target->set_window(signature, collective_index, budget_bytes, new_form, backend_of(device), current_place(device));
}

std::vector<int64_t> plan_segments(int64_t prefetcher, int64_t model, int64_t num_tokens, Text mode) {
  const Signature wanted{model, num_tokens, std::move(mode)};
  std::vector<int64_t> flat;
  Registry::instance().get(prefetcher)->for_each([&](const Signature& signature, const SignatureState& state) {
    if (signature != wanted || !state.plan()) return;
    for (const Window& window : state.plan()->windows)
      for (const Segment& segment : window.segments)
        flat.insert(flat.end(), {window.collective_index, static_cast<int64_t>(segment.address), segment.num_bytes});
  });
  return flat;
}

#ifdef L2PF_WITH_CUDA

// More than any device has; what comes from a file is not believed further.
constexpr int64_t kMaxPieceBytes = 1 << 24;
constexpr double kMaxFillGbps = 1e6;

std::string calibration_key(int64_t device) {
  require_at_least(device, 0, "calibration_key", "device");
  return to_json(l2pf::calibration_key(static_cast<DeviceIndex>(device)), L2PF_VERSION);
}

std::string calibrate(int64_t device) {
  require_at_least(device, 0, "calibrate", "device");
  if (current_stream_is_capturing()) throw bad_argument("calibrate", "no capture in progress", "a capturing stream");
  return to_json(l2pf::calibrate(static_cast<DeviceIndex>(device)), L2PF_VERSION);
}

void apply_calibration(int64_t device, Text form_word, int64_t num_ctas, int64_t piece_bytes, int64_t start_delay_ns,
                       int64_t hot_knee_bytes, double fill_gbps, std::vector<int64_t> partition_of_sm) {
  constexpr const char* op = "apply_calibration";
  require_at_least(device, 0, op, "device");
  require_at_least(num_ctas, 1, op, "num_ctas");
  require_at_least(piece_bytes, kSegmentAlignment, op, "piece_bytes");
  require_at_least(hot_knee_bytes, 0, op, "hot_knee_bytes");
  if (piece_bytes > kMaxPieceBytes)
    throw bad_argument(op, "`piece_bytes` of at most " + std::to_string(kMaxPieceBytes), std::to_string(piece_bytes));
  if (!(fill_gbps >= 0 && fill_gbps <= kMaxFillGbps))
    throw bad_argument(op, "`fill_gbps` in [0, 1e6]", std::to_string(fill_gbps));
  if (start_delay_ns < 0 || start_delay_ns > 100'000)
    throw bad_argument(op, "`start_delay_ns` in [0, 100000]", std::to_string(start_delay_ns));
  const auto known = require_word(form(form_word), op, "`form` to be one of " + forms(), form_word);
  auto& backend = CudaBackend::instance();
  const auto index = static_cast<DeviceIndex>(device);
  if (num_ctas > 4 * backend.num_sms(index))
    throw bad_argument(op, "`num_ctas` of at most four an SM", std::to_string(num_ctas));
  if (piece_bytes % kSegmentAlignment != 0)
    throw bad_argument(op, "`piece_bytes` to be a multiple of 16", std::to_string(piece_bytes));
  for (const int64_t partition : partition_of_sm)
    if (partition != 0 && partition != 1) throw bad_argument(op, "partitions 0 and 1", std::to_string(partition));
  backend.apply(index, {known, static_cast<int>(num_ctas), static_cast<int>(piece_bytes),
                        static_cast<int>(start_delay_ns), hot_knee_bytes, fill_gbps, std::move(partition_of_sm)});
}

#else

std::string calibration_key(int64_t) {
  throw bad_argument("calibration_key", "a build with its CUDA half", "one without");
}

std::string calibrate(int64_t) { throw bad_argument("calibrate", "a build with its CUDA half", "one without"); }

void apply_calibration(int64_t, Text, int64_t, int64_t, int64_t, int64_t, double, std::vector<int64_t>) {
  throw bad_argument("apply_calibration", "a build with its CUDA half", "one without");
}

#endif

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
