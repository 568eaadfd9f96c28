#include "../words.h"
#include "prefetch_kernel.h"
#include "ptx.cuh"

namespace l2pf {
namespace {

// With no say about registers ptxas takes 32 and spills.
constexpr int kMinCtasPerSm = 2;
constexpr int kWarpSize = 32;
constexpr uint32_t kWholeWarp = 0xffffffff;
// A warp takes a piece at a time, one line a lane.
constexpr uint64_t kWarpPieceBytes = kWarpSize * kLineBytes;
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
  int num_segments;
};

// A piece and the segment that it lies in, as a position in its round.
struct Piece {
  uint64_t address = 0;
  int segment_index = -1;  // none: past the last piece
};

// All threads of the CTA call it. Returns the number of pieces.
__device__ int64_t lay_out(Round& round, const SegmentRecord* segments, int num_segments, int64_t byte_limit,
                           uint64_t piece_bytes, uint64_t origin_mask) {
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) round.num_segments = num_segments;
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
#pragma unroll 1
    for (int i = 0; i <= t; ++i) piece_end += round.num_pieces[i];
    round.piece_end[t] = piece_end;
  }
  __syncthreads();
  return round.piece_end[num_segments - 1];
}

// The first segment that ends behind the piece holds it. `piece_index` is below the round's number of pieces.
__device__ Piece find(const Round& round, int64_t piece_index, uint64_t piece_bytes) {
  int low = 0;
  int high = round.num_segments - 1;
#pragma unroll 1
  while (low < high) {
    const int middle = (low + high) / 2;
    if (round.piece_end[middle] > piece_index)
      high = middle;
    else
      low = middle + 1;
  }
  const int64_t first_piece = round.piece_end[low] - round.num_pieces[low];
  return {round.origin[low] + static_cast<uint64_t>(piece_index - first_piece) * piece_bytes, low};
}

__device__ void prefetch_bulk(const Round& round, int64_t num_pieces, int num_ctas, uint64_t piece_bytes) {
  const int64_t step = static_cast<int64_t>(num_ctas) * blockDim.x;
  // Neighbouring pieces go to different SMs: one SM alone issues at a tenth of the DRAM rate.
#pragma unroll 1
  for (int64_t p = static_cast<int64_t>(threadIdx.x) * num_ctas + blockIdx.x; p < num_pieces; p += step) {
    const Piece piece = find(round, p, piece_bytes);
    const uint64_t left = round.end[piece.segment_index] - piece.address;
    ptx::bulk_prefetch_l2(piece.address, static_cast<uint32_t>(left < piece_bytes ? left : piece_bytes));
  }
}

// Which pieces a warp touches next: `size` of them, at most kMaxLoadsInFlight, from `first`, `step` apart.
struct Batch {
  int64_t first;
  int64_t step;
  int size;
};

// A line a lane from each piece of the batch. The lanes look its pieces up side by side.
__device__ __forceinline__ void touch(const Round& round, int64_t num_pieces, const Batch& batch, bool by_hint,
                                      uint64_t policy) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t own_index = batch.first + lane * batch.step;
  Piece own;
  if (lane < batch.size && own_index < num_pieces) own = find(round, own_index, kWarpPieceBytes);
  uint64_t lines[kMaxLoadsInFlight];
#pragma unroll
  for (int i = 0; i < kMaxLoadsInFlight; ++i) {
    const int segment_index = __shfl_sync(kWholeWarp, own.segment_index, i);
    const uint64_t line = __shfl_sync(kWholeWarp, own.address, i) + lane * kLineBytes;
    const bool inside = segment_index >= 0 && line < round.end[max(segment_index, 0)];
    // The line may begin before its segment does, in bytes that are not ours to read.
    lines[i] = inside ? max(line, round.begin[segment_index]) : 0;
  }
  if (by_hint) {
#pragma unroll
    for (int i = 0; i < kMaxLoadsInFlight; ++i)
      if (lines[i] != 0) ptx::line_prefetch_l2(lines[i]);
    return;
  }
  uint32_t words[kMaxLoadsInFlight];
#pragma unroll
  for (int i = 0; i < kMaxLoadsInFlight; ++i) words[i] = lines[i] == 0 ? 0 : ptx::load_line(lines[i], policy);
  uint32_t folded = 0;
#pragma unroll
  for (int i = 0; i < kMaxLoadsInFlight; ++i) folded ^= words[i];
  if (folded == kUnlikelyValue) unlikely_sink = folded;
}

// The CTAs of one L2 partition draw pieces among themselves, wherever they were placed: one draw, all threads call it.
__device__ int64_t draw(WindowTickets& tickets, const WindowHeader& header) {
  __shared__ uint32_t drawn;
  __syncthreads();
  const int partition = reinterpret_cast<const uint8_t*>(header.partition_of_sm)[ptx::sm_index()] & 1;
  if (threadIdx.x == 0) drawn = atomicAdd(&tickets.next[partition], 1);
  __syncthreads();
  return drawn;
}

// The last CTA leaves the tickets as it found them.
__device__ void put_back(WindowTickets& tickets, int num_ctas) {
  if (threadIdx.x != 0 || atomicAdd(&tickets.num_ctas_done, 1) != static_cast<uint32_t>(num_ctas) - 1) return;
  tickets.next[0] = 0;
  tickets.next[1] = 0;
  tickets.num_ctas_done = 0;
}

// Warps take batches in turn. `tickets`, when not null, bring every line into both partitions of L2: a line lives in
// its home partition, and a load from an SM of the other one leaves a copy there too.
__device__ void prefetch_by_line(const Round& round, int64_t num_pieces, const WindowHeader& header, Form form,
                                 WindowTickets* tickets) {
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;  // of a CTA
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t step = tickets ? num_warps : static_cast<int64_t>(header.num_ctas) * num_warps;
  const int64_t first = tickets ? warp : static_cast<int64_t>(warp) * header.num_ctas + blockIdx.x;
  const int size = header.loads_in_flight;
  const uint64_t policy = form == Form::kLoadKeep ? ptx::evict_last_policy() : ptx::evict_normal_policy();
#pragma unroll 1
  for (int64_t turn = 0;; ++turn) {
    const int64_t done = (tickets ? draw(*tickets, header) : turn) * size * step;
    if (done + (tickets ? 0 : first) >= num_pieces) break;  // with tickets the CTA stops as one
    touch(round, num_pieces, {done + first, step, size}, form == Form::kLines, policy);
  }
  if (tickets) put_back(*tickets, header.num_ctas);
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
#pragma unroll 1
  for (int i = 0; i < kMaxCarried; ++i) {
    const uint64_t begin = carried.address[i];
    const uint64_t end = begin + carried.num_bytes[i];
#pragma unroll 1
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
#pragma unroll 1
  for (int done = 0; done < num_segments; done += kSegmentsPerRound) {
    const int in_round = min(kSegmentsPerRound, num_segments - done);
    if (done > 0) __syncthreads();
    const int64_t num_pieces = lay_out(round, segments + done, in_round, byte_limit, piece_bytes, origin_mask);
    if (form == Form::kBulk)
      prefetch_bulk(round, num_pieces, num_ctas, piece_bytes);
    else
      prefetch_by_line(round, num_pieces, window, form, form == Form::kLoadBoth ? tickets : nullptr);
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

cudaError_t footprint_of_prefetch(const LaunchShape& shape, Footprint* footprint) {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, &l2pf_prefetch);
  *footprint = {shape.num_ctas, shape.num_threads, attributes.numRegs, static_cast<int>(attributes.sharedSizeBytes)};
  return error;
}

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
