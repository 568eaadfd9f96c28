#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "../backend.h"

namespace l2pf {

// A collective of one rank for demos, tests and benchmarks where there is one GPU: a kernel rings a doorbell in host
// memory and waits, as one-shot collectives do, for a peer to answer; the peer is a host thread that answers after a
// set delay. Then the data is read and written back unchanged. One at a time on a device.
class EmulatedCollective {
 public:
  static EmulatedCollective& instance();

  // Enqueues it on `place.stream`; captured, the delay becomes part of the graph. Throws BackendError.
  void launch(void* data, int64_t num_bytes, double delay_us, int num_ctas, const Place& place);

 private:
  struct Peer;  // mailbox, device counters and the answering thread of one device

  Peer& peer(DeviceIndex device);

  std::mutex mutex_;
  std::map<DeviceIndex, std::unique_ptr<Peer>> peers_;
};

}  // namespace l2pf
