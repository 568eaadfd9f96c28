#include "outstanding.h"

#include <map>
#include <memory>

namespace l2pf {

Outstanding& Outstanding::of(Backend& backend) {
  // One per backend for the life of the process; never destroyed, since graphs may outlive static destructors.
  static std::mutex mutex;
  static auto& all = *new std::map<Backend*, std::unique_ptr<Outstanding>>;
  const std::lock_guard lock(mutex);
  auto& slot = all[&backend];
  if (!slot) slot.reset(new Outstanding(backend));
  return *slot;
}

void Outstanding::fork(const Prefetch& prefetch, const Place& place) {
  const std::lock_guard lock(mutex_);
  join_locked(place, 0);
  pending_.insert({place.device, 0});
  backend_.fork(prefetch, place);
}

void Outstanding::attach(const Prefetch& prefetch, Placement placement, const Place& place, uint64_t capture_id) {
  const std::lock_guard lock(mutex_);
  backend_.attach(prefetch, placement, place);
  pending_.insert({place.device, capture_id});
}

void Outstanding::join(const Place& place, uint64_t capture_id) {
  const std::lock_guard lock(mutex_);
  join_locked(place, capture_id);
}

void Outstanding::forget_capture(DeviceIndex device, uint64_t capture_id) {
  if (capture_id == 0) return;
  const std::lock_guard lock(mutex_);
  pending_.erase({device, capture_id});
}

void Outstanding::join_locked(const Place& place, uint64_t capture_id) {
  // Erased first: a join that fails is not tried again at the next collective.
  if (pending_.erase({place.device, capture_id}) == 0) return;
  backend_.join(place);
}

bool Outstanding::in_eager(DeviceIndex device) const {
  const std::lock_guard lock(mutex_);
  return pending_.count({device, 0}) != 0;
}

bool Outstanding::any(DeviceIndex device) const {
  const std::lock_guard lock(mutex_);
  const auto it = pending_.lower_bound({device, 0});
  return it != pending_.end() && it->first == device;
}

}  // namespace l2pf
