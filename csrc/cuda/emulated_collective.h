#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "../backend.h"

namespace l2pf {

// A collective of one rank for demos, tests and benchmarks where there is one GPU: a kernel polls its own memory, as
// one-shot collectives do, for the answer of a peer; its first CTA plays the peer and answers after a set delay, by the
// GPU's clock. Then the data is read and written back unchanged. One at a time on a device. A host thread as the peer
// would answer microseconds earlier or later with all that moves on the bus: prefetches of wrong weights gained 2 us.
class EmulatedCollective {
 public:
  static EmulatedCollective& instance();

  // Enqueues it on `place.stream`; captured, the delay becomes part of the graph. Throws BackendError.
  void launch(void* data, int64_t num_bytes, double delay_us, int num_ctas, const Place& place);

 private:
  struct Peer;  // the counters of one device

  Peer& peer(DeviceIndex device);

  std::mutex mutex_;
  std::map<DeviceIndex, std::unique_ptr<Peer>> peers_;
};

}  // namespace l2pf
