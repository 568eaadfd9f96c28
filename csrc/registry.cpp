#include "registry.h"

#include <stdexcept>
#include <string>

namespace l2pf {
namespace {

std::invalid_argument dead_handle(int64_t handle) {
  return std::invalid_argument("expected the handle of a live prefetcher, got " + std::to_string(handle));
}

}  // namespace

Registry& Registry::instance() {
  static auto& registry = *new Registry;  // never destroyed: forwards may end during static destruction
  return registry;
}

int64_t Registry::create(PrefetcherOptions options) {
  auto prefetcher = std::make_shared<Prefetcher>(options);
  const std::lock_guard lock(mutex_);
  prefetchers_.emplace(++last_handle_, std::move(prefetcher));
  return last_handle_;
}

std::shared_ptr<Prefetcher> Registry::get(int64_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto it = prefetchers_.find(handle);
  if (it == prefetchers_.end()) throw dead_handle(handle);
  return it->second;
}

void Registry::destroy(int64_t handle) {
  // Declared before the lock and so released after it: the last hold on weights may go with it.
  std::shared_ptr<Prefetcher> dying;
  const std::lock_guard lock(mutex_);
  const auto it = prefetchers_.find(handle);
  if (it == prefetchers_.end()) throw dead_handle(handle);
  dying = std::move(it->second);
  prefetchers_.erase(it);
}

std::map<int64_t, std::shared_ptr<Prefetcher>> Registry::all() const {
  const std::lock_guard lock(mutex_);
  return prefetchers_;
}

}  // namespace l2pf
