#include "graveyard.h"

#include <iterator>
#include <utility>

namespace l2pf {

Graveyard& Graveyard::instance() {
  static auto& graveyard = *new Graveyard;  // never destroyed: graphs may die after static destructors ran
  return graveyard;
}

void Graveyard::bury(Held held) {
  const std::lock_guard lock(mutex_);
  held_.insert(held_.end(), std::make_move_iterator(held.begin()), std::make_move_iterator(held.end()));
  any_.store(true, std::memory_order_release);
}

void Graveyard::drain_slowly() {
  Held dying;  // released outside the lock: a destructor may bury more
  {
    const std::lock_guard lock(mutex_);
    dying.swap(held_);
    any_.store(false, std::memory_order_release);
  }
}

}  // namespace l2pf
