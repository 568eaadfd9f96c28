#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "signature.h"

namespace l2pf {

inline constexpr int64_t kAutoBudget = -1;

struct PrefetcherOptions {
  int64_t budget_bytes = kAutoBudget;  // per window
  Form form = Form::kAuto;
  Placement placement = Placement::kAuto;
  int64_t in_flight_bytes = kAutoInFlight;
  int64_t max_tokens = 256;
  bool strict = false;
  PlanOptions plan = {};
};

// Patches one window of a table, on the table's own device.
using Patch = std::function<void(Table&, int window_index, const WindowSetting&)>;

// In strict mode: a signature froze without a window. Raised after the forward, when nothing is outstanding.
class StrictError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The object a user holds: the options and the state of every signature. Thread-safe.
class Prefetcher {
 public:
  explicit Prefetcher(PrefetcherOptions options) : options_(options) {}

  const PrefetcherOptions& options() const { return options_; }
  bool accepts(const Signature& signature) const {
    return !is_paused() && signature.num_tokens <= options_.max_tokens && is_decode_like(signature.mode);
  }

  Snapshot begin(const Signature& signature);
  // `place` is where the forward's last collective on the device of its first one ran; `backend` is null when there
  // was none. Throws StrictError only.
  void finish(const Signature& signature, ForwardResult result, Backend* backend, const Place& place);
  // What failed in a forward from before `invalidate` is ignored: `generation` is that of the forward's snapshot.
  void latch_off(const Signature& signature, uint64_t generation, const std::string& reason);
  // Back to unlearned. `patch` switches off every window of every live table, those of graphs too, and lets go of the
  // weights; without it, or where it fails, graphs go on prefetching what they hold.
  void invalidate(const Patch& patch = nullptr);

  // While paused no forward is accepted, nothing is learned, and every window of every live table is off, those of
  // graphs too. Pauses nest. Throws what `patch` throws, once every table was tried; the pause counts all the same.
  void pause(const Patch& patch);
  // The last resume gives the windows of the present plans their settings back. A signature that `patch` throws for is
  // latched off. Throws std::invalid_argument when not paused.
  void resume(const Patch& patch);
  bool is_paused() const { return num_pauses_.load(std::memory_order_relaxed) > 0; }

  // Patches the table of a learned signature; while paused, what is set here comes with the resume. `budget_bytes`
  // kAutoBudget restores the configured budget; `form` empty keeps the present one. Throws std::invalid_argument
  // (unknown signature or window), BackendError.
  void set_window(const Signature& signature, int64_t collective_index, int64_t budget_bytes, std::optional<Form> form,
                  Backend& backend, const Place& place);

  // Where the signature's plan runs. Throws std::invalid_argument when it has no plan with a window.
  DeviceIndex device_of(const Signature& signature) const;

  // Calls `visit` for each signature in order, under the lock.
  void for_each(const std::function<void(const Signature&, const SignatureState&)>& visit) const;

 private:
  std::vector<std::shared_ptr<Table>> live_tables();
  const SignatureState& planned_locked(const Signature& signature) const;
  PlanOptions plan_options(Backend& backend, DeviceIndex device) const;
  // Bytes of `window` that the configured budget lets through.
  int64_t configured_limit(const Window& window, const SignatureState& state, Backend& backend,
                           DeviceIndex device) const;
  // Once the collectives' lengths are known, the automatic budgets follow them.
  void refresh_budgets(SignatureState& state, Backend& backend, const Place& place);
  [[nodiscard]] Learned learn(SignatureState& state, ForwardResult& result, Backend& backend, const Place& place);

  const PrefetcherOptions options_;
  mutable std::mutex mutex_;
  std::map<Signature, SignatureState> signatures_;
  // Every table made: a graph may still read one that no signature knows any more.
  std::vector<std::weak_ptr<Table>> tables_;
  std::atomic<int> num_pauses_ = 0;
};

}  // namespace l2pf
