#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "../words.h"
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

// The captures that hold a prefetch of ours: the frontier of the open collective, the last branch, and what the
// graph keeps alive. An entry goes when its graph and everything instantiated from it are gone.
class Captures {
 public:
  static Captures& instance();

  // Remembers the frontier that a collective starts from.
  void mark(cudaStream_t stream);
  // Adds a node that overlaps the last kernels of `stream`; `held` lives as long as the graph.
  //   in line       it may start once they have been launched, and the stream goes on behind it: the graph stays the
  //                 chain it was. The kernel itself waits for their end.
  //   launch order  the same start (both need sm_90), on a branch
  //   side stream   a branch that starts where the mark is, as it does when the last nodes are no kernels
  //   auto          the first in line; the later ones too if many nodes lie between the first and the second, else on
  //                 branches by launch order
  // A branch is behind the capture's previous one, since two at once would take each other's bandwidth.
  void attach(cudaStream_t stream, Placement placement, const AddNode& add_node, Held held);
  // What `stream` captures from now on waits for the capture's last branch.
  void join(cudaStream_t stream);

  // Captures whose graph is still alive.
  size_t size() const;

 private:
  struct Capture {
    Frontier mark;
    cudaGraphNode_t previous = nullptr;  // on a branch
    size_t num_nodes_at_first = 0;       // of the graph, with the first prefetch in it; 0 before
    Placement chosen = Placement::kAuto;
    Held* held = nullptr;  // owned by the graph through a user object
  };
  struct Grave {
    uint64_t capture_id;
    Held held;
  };
  static Placement choose(Capture& capture, cudaGraph_t graph);
  static void bury(void* grave);
  // Gives a capture its entry, and its graph what takes the entry away. Not under the lock: when CUDA refuses, `bury`
  // runs in here.
  void open(const Frontier& now);

  mutable std::mutex mutex_;
  std::map<uint64_t, Capture> captures_;
};

}  // namespace l2pf
