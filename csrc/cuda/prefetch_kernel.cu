#include "../words.h"
#include "prefetch_kernel.h"
#include "ptx.cuh"

namespace l2pf {
namespace {

constexpr int kMaxThreads = 512;
// With no say about registers ptxas takes 32 and spills.
constexpr int kMinCtasPerSm = 2;
constexpr int kWarpSize = 32;
constexpr uint64_t kLineBytes = 128;
// A warp takes a piece at a time, one line a lane.
constexpr uint64_t kWarpPieceBytes = kWarpSize * kLineBytes;
// Loads a thread keeps in flight; 8..16 fill the memory system, more only cost registers.
constexpr int kLoadsInFlight = 8;
// Segments laid out in shared memory at a time; windows with more take several rounds.
constexpr int kSegmentsPerRound = 64;

// A load whose value nobody uses does not hold its warp back, and a warp that exits drops its loads in flight:
// measured, the lines then never reach L2. So every value goes into a comparison that guards a store.
constexpr uint32_t kUnlikelyValue = 0x9e3779b9;
__device__ uint32_t unlikely_sink;

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

// One batch of a warp: a line a lane from each of kLoadsInFlight pieces, `step` apart. `policy`: of kLoadKeep.
template <Form kForm>
__device__ __forceinline__ void load_pieces(PieceCursor& cursor, int64_t first, int64_t step, int64_t num_pieces,
                                            uint64_t lane_offset, uint64_t policy = 0) {
  uint32_t words[kLoadsInFlight];
#pragma unroll
  for (int i = 0; i < kLoadsInFlight; ++i) {
    words[i] = 0;
    const int64_t p = first + i * step;
    if (p >= num_pieces) continue;
    uint64_t line = cursor.seek(p, kWarpPieceBytes) + lane_offset;
    if (line >= cursor.end()) continue;
    // The line may begin before its segment does, in bytes that are not ours to read.
    if (line < cursor.begin()) line = cursor.begin();
    if constexpr (kForm == Form::kLines)
      ptx::line_prefetch_l2(line);
    else if constexpr (kForm == Form::kLoadKeep)
      words[i] = ptx::load_line(line, policy);
    else
      words[i] = ptx::load_line(line);
  }
  if constexpr (kForm != Form::kLines) {
    uint32_t folded = 0;
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i) folded ^= words[i];
    if (folded == kUnlikelyValue) unlikely_sink = folded;
  }
}

template <Form kForm>
__device__ void prefetch_by_line(const Round& round, int64_t num_pieces, int num_ctas) {
  PieceCursor cursor(round);
  const int64_t num_warps = static_cast<int64_t>(num_ctas) * (blockDim.x / kWarpSize);
  const int64_t warp = static_cast<int64_t>(threadIdx.x / kWarpSize) * num_ctas + blockIdx.x;
  const uint64_t lane_offset = (threadIdx.x % kWarpSize) * kLineBytes;
  const uint64_t policy = kForm == Form::kLoadKeep ? ptx::evict_last_policy() : 0;
  for (int64_t first = warp; first < num_pieces; first += kLoadsInFlight * num_warps)
    load_pieces<kForm>(cursor, first, num_warps, num_pieces, lane_offset, policy);
}

// Brings every line into both partitions of L2: a line lives in its home partition, and a load from an SM of the other
// one leaves a copy there too. The CTAs of a partition share all pieces among themselves, wherever they were placed.
__device__ void prefetch_both(const Round& round, int64_t num_pieces, const WindowHeader& header,
                              WindowTickets& tickets) {
  __shared__ uint32_t drawn;
  const int partition = reinterpret_cast<const uint8_t*>(header.partition_of_sm)[ptx::sm_index()] & 1;
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int64_t pieces_a_ticket = static_cast<int64_t>(num_warps) * kLoadsInFlight;
  const int64_t num_tickets = (num_pieces + pieces_a_ticket - 1) / pieces_a_ticket;
  const uint64_t lane_offset = (threadIdx.x % kWarpSize) * kLineBytes;
  PieceCursor cursor(round);
  while (true) {
    if (threadIdx.x == 0) drawn = atomicAdd(&tickets.next[partition], 1);
    __syncthreads();
    const int64_t ticket = drawn;
    __syncthreads();
    if (ticket >= num_tickets) break;
    load_pieces<Form::kLoad>(cursor, ticket * pieces_a_ticket + threadIdx.x / kWarpSize, num_warps, num_pieces,
                             lane_offset);
  }
  if (threadIdx.x == 0 && atomicAdd(&tickets.num_ctas_done, 1) == static_cast<uint32_t>(header.num_ctas) - 1) {
    tickets.next[0] = 0;
    tickets.next[1] = 0;
    tickets.num_ctas_done = 0;
  }
}

__device__ void wait_ns(int32_t duration_ns) {
  if (duration_ns <= 0) return;
  const uint64_t begin = ptx::global_time_ns();
  while (ptx::global_time_ns() - begin < static_cast<uint64_t>(duration_ns)) __nanosleep(100);
}

// What the collective reads next must not come from DRAM because the weights have pushed it out.
__device__ void read_carried(const CarriedRecords& carried, int num_ctas) {
  const uint64_t step = static_cast<uint64_t>(num_ctas) * blockDim.x * kLineBytes;
  const uint64_t first = (static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kLineBytes;
  uint32_t folded = 0;
  for (int i = 0; i < kMaxCarried; ++i) {
    const uint64_t begin = carried.address[i];
    const uint64_t end = begin + carried.num_bytes[i];
    for (uint64_t line = (begin & ~(kLineBytes - 1)) + first; line < end; line += step)
      folded ^= ptx::load_line(line < begin ? begin : line);
  }
  if (folded == kUnlikelyValue) unlikely_sink = folded;
}

// `tickets` is null where the window is carried by value.
__device__ void prefetch_window(const WindowHeader& window, WindowTickets* tickets, const SegmentRecord* segments,
                                int num_segments, const CarriedRecords& carried) {
  __shared__ Round round;
  const int64_t byte_limit = window.byte_limit;
  const int num_ctas = window.num_ctas;
  Form form = static_cast<Form>(window.form);
  // Tickets count through one round only, and a window by value has none.
  if (form == Form::kLoadBoth && (!tickets || num_segments > kSegmentsPerRound || window.partition_of_sm == 0))
    form = Form::kLoad;
  if (byte_limit <= 0 || static_cast<int>(blockIdx.x) >= num_ctas) return;
  wait_ns(window.start_delay_ns);
  const uint64_t piece_bytes = form == Form::kBulk ? static_cast<uint64_t>(window.piece_bytes) : kWarpPieceBytes;
  const uint64_t origin_mask = form == Form::kBulk ? ~uint64_t{0} : ~(kLineBytes - 1);
  for (int done = 0; done < num_segments; done += kSegmentsPerRound) {
    const int in_round = min(kSegmentsPerRound, num_segments - done);
    if (done > 0) __syncthreads();
    const int64_t num_pieces = lay_out(round, segments + done, in_round, byte_limit, piece_bytes, origin_mask);
    if (form == Form::kBulk)
      prefetch_bulk(round, num_pieces, num_ctas, piece_bytes);
    else if (form == Form::kLines)
      prefetch_by_line<Form::kLines>(round, num_pieces, num_ctas);
    else if (form == Form::kLoadKeep)
      prefetch_by_line<Form::kLoadKeep>(round, num_pieces, num_ctas);
    else if (form == Form::kLoadBoth)
      prefetch_both(round, num_pieces, window, *tickets);
    else
      prefetch_by_line<Form::kLoad>(round, num_pieces, num_ctas);
  }
  read_carried(carried, num_ctas);
}

// One thread keeps the kernel from ending before the collective beside it has: what follows in line waits for this
// kernel alone.
__device__ void outlast_collective() {
  if (blockIdx.x == 0 && threadIdx.x == 0) ptx::wait_for_predecessors();
}

__global__ void __launch_bounds__(kMaxThreads, kMinCtasPerSm)
    l2pf_prefetch(WindowHead* window, int num_segments, const __grid_constant__ CarriedRecords carried) {
  prefetch_window(window->header, &window->tickets, reinterpret_cast<const SegmentRecord*>(window + 1), num_segments,
                  carried);
  outlast_collective();
}

__global__ void __launch_bounds__(kMaxThreads, kMinCtasPerSm)
    l2pf_prefetch_inline(const __grid_constant__ InlineWindow window, int num_segments,
                         const __grid_constant__ CarriedRecords carried) {
  prefetch_window(window.header, nullptr, window.segments, num_segments, carried);
  outlast_collective();
}

// Returns the launch's own error: cudaGetLastError would also take away one that someone else has left in the thread.
template <typename Kernel, typename Window>
cudaError_t launch(Kernel* kernel, Window window, int num_segments, const LaunchShape& shape, cudaStream_t stream) {
  CarriedRecords carried;  // eager: what the collective will find in L2 is not known
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(window)), &num_segments, &carried};
  return cudaLaunchKernel(kernel, dim3(shape.num_ctas), dim3(shape.num_threads), arguments, 0, stream);
}

