#include "cuda_table.h"

#include <cstring>

namespace l2pf {
namespace {

void write_segments(std::span<const Segment> segments, SegmentRecord* records) {
  int64_t begin_bytes = 0;
  for (const Segment& segment : segments) {
    *records++ = {segment.address, segment.num_bytes, begin_bytes, 0};
    begin_bytes += segment.num_bytes;
  }
}

}  // namespace

WindowHeader KernelChoice::header(const WindowSetting& setting) const {
  Form form = setting.form == Form::kAuto ? default_form : setting.form;
  if (form == Form::kBulk && !has_bulk) form = Form::kLines;
  WindowHeader header;
  header.byte_limit = setting.byte_limit & ~(kSegmentAlignment - 1);
  header.form = static_cast<int32_t>(form);
  header.num_ctas = num_ctas;
  header.piece_bytes = piece_bytes;
  header.partition_of_sm = partition_of_sm;
  return header;
}

CudaTable::CudaTable(std::shared_ptr<const Plan> plan, std::span<const WindowSetting> settings,
                     const KernelChoice& choice, BlockPool& pool, cudaStream_t stream)
    : Table(std::move(plan)), choice_(choice), shape_(choice.shape()), pool_(pool) {
  size_t num_bytes = 0;
  for (const Window& window : this->plan().windows) {
    offsets_.push_back(num_bytes);
    num_bytes += sizeof(WindowHead) + window.segments.size() * sizeof(SegmentRecord);
  }
  std::vector<char> image(num_bytes);
  for (size_t i = 0; i < offsets_.size(); ++i) {
    const WindowHead head{choice_.header(settings[i]), {}};
    std::memcpy(image.data() + offsets_[i], &head, sizeof(head));
    write_segments(this->plan().windows[i].segments,
                   reinterpret_cast<SegmentRecord*>(image.data() + offsets_[i] + sizeof(head)));
  }
  block_ = pool_.take(num_bytes);
  // From pageable memory the runtime takes its copy before it returns, so `image` may go.
  const cudaError_t error = cudaMemcpyAsync(block_.data, image.data(), num_bytes, cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) pool_.give_back(block_);
  L2PF_CUDA_CHECK(error);
}

CudaTable::~CudaTable() { pool_.give_back(block_); }

void CudaTable::patch(int window_index, const WindowSetting& setting, cudaStream_t stream) {
  const WindowHead head{choice_.header(setting), {}};
  L2PF_CUDA_CHECK(cudaMemcpyAsync(static_cast<char*>(block_.data) + offsets_[window_index], &head, sizeof(head),
                                  cudaMemcpyHostToDevice, stream));
}

WindowHead* CudaTable::window(int window_index) const {
  return reinterpret_cast<WindowHead*>(static_cast<char*>(block_.data) + offsets_[window_index]);
}

int CudaTable::num_segments(int window_index) const {
  return static_cast<int>(plan().windows[window_index].segments.size());
}

InlineWindow inline_window(std::span<const Segment> segments, const WindowHeader& header) {
  InlineWindow window{};
  window.header = header;
  write_segments(segments, window.segments);
  window.header.byte_limit = 0;
  for (const Segment& segment : segments) window.header.byte_limit += segment.num_bytes;
  return window;
}

}  // namespace l2pf
