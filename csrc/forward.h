#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "outstanding.h"
#include "prefetcher.h"

namespace l2pf {

// A weight as an operator saw it; empty when its view is not dense.
using RecordedWeight = std::optional<Segment>;

// One decode-like forward of this thread, on the device of its first collective: those on another device are numbered
// and nothing more. No method throws except close: an error latches the signature off, because raising on one rank
// right before a collective would leave its peers waiting.
class Forward {
 public:
  Forward(int64_t handle, std::shared_ptr<Prefetcher> prefetcher, Signature signature, bool capturing);

  // `input` and `output`: what the collective carries, where `captured`; nothing where its view is not dense.
  void collective_begin(CollectiveKind kind, Backend& backend, const Place& place,
                        const std::optional<Segment>& input = {});
  void collective_end(Backend& backend, const Place& place, const std::optional<Segment>& output = {});
  // Whether a collective of it was captured, or its begin was.
  bool captured() const { return captured_; }
  bool records() const { return !captured_ && snapshot_.state != State::kFrozen; }
  void record_weight(const RecordedWeight& weight, DeviceIndex device);
  void record_unplanned(int64_t num_bytes) {
    if (records()) recording_.add_unplanned(num_bytes);
  }
  // The model raised: what was seen is not the whole forward, and nothing is learned from it.
  void abort() { aborted_ = true; }
  // Joins what is outstanding, then hands the recording back. Throws StrictError only.
  void close();

  int64_t handle() const { return handle_; }
  // Of its prefetcher, which the forward keeps alive.
  const PrefetcherOptions& options() const { return prefetcher_->options(); }
  const Signature& signature() const { return signature_; }
  int64_t num_collectives() const { return num_collectives_; }
  // Whether its own end is still inside the capture that its operators are in, if any.
  bool began_in_capture() const { return began_in_capture_; }

 private:
  // Whether the window may be launched; counts it when its weights are gone.
  bool is_backed(int window_index);
  // The plan's window for the collective just numbered, or -1: no plan, past the plan, or not what was learned.
  int window_for(CollectiveKind kind, DeviceIndex device);
  Prefetch prefetch(int window_index) const;
  // Asks which capture the stream is in now. A prefetch left in one that has ended belongs to its graph.
  void follow_capture();
  template <typename Call>
  void guarded(const Call& call);

  const int64_t handle_;
  const std::shared_ptr<Prefetcher> prefetcher_;
  const Signature signature_;
  Snapshot snapshot_;

  const bool began_in_capture_;
  bool captured_;
  bool aborted_ = false;
  int64_t num_collectives_ = 0;
  int64_t num_launched_ = 0;
  int64_t num_off_ = 0;
  int64_t num_unbacked_ = 0;
  bool sequence_differs_ = false;
  int open_window_index_ = -1;         // capturing: the window that collective_end attaches
  std::optional<Segment> open_input_;  // of that window's collective
  Recording recording_;
  std::vector<std::shared_ptr<Timer>> timers_;  // of the collectives, while their lengths are asked for
  bool timer_runs_ = false;
  Backend* backend_ = nullptr;  // of the first collective
  Place place_;                 // of the last one on its device
  uint64_t capture_id_ = 0;
};

// Brackets, thread-local and last in, first out. A forward begun inside another is ignored, as is one that the
// prefetcher does not accept; every begin has its end all the same.
bool begin_forward(int64_t handle, std::shared_ptr<Prefetcher> prefetcher, Signature signature, bool capturing);
void end_forward();
// end_forward for a forward whose model raised: joins, learns nothing, never throws.
void abort_forward();
Forward* current_forward();

}  // namespace l2pf
