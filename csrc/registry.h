#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "prefetcher.h"

namespace l2pf {

// Prefetchers by handle: the stable ABI has no custom classes, so operators pass a number. Handles are never reused.
class Registry {
 public:
  static Registry& instance();

  int64_t create(PrefetcherOptions options);
  // Throws std::invalid_argument naming the handle when it is not alive.
  std::shared_ptr<Prefetcher> get(int64_t handle) const;
  void destroy(int64_t handle);
  std::map<int64_t, std::shared_ptr<Prefetcher>> all() const;

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<Prefetcher>> prefetchers_;
  int64_t last_handle_ = 0;
};

}  // namespace l2pf
