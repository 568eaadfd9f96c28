#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fake_backend.h"
#include "signature.h"

namespace l2pf::testing_support {

// The state table of DESIGN section 4 in plain words, for one device, one stream, one thread and fixed budgets: what is
// learned, and which verbs the device sees. Written apart from the core, to be compared with it.
class StateModel {
 public:
  // A collective and the weights read after it, by address.
  struct Sight {
    CollectiveKind kind = CollectiveKind::kAllReduce;
    std::vector<uintptr_t> weights;
    friend bool operator==(const Sight&, const Sight&) = default;
  };
  using Sights = std::vector<Sight>;
  struct Known {
    State state = State::kUnlearned;
    Sights plan;
    std::set<size_t> off;  // collectives whose window someone set to 0
    int num_eager = 0;
    int num_captures = 0;
    int num_launched = 0;
    int generation = 0;
  };

  std::map<Signature, Known> signatures;
  uint64_t capture_id = 0;  // of the stream
  Verbs verbs;              // that the device has seen since they were last taken

  bool begin(const Signature& signature) {
    if (forward_) {
      ++num_nested_;
      return false;
    }
    const Known& known = signatures[signature];
    forward_ = Forward{signature, known};
    forward_->is_captured = capture_id != 0;
    return true;
  }

  void collective_begin(CollectiveKind kind) {
    if (!forward_) return;
    Forward& now = *forward_;
    now.seen.push_back({kind, {}});
    const size_t index = now.seen.size() - 1;
    const Sights& plan = now.began_with.plan;
    if (!plan.empty() && (index >= plan.size() || plan[index].kind != kind)) now.differs = true;
    const bool has_window = !plan.empty() && !now.differs && !plan[index].weights.empty();
    now.open_window.reset();
    now.has_collective = true;
    follow_capture();
    if (capture_id != 0) {
      now.is_captured = true;
      if (!has_window || now.began_with.off.contains(index)) return;
      verbs.push_back("mark 0@1");
      now.open_window = window_index(plan, index);
    } else {
      join_eager();
      if (!has_window) return;
      verbs.push_back("fork 0@1 window " + std::to_string(window_index(plan, index)));
      is_eager_outstanding_ = true;
      ++now.num_launched;
    }
  }

  void collective_end() {
    if (!forward_) return;
    const auto window = std::exchange(forward_->open_window, std::nullopt);
    if (!window || capture_id != last_capture_id_) return;
    verbs.push_back("attach 0@1 window " + std::to_string(*window) + " auto");
    is_node_outstanding_ = true;
    ++forward_->num_launched;
  }

  void record(uintptr_t address) {
    if (!forward_ || forward_->is_captured || forward_->seen.empty()) return;
    auto& weights = forward_->seen.back().weights;
    if (std::find(weights.begin(), weights.end(), address) == weights.end()) weights.push_back(address);
  }

  void end(bool aborted) {
    if (!forward_) return;
    if (num_nested_ > 0) {
      --num_nested_;
      return;
    }
    const Forward now = *std::exchange(forward_, std::nullopt);
    if (now.has_collective) {
      follow_capture();
      capture_id != 0 ? join_node() : join_eager();
    }
    last_capture_id_ = 0;
    is_node_outstanding_ = false;
    Known& known = signatures[now.signature];
    if (aborted || known.generation != now.began_with.generation) return;
    known.num_launched = now.num_launched;
    if (now.is_captured) {
      ++known.num_captures;
      known.state = State::kFrozen;
      return;
    }
    ++known.num_eager;
    if (known.state != State::kFrozen && !now.seen.empty()) learn(known, now.seen);
  }

  void invalidate() {
    for (auto& [signature, known] : signatures) known = Known{.generation = known.generation + 1};
  }

  bool in_forward() const { return forward_.has_value(); }
  bool is_outstanding() const { return is_eager_outstanding_ || is_node_outstanding_; }

 private:
  struct Forward {
    Signature signature;
    Known began_with;
    Sights seen;
    bool is_captured = false;
    bool differs = false;
    bool has_collective = false;
    int num_launched = 0;
    std::optional<int> open_window = {};
  };

  static int window_index(const Sights& plan, size_t collective_index) {
    int index = 0;
    for (size_t i = 0; i < collective_index; ++i) index += !plan[i].weights.empty();
    return index;
  }

  void learn(Known& known, const Sights& seen) {
    known.state = State::kPlanned;
    if (known.plan == seen) return;
    // An off-switch stays with its window while it is the same one: same collectives, as many bytes.
    std::set<size_t> off;
    const auto same_kinds = [](const Sights& a, const Sights& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](auto& x, auto& y) { return x.kind == y.kind; });
    };
    for (const size_t i : known.off)
      if (same_kinds(known.plan, seen) && known.plan[i].weights.size() == seen[i].weights.size()) off.insert(i);
    known.off = off;
    known.plan = seen;
    if (const int num_windows = window_index(seen, seen.size()); num_windows > 0)
      verbs.push_back("make_table 0@1 windows " + std::to_string(num_windows));
  }

  // A node left in a capture that has ended is that graph's own.
  void follow_capture() {
    if (capture_id != last_capture_id_) is_node_outstanding_ = false;
    last_capture_id_ = capture_id;
  }
  void join_eager() {
    if (std::exchange(is_eager_outstanding_, false)) verbs.push_back("join 0@1");
  }
  void join_node() {
    if (std::exchange(is_node_outstanding_, false)) verbs.push_back("join 0@1");
  }

  std::optional<Forward> forward_;
  int num_nested_ = 0;
  uint64_t last_capture_id_ = 0;
  bool is_eager_outstanding_ = false;
  bool is_node_outstanding_ = false;
};

}  // namespace l2pf::testing_support
