#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/cuda_check.h"

// What a test asks of a captured graph.
namespace l2pf::testing_support {

struct Edge {
  size_t from = 0;
  size_t to = 0;
  bool is_launch_completion = false;  // else a full edge
};

// A graph's nodes by the names of their kernels, and its edges.
struct GraphView {
  std::vector<std::string> names;
  std::vector<Edge> edges;

  explicit GraphView(cudaGraph_t graph) {
    size_t num_nodes = 0, num_edges = 0;
    L2PF_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &num_nodes));
    std::vector<cudaGraphNode_t> nodes(num_nodes);
    L2PF_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.data(), &num_nodes));
    for (const auto node : nodes) names.push_back(name_of(node));
    L2PF_CUDA_CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &num_edges));
    std::vector<cudaGraphNode_t> from(num_edges), to(num_edges);
    std::vector<cudaGraphEdgeData> data(num_edges);
    L2PF_CUDA_CHECK(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &num_edges));
    const auto index_of = [&](cudaGraphNode_t node) {
      return static_cast<size_t>(std::find(nodes.begin(), nodes.end(), node) - nodes.begin());
    };
    for (size_t i = 0; i < num_edges; ++i)
      edges.push_back({index_of(from[i]), index_of(to[i]),
                       data[i].type == cudaGraphDependencyTypeProgrammatic &&
                           data[i].from_port == cudaGraphKernelNodePortLaunchCompletion});
  }

  // In the order in which they were added.
  std::vector<size_t> nodes_named(const std::string& part) const {
    std::vector<size_t> found;
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i].find(part) != std::string::npos) found.push_back(i);
    return found;
  }
  std::vector<size_t> sources_of(size_t node, bool launch_completion) const {
    std::vector<size_t> sources;
    for (const Edge& edge : edges)
      if (edge.to == node && edge.is_launch_completion == launch_completion) sources.push_back(edge.from);
    return sources;
  }

 private:
  static std::string name_of(cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    L2PF_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeKernel) return "no kernel";
    cudaKernelNodeParams params{};
    L2PF_CUDA_CHECK(cudaGraphKernelNodeGetParams(node, &params));
    const char* name = nullptr;
    L2PF_CUDA_CHECK(cudaFuncGetName(&name, params.func));
    return name;
  }
};

}  // namespace l2pf::testing_support
