#include <cstring>
#include <utility>

#include "ops_checks.h"
#include "ops_impl.h"
#include "ops_tensor.h"
#include "outstanding.h"
#include "registry.h"
#include "status.h"

// The operators that make, change and show prefetchers; none is in a model's code.
namespace l2pf::ops {
namespace {

void patch_where_it_lives(Table& table, int window_index, const WindowSetting& setting) {
  const DeviceIndex device = table.device();
  backend_of(device).patch_table(table, window_index, setting, current_place(device));
}

}  // namespace

std::string status() {
#ifdef L2PF_WITH_CUDA
  return status_json(L2PF_VERSION, true, used_devices());
#else
  return status_json(L2PF_VERSION, false, used_devices());
#endif
}

std::vector<int64_t> status_words() {
  const std::string text = status();
  std::vector<int64_t> words(1 + (text.size() + sizeof(int64_t) - 1) / sizeof(int64_t));
  words[0] = static_cast<int64_t>(text.size());
  std::memcpy(words.data() + 1, text.data(), text.size());
  return words;
}

int64_t create_prefetcher(int64_t budget_bytes, bool all_gather, Text form_word, Text placement_word,
                          int64_t max_tokens, bool back_to_back, bool strict, int64_t in_flight_bytes) {
  constexpr const char* op = "create_prefetcher";
  require_at_least(budget_bytes, kAutoBudget, op, "budget_bytes");
  require_at_least(max_tokens, 1, op, "max_tokens");
  require_at_least(in_flight_bytes, kAutoInFlight, op, "in_flight_bytes");
  if (in_flight_bytes > 0) require_at_least(in_flight_bytes, kLeastInFlightBytes, op, "in_flight_bytes");
  PrefetcherOptions options;
  options.budget_bytes = budget_bytes;
  options.form = require_word(form(form_word), op, "`form` to be one of " + forms(), form_word);
  options.placement =
      require_word(placement(placement_word), op, "`placement` to be one of " + placements(), placement_word);
  options.in_flight_bytes = in_flight_bytes;
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

}  // namespace l2pf::ops