template <typename Kernel, typename Window>
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                     const cudaGraphEdgeData* edges, size_t num_dependencies, Kernel* kernel, Window window,
                     int num_segments, const LaunchShape& shape, CarriedRecords carried) {
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(window)), &num_segments, &carried};
  cudaGraphNodeParams params = {};
  params.type = cudaGraphNodeTypeKernel;
  params.kernel.func = reinterpret_cast<void*>(kernel);
  params.kernel.gridDim = dim3(shape.num_ctas);
  params.kernel.blockDim = dim3(shape.num_threads);
  params.kernel.kernelParams = arguments;
  return cudaGraphAddNode(node, graph, dependencies, edges, num_dependencies, &params);
}

}  // namespace

cudaError_t launch_prefetch(WindowHead* window, int num_segments, const LaunchShape& shape, cudaStream_t stream) {
  return launch(&l2pf_prefetch, &window, num_segments, shape, stream);
}

cudaError_t launch_prefetch(const InlineWindow& window, int num_segments, const LaunchShape& shape,
                            cudaStream_t stream) {
  return launch(&l2pf_prefetch_inline, &window, num_segments, shape, stream);
}

cudaError_t add_prefetch_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                              const cudaGraphEdgeData* edges, size_t num_dependencies, WindowHead* window,
                              int num_segments, const LaunchShape& shape, const CarriedRecords& carried) {
  return add_node(node, graph, dependencies, edges, num_dependencies, &l2pf_prefetch, &window, num_segments, shape,
                  carried);
}

cudaError_t add_prefetch_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                              const cudaGraphEdgeData* edges, size_t num_dependencies, const InlineWindow& window,
                              int num_segments, const LaunchShape& shape, const CarriedRecords& carried) {
  return add_node(node, graph, dependencies, edges, num_dependencies, &l2pf_prefetch_inline, &window, num_segments,
                  shape, carried);
}

}  // namespace l2pf
