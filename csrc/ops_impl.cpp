#include "ops_impl.h"

#include <chrono>
#include <stdexcept>
#include <thread>

#include "forward.h"
#include "ops_tensor.h"
#include "registry.h"
#include "status.h"
#ifdef L2PF_WITH_CUDA
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
  const int64_t budget =
      forward ? Registry::instance().get(forward->handle())->options().budget_bytes : kAutoBudget;
  return budget == kAutoBudget ? anchor.backend->auto_budget_bytes(anchor.place.device) : budget;
}

}  // namespace

void l2_prefetch(Tensor anchor, std::vector<Tensor> weights, int64_t budget_bytes) {
  require_at_least(budget_bytes, kAutoBudget, "l2_prefetch", "budget_bytes");
  const Anchor at = anchor_of(anchor, "l2_prefetch", "anchor");
  std::vector<Segment> segments;
  for (const Tensor& weight : weights) {
    auto covered = segment_of(weight, "l2_prefetch", /*keep_alive=*/true);
    if (covered.device != at.place.device)
      throw bad_argument("l2_prefetch", "weights on the anchor's device " + device_name(at.place.device),
                         "one on " + device_name(covered.device));
    if (covered.segment) segments.push_back(std::move(*covered.segment));
  }
  if (segments.empty() || device_is_latched_off(at.place.device)) return;
  try {
    const int64_t budget = budget_bytes == kAutoBudget ? configured_budget(at) : budget_bytes;
    const Prefetch prefetch{nullptr, 0, cut_to_budget(segments, budget), Form::kAuto};
    if (prefetch.segments.empty()) return;
    auto& outstanding = Outstanding::of(*at.backend);
    if (const uint64_t capture_id = at.backend->capture_id(at.place))
      outstanding.attach(prefetch, Placement::kAuto, at.place, capture_id);
    else
      outstanding.fork(prefetch, at.place);
  } catch (const BackendError& error) {
    latch_device_off(at.place.device, error.what());
  }
}

void l2_join(Tensor anchor) {
  const Anchor at = anchor_of(anchor, "l2_join", "anchor");
  try {
    Outstanding::of(*at.backend).join(at.place, at.backend->capture_id(at.place));
  } catch (const BackendError& error) {
    latch_device_off(at.place.device, error.what());
  }
}

void collective_begin(Tensor input, std::string kind) {
  const auto known = require_word(collective_kind(kind), "collective_begin", "`kind` to be one of " + collective_kinds(), kind);
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

bool begin_forward(int64_t prefetcher, int64_t model, int64_t num_tokens, std::string mode) {
  require_at_least(num_tokens, 0, "begin_forward", "num_tokens");
  return l2pf::begin_forward(prefetcher, Registry::instance().get(prefetcher), {model, num_tokens, std::move(mode)},
                             current_stream_is_capturing());
}

void end_forward() { l2pf::end_forward(); }

std::string status() {
#ifdef L2PF_WITH_CUDA
  return status_json(L2PF_VERSION, true, used_devices());
#else
  return status_json(L2PF_VERSION, false, used_devices());
#endif
}

int64_t create_prefetcher(int64_t budget_bytes, bool all_gather, std::string form_word, std::string placement_word,
                          int64_t max_tokens, bool back_to_back, bool strict) {
  constexpr const char* op = "create_prefetcher";
  require_at_least(budget_bytes, kAutoBudget, op, "budget_bytes");
  require_at_least(max_tokens, 1, op, "max_tokens");
  PrefetcherOptions options;
  options.budget_bytes = budget_bytes;
  options.form = require_word(form(form_word), op, "`form` to be one of " + forms(), form_word);
  options.placement = require_word(placement(placement_word), op, "`placement` to be one of " + placements(), placement_word);
  options.max_tokens = max_tokens;
  options.strict = strict;
  options.plan = {all_gather, back_to_back};
  return Registry::instance().create(options);
}

void destroy_prefetcher(int64_t prefetcher) { Registry::instance().destroy(prefetcher); }

void invalidate(int64_t prefetcher) { Registry::instance().get(prefetcher)->invalidate(); }

void set_window(int64_t prefetcher, int64_t model, int64_t num_tokens, std::string mode, int64_t collective_index,
                int64_t budget_bytes, std::string form_word) {
  constexpr const char* op = "set_window";
  require_at_least(budget_bytes, kAutoBudget, op, "budget_bytes");
  std::optional<Form> new_form;
  if (!form_word.empty()) new_form = require_word(form(form_word), op, "`form` to be one of " + forms(), form_word);
  const Signature signature{model, num_tokens, std::move(mode)};
  const auto target = Registry::instance().get(prefetcher);
  const DeviceIndex device = target->device_of(signature);
  target->set_window(signature, collective_index, budget_bytes, new_form, backend_of(device), current_place(device));
}

std::vector<int64_t> plan_segments(int64_t prefetcher, int64_t model, int64_t num_tokens, std::string mode) {
  const Signature wanted{model, num_tokens, std::move(mode)};
  std::vector<int64_t> flat;
  Registry::instance().get(prefetcher)->for_each([&](const Signature& signature, const SignatureState& state) {
    if (signature != wanted || !state.plan()) return;
    for (const Window& window : state.plan()->windows)
      for (const Segment& segment : window.segments)
        flat.insert(flat.end(),
                    {window.collective_index, static_cast<int64_t>(segment.address), segment.num_bytes});
  });
  return flat;
}

void emulated_all_reduce(Tensor data, double delay_us, int64_t num_ctas) {
  constexpr const char* op = "emulated_all_reduce";
  if (!(delay_us >= 0 && delay_us <= 1e6))
    throw bad_argument(op, "`delay_us` in [0, 1e6]", std::to_string(delay_us));
  require_at_least(num_ctas, 1, op, "num_ctas");
  [[maybe_unused]] const Anchor at = anchor_of(data, op, "data");
#ifdef L2PF_WITH_CUDA
  if (at.place.device != kCpu) {
    const int64_t num_bytes = data.numel() * static_cast<int64_t>(data.element_size());
    EmulatedCollective::instance().launch(data.mutable_data_ptr(), num_bytes, delay_us, static_cast<int>(num_ctas), at.place);
    return;
  }
#endif
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double, std::micro>(delay_us);
  while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
}

}  // namespace l2pf::ops
