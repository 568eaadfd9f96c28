#include "../words.h"
#include "prefetch_kernel.h"
#include "ptx.cuh"

namespace l2pf {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kWarpSize = 32;
constexpr uint64_t kLineBytes = 128;
// A warp takes a piece at a time, one line a lane.
constexpr uint64_t kWarpPieceBytes = kWarpSize * kLineBytes;
// Loads a thread keeps in flight; 8..16 fill the memory system, more only cost registers.
constexpr int kLoadsInFlight = 8;
// Segments laid out in shared memory at a time; windows with more take several rounds.
constexpr int kSegmentsPerRound = 64;

// One round's segments, cut to the byte limit, with a piece index that runs over all of them.
struct Round {
  uint64_t origin[kSegmentsPerRound];  // where the first piece begins: at the segment, or at the line that holds it
  uint64_t begin[kSegmentsPerRound];
  uint64_t end[kSegmentsPerRound];
  int64_t num_pieces[kSegmentsPerRound];
  int64_t piece_end[kSegmentsPerRound];
};

// Walks a rising piece index; the segment it lies in only moves forward.
class PieceCursor {
 public:
  __device__ explicit PieceCursor(const Round& round) : round_(round) {}

  // Address of the piece; `begin` and `end` then bound the segment it lies in.
  __device__ uint64_t seek(int64_t piece_index, uint64_t piece_bytes) {
    while (piece_index >= round_.piece_end[segment_]) {
      first_piece_ = round_.piece_end[segment_];
      ++segment_;
    }
    return round_.origin[segment_] + static_cast<uint64_t>(piece_index - first_piece_) * piece_bytes;
  }
  __device__ uint64_t begin() const { return round_.begin[segment_]; }
  __device__ uint64_t end() const { return round_.end[segment_]; }

 private:
  const Round& round_;
  int segment_ = 0;
  int64_t first_piece_ = 0;
};

// All threads of the CTA call it. Returns the number of pieces.
__device__ int64_t lay_out(Round& round, const SegmentRecord* segments, int num_segments, int64_t byte_limit,
                           uint64_t piece_bytes, uint64_t origin_mask) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < num_segments) {
    const SegmentRecord record = segments[t];
    const int64_t left = byte_limit - record.begin_bytes;
    const int64_t num_bytes = left < 0 ? 0 : (left < record.num_bytes ? left : record.num_bytes);
    round.origin[t] = record.address & origin_mask;
    round.begin[t] = record.address;
    round.end[t] = record.address + static_cast<uint64_t>(num_bytes);
    round.num_pieces[t] = num_bytes == 0 ? 0 : (round.end[t] - round.origin[t] + piece_bytes - 1) / piece_bytes;
  }
  __syncthreads();
  if (t < num_segments) {
    int64_t piece_end = 0;
    for (int i = 0; i <= t; ++i) piece_end += round.num_pieces[i];
    round.piece_end[t] = piece_end;
  }
  __syncthreads();
  return round.piece_end[num_segments - 1];
}

__device__ void prefetch_bulk(const Round& round, int64_t num_pieces, int num_ctas, uint64_t piece_bytes) {
  PieceCursor cursor(round);
  const int64_t step = static_cast<int64_t>(num_ctas) * blockDim.x;
  // Neighbouring pieces go to different SMs: one SM alone issues at a tenth of the DRAM rate.
  for (int64_t p = static_cast<int64_t>(threadIdx.x) * num_ctas + blockIdx.x; p < num_pieces; p += step) {
    const uint64_t address = cursor.seek(p, piece_bytes);
    const uint64_t left = cursor.end() - address;
    ptx::bulk_prefetch_l2(address, static_cast<uint32_t>(left < piece_bytes ? left : piece_bytes));
  }
}

