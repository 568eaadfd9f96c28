#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace l2pf {

using Held = std::vector<std::shared_ptr<const void>>;

// Where a dying graph leaves what it kept alive. CUDA runs a graph's destructors on a thread of its own that may
// call neither CUDA nor an allocator that does; the next ordinary operator empties the graveyard instead.
class Graveyard {
 public:
  static Graveyard& instance();

  void bury(Held held);
  // Releases everything buried so far; about nothing when there is none.
  void drain() {
    if (any_.load(std::memory_order_acquire)) drain_slowly();
  }

 private:
  void drain_slowly();

  std::mutex mutex_;
  std::atomic<bool> any_ = false;
  Held held_;
};

}  // namespace l2pf
