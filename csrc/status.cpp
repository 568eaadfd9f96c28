#include "status.h"

#include <algorithm>

#include "forward.h"
#include "json.h"
#include "outstanding.h"
#include "registry.h"

namespace l2pf {
namespace {

void write_footprint(JsonWriter& json, const std::optional<Footprint>& footprint) {
  json.key("footprint");
  if (!footprint) {
    json.null();
    return;
  }
  json.begin_object()
      .member("num_ctas", footprint->num_ctas)
      .member("num_threads", footprint->num_threads)
      .member("num_registers", footprint->num_registers)
      .member("shared_bytes", footprint->shared_bytes)
      .member("in_flight_bytes", footprint->in_flight_bytes)
      .end_object();
}

void write_forms(JsonWriter& json, const std::vector<Form>& forms) {
  json.key("forms").begin_array();
  for (const Form form : forms) json.value(to_string(form));
  json.end_array();
}

void write_device(JsonWriter& json, const UsedDevice& used) {
  DeviceInfo info;
  std::string error = used.error;
  try {
    info = used.backend->device_info(used.index);
  } catch (const std::exception& failure) {
    if (error.empty()) error = failure.what();
  }
  json.begin_object().member("device", used.device).member("name", info.name).member("l2_bytes", info.l2_bytes);
  write_forms(json, info.forms);
  write_footprint(json, info.footprint);
  json.member("outstanding", Outstanding::of(*used.backend).in_eager(used.index)).member("error", error).end_object();
}

void write_signature_key(JsonWriter& json, const Signature& signature) {
  json.member("model", signature.model).member("num_tokens", signature.num_tokens).member("mode", signature.mode);
}

void write_windows(JsonWriter& json, const SignatureState& state, bool paused) {
  json.key("windows").begin_array();
  for (size_t i = 0; state.plan() && i < state.plan()->windows.size(); ++i) {
    const Window& window = state.plan()->windows[i];
    json.begin_object()
        .member("collective_index", window.collective_index)
        .member("kind", to_string(window.kind))
        .member("num_segments", window.segments.size())
        .member("window_bytes", window.num_bytes)
        .member("budget_bytes", paused ? 0 : state.settings()[i].byte_limit)
        .member("form", to_string(state.settings()[i].form))
        .member("window_us", state.window_us(window.collective_index))
        .end_object();
  }
  json.end_array();
}

int64_t planned_bytes(const SignatureState& state) {
  int64_t planned = 0;
  for (const auto& setting : state.settings()) planned += setting.byte_limit;
  return planned;
}

void write_signature(JsonWriter& json, const Signature& signature, const SignatureState& state, bool paused) {
  json.begin_object();
  write_signature_key(json, signature);
  const Plan* plan = state.plan().get();
  json.member("state", to_string(state.state()))
      .member("reason", state.reason())
      .member("latched_off", state.latched_off())
      .member("num_collectives", plan ? plan->num_collectives() : 0)
      .member("num_windows", plan ? plan->windows.size() : 0)
      .member("planned_bytes", paused ? 0 : planned_bytes(state))
      .member("prologue_bytes", plan ? plan->dropped_prologue_bytes : 0)
      .member("evicted_bytes", plan ? plan->evicted_bytes : 0)
      .member("num_other_device", plan ? plan->num_other_device : 0)
      .member("num_skipped_views", state.num_skipped_views())
      .member("num_eager", state.num_eager())
      .member("num_captures", state.num_captures())
      .member("num_launched", state.num_launched());
  write_windows(json, state, paused);
  json.end_object();
}

void write_prefetcher(JsonWriter& json, int64_t handle, const Prefetcher& prefetcher) {
  const PrefetcherOptions& options = prefetcher.options();
  json.begin_object()
      .member("prefetcher", handle)
      .member("budget_bytes", options.budget_bytes)
      .member("all_gather", options.plan.all_gather)
      .member("form", to_string(options.form))
      .member("placement", to_string(options.placement))
      .member("in_flight_bytes", options.in_flight_bytes)
      .member("max_tokens", options.max_tokens)
      .member("back_to_back", options.plan.back_to_back)
      .member("strict", options.strict)
      .member("paused", prefetcher.is_paused())
      .key("signatures")
      .begin_array();
  prefetcher.for_each([&](const Signature& signature, const SignatureState& state) {
    write_signature(json, signature, state, prefetcher.is_paused());
  });
  json.end_array().end_object();
}

void write_forward(JsonWriter& json) {
  json.key("forward");
  const Forward* forward = current_forward();
  if (!forward) {
    json.null();
    return;
  }
  json.begin_object().member("prefetcher", forward->handle());
  write_signature_key(json, forward->signature());
  json.member("num_collectives", forward->num_collectives()).end_object();
}

}  // namespace

std::string status_json(std::string_view version, bool cuda_built, const std::vector<UsedDevice>& devices) noexcept {
  try {
    JsonWriter json;
    json.begin_object().member("version", version).member("cuda_built", cuda_built);
    write_forms(json, {Form::kBulk, Form::kLines, Form::kLoad, Form::kLoadKeep, Form::kLoadBoth});
    json.key("devices").begin_array();
    for (const auto& device : devices) write_device(json, device);
    json.end_array();
    write_forward(json);
    json.key("prefetchers").begin_array();
    for (const auto& [handle, prefetcher] : Registry::instance().all()) write_prefetcher(json, handle, *prefetcher);
    json.end_array().end_object();
    return json.text();
  } catch (...) {
    return R"({"error":"out of memory while writing the status"})";
  }
}

}  // namespace l2pf