template <bool kLoad>
__device__ void prefetch_by_line(const Round& round, int64_t num_pieces, int num_ctas) {
  PieceCursor cursor(round);
  const int64_t num_warps = static_cast<int64_t>(num_ctas) * (blockDim.x / kWarpSize);
  const int64_t warp = static_cast<int64_t>(threadIdx.x / kWarpSize) * num_ctas + blockIdx.x;
  const uint64_t lane_offset = (threadIdx.x % kWarpSize) * kLineBytes;
  for (int64_t first = warp; first < num_pieces; first += kLoadsInFlight * num_warps) {
    uint32_t words[kLoadsInFlight];
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i) {
      words[i] = 0;
      const int64_t p = first + i * num_warps;
      if (p >= num_pieces) continue;
      uint64_t line = cursor.seek(p, kWarpPieceBytes) + lane_offset;
      if (line >= cursor.end()) continue;
      // The line may begin before its segment does, in bytes that are not ours to read.
      if (line < cursor.begin()) line = cursor.begin();
      if constexpr (kLoad)
        words[i] = ptx::load_line(line);
      else
        ptx::line_prefetch_l2(line);
    }
    if constexpr (kLoad) {
      uint32_t folded = 0;
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) folded ^= words[i];
      ptx::consume(folded);
    }
  }
}

__device__ void prefetch_window(const WindowHeader& window, const SegmentRecord* segments, int num_segments) {
  __shared__ Round round;
  const int64_t byte_limit = window.byte_limit;
  const int num_ctas = window.num_ctas;
  const Form form = static_cast<Form>(window.form);
  if (byte_limit <= 0 || static_cast<int>(blockIdx.x) >= num_ctas) return;
  const uint64_t piece_bytes = form == Form::kBulk ? static_cast<uint64_t>(window.piece_bytes) : kWarpPieceBytes;
  const uint64_t origin_mask = form == Form::kBulk ? ~uint64_t{0} : ~(kLineBytes - 1);
  for (int done = 0; done < num_segments; done += kSegmentsPerRound) {
    const int in_round = min(kSegmentsPerRound, num_segments - done);
    if (done > 0) __syncthreads();
    const int64_t num_pieces = lay_out(round, segments + done, in_round, byte_limit, piece_bytes, origin_mask);
    if (form == Form::kBulk)
      prefetch_bulk(round, num_pieces, num_ctas, piece_bytes);
    else if (form == Form::kLines)
      prefetch_by_line<false>(round, num_pieces, num_ctas);
    else
      prefetch_by_line<true>(round, num_pieces, num_ctas);
  }
}

__global__ void __launch_bounds__(kMaxThreads) l2pf_prefetch(const WindowHeader* window, int num_segments) {
  prefetch_window(*window, reinterpret_cast<const SegmentRecord*>(window + 1), num_segments);
}

__global__ void __launch_bounds__(kMaxThreads)
    l2pf_prefetch_inline(const __grid_constant__ InlineWindow window, int num_segments) {
  prefetch_window(window.header, window.segments, num_segments);
}

template <typename Kernel, typename Window>
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                     const cudaGraphEdgeData* edges, size_t num_dependencies, Kernel* kernel, Window window,
                     int num_segments, const LaunchShape& shape) {
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(window)), &num_segments};
  cudaGraphNodeParams params = {};
  params.type = cudaGraphNodeTypeKernel;
  params.kernel.func = reinterpret_cast<void*>(kernel);
  params.kernel.gridDim = dim3(shape.num_ctas);
  params.kernel.blockDim = dim3(shape.num_threads);
  params.kernel.kernelParams = arguments;
  return cudaGraphAddNode(node, graph, dependencies, edges, num_dependencies, &params);
}

}  // namespace

cudaError_t launch_prefetch(const WindowHeader* window, int num_segments, const LaunchShape& shape,
                            cudaStream_t stream) {
  l2pf_prefetch<<<shape.num_ctas, shape.num_threads, 0, stream>>>(window, num_segments);
  return cudaGetLastError();
}

cudaError_t launch_prefetch(const InlineWindow& window, int num_segments, const LaunchShape& shape,
                            cudaStream_t stream) {
  l2pf_prefetch_inline<<<shape.num_ctas, shape.num_threads, 0, stream>>>(window, num_segments);
  return cudaGetLastError();
}

cudaError_t add_prefetch_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                              const cudaGraphEdgeData* edges, size_t num_dependencies, const WindowHeader* window,
                              int num_segments, const LaunchShape& shape) {
  return add_node(node, graph, dependencies, edges, num_dependencies, &l2pf_prefetch, &window, num_segments, shape);
}

cudaError_t add_prefetch_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                              const cudaGraphEdgeData* edges, size_t num_dependencies, const InlineWindow& window,
                              int num_segments, const LaunchShape& shape) {
  return add_node(node, graph, dependencies, edges, num_dependencies, &l2pf_prefetch_inline, &window, num_segments,
                  shape);
}

}  // namespace l2pf
