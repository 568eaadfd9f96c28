#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_check.h"
#include "graveyard.h"

namespace l2pf {

// What a capturing stream's next node would depend on.
struct Frontier {
  uint64_t capture_id = 0;  // 0: not capturing
  cudaGraph_t graph = nullptr;
  std::vector<cudaGraphNode_t> nodes;
  std::vector<cudaGraphEdgeData> edges;
};

Frontier frontier_of(cudaStream_t stream);
// Only the id, without a copy of the frontier.
uint64_t capture_id_of(cudaStream_t stream);

// Adds the node of one prefetch to a graph behind the given dependencies.
using AddNode = std::function<cudaGraphNode_t(cudaGraph_t, const std::vector<cudaGraphNode_t>&,
                                              const std::vector<cudaGraphEdgeData>&)>;

// The captures that hold a prefetch of ours: the frontier of the open collective, the previous node, and what the
// graph keeps alive. An entry goes when its graph and everything instantiated from it are gone.
class Captures {
 public:
  static Captures& instance();

  // Remembers the frontier that a collective starts from.
  void mark(cudaStream_t stream);
  // Adds a node that overlaps the last kernels of `stream`. `overlap` true: it may start once they have been launched
  // (needs sm_90); false: it starts where the mark is. Either way behind the capture's previous prefetch node, since
  // two at once would take each other's bandwidth. `held` lives as long as the graph.
  void attach(cudaStream_t stream, bool overlap, const AddNode& add_node, Held held);
  // What `stream` captures from now on waits for the capture's last prefetch node.
  void join(cudaStream_t stream);

  // Captures whose graph is still alive.
  size_t size() const;

 private:
  struct Capture {
    Frontier mark;
    cudaGraphNode_t previous = nullptr;
    Held* held = nullptr;  // owned by the graph through a user object
  };
  struct Grave {
    uint64_t capture_id;
    Held held;
  };
  static void bury(void* grave);
  // Gives a capture its entry, and its graph what takes the entry away. Not under the lock: when CUDA refuses, `bury`
  // runs in here.
  void open(const Frontier& now);

  mutable std::mutex mutex_;
  std::map<uint64_t, Capture> captures_;
};

}  // namespace l2pf
