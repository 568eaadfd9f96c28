#include <algorithm>

#include "runtime.h"

// Graphs, executable graphs and the user objects that they keep.
using fake_cuda::call;
using fake_cuda::release_call;
using fake_cuda::Runtime;

bool CUgraph_st::has(cudaGraphNode_t node) const {
  return std::any_of(nodes.begin(), nodes.end(), [&](const auto& own) { return own.get() == node; });
}

namespace {

bool is_edge_allowed(const CUgraph_st& graph, cudaGraphNode_t from, const cudaGraphEdgeData& edge) {
  if (!graph.has(from)) return false;
  if (edge.type == cudaGraphDependencyTypeDefault && edge.from_port == cudaGraphKernelNodePortDefault) return true;
  return edge.type == cudaGraphDependencyTypeProgrammatic && from->type == cudaGraphNodeTypeKernel;
}

}  // namespace

extern "C" {

cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                             const cudaGraphEdgeData* edges, size_t num_dependencies, cudaGraphNodeParams* params) {
  return call("cudaGraphAddNode", [&](Runtime& runtime) {
    const auto kernel = runtime.kernel_names.find(params->kernel.func);
    if (params->type != cudaGraphNodeTypeKernel || kernel == runtime.kernel_names.end()) return cudaErrorInvalidValue;
    for (size_t i = 0; i < num_dependencies; ++i) {
      if (!is_edge_allowed(*graph, dependencies[i], edges[i])) return cudaErrorInvalidValue;
      if (std::find(dependencies, dependencies + i, dependencies[i]) != dependencies + i) return cudaErrorInvalidValue;
    }
    graph->nodes.push_back(std::make_unique<CUgraphNode_st>(
        CUgraphNode_st{.type = cudaGraphNodeTypeKernel, .work = {.kernel = kernel->second}}));
    *node = graph->nodes.back().get();
    for (size_t i = 0; i < num_dependencies; ++i) graph->edges.push_back({dependencies[i], *node, edges[i]});
    if (runtime.added_node) runtime.added_node(*params);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return call("cudaGraphNodeGetType", [&](Runtime&) {
    *type = node->type;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return call("cudaGraphInstantiate", [&](Runtime& runtime) {
    *exec = new CUgraphExec_st{.objects = graph->objects};
    for (const auto& node : graph->nodes) (*exec)->works.push_back(node->work);
    for (const auto& [object, count] : graph->objects) object->num_references += count;
    ++runtime.live.graphs;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return call("cudaGraphLaunch", [&](Runtime& runtime) {
    for (const auto& work : exec->works)
      if (const auto error = runtime.enqueue(stream, cudaGraphNodeTypeKernel, work); error != cudaSuccess) return error;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return release_call("cudaGraphDestroy", [&](Runtime& runtime) {
    for (const auto& [object, count] : graph->objects) runtime.release(object, count);
    --runtime.live.graphs;
    delete graph;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return release_call("cudaGraphExecDestroy", [&](Runtime& runtime) {
    for (const auto& [object, count] : exec->objects) runtime.release(object, count);
    --runtime.live.graphs;
    delete exec;
    return cudaSuccess;
  });
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy, unsigned num_references,
                                 unsigned flags) {
  return call("cudaUserObjectCreate", [&](Runtime& runtime) {
    if (flags != cudaUserObjectNoDestructorSync) return cudaErrorInvalidValue;
    *object = new CUuserObject_st{data, destroy, num_references};
    ++runtime.live.user_objects;
    return cudaSuccess;
  });
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  return release_call("cudaUserObjectRelease", [&](Runtime& runtime) {
    runtime.release(object, count);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags) {
  return call("cudaGraphRetainUserObject", [&](Runtime&) {
    if (flags != cudaGraphUserObjectMove) object->num_references += count;
    graph->objects[object] += count;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
  return call("cudaGraphGetNodes", [&](Runtime&) {
    for (size_t i = 0; nodes && i < *num_nodes; ++i) nodes[i] = graph->nodes[i].get();
    *num_nodes = graph->nodes.size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, cudaGraphEdgeData* data,
                              size_t* num_edges) {
  return call("cudaGraphGetEdges", [&](Runtime&) {
    for (size_t i = 0; from && i < *num_edges; ++i) {
      from[i] = graph->edges[i].from;
      to[i] = graph->edges[i].to;
      data[i] = graph->edges[i].data;
    }
    *num_edges = graph->edges.size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* params) {
  return call("cudaGraphKernelNodeGetParams", [&](Runtime&) {
    *params = {};
    params->func = node->work.kernel.data();
    return cudaSuccess;
  });
}

// In the fake a captured kernel's function is its name.
cudaError_t cudaFuncGetName(const char** name, const void* function) {
  *name = static_cast<const char*>(function);
  return cudaSuccess;
}

}  // extern "C"
