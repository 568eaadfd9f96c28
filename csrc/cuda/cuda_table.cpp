#include "cuda_table.h"

namespace l2pf {
namespace {

bool is_hint(Form form) { return form == Form::kBulk || form == Form::kLines; }

}  // namespace

std::vector<Form> KernelChoice::forms() const {
  std::vector<Form> forms;
  if (has_bulk && in_flight_bytes == 0) forms.push_back(Form::kBulk);
  if (in_flight_bytes == 0) forms.push_back(Form::kLines);
  forms.push_back(Form::kLoad);
  forms.push_back(Form::kLoadKeep);
  if (partition_of_sm != 0) forms.push_back(Form::kLoadBoth);
  return forms;
}

WindowHeader KernelChoice::header(const WindowSetting& setting) const {
  Form form = setting.form == Form::kAuto ? default_form : setting.form;
  if (form == Form::kBulk && !has_bulk) form = Form::kLines;
  const int64_t cap = setting.in_flight_bytes == kAutoInFlight ? in_flight_bytes : setting.in_flight_bytes;
  if (cap > 0 && is_hint(form)) form = Form::kLoad;  // nobody waits for a hint, so nothing could hold the next one back
  const Pace pace = cap > 0 ? pace_under(cap, num_ctas) : Pace{num_ctas, kMaxLoadsInFlight};
  WindowHeader header;
  header.byte_limit = setting.byte_limit & ~(kSegmentAlignment - 1);
  header.form = static_cast<int16_t>(form);
  header.loads_in_flight = static_cast<int16_t>(pace.loads_in_flight);
  header.num_ctas = pace.num_ctas;
  header.piece_bytes = piece_bytes;
  header.start_delay_ns = start_delay_ns;
  header.partition_of_sm = partition_of_sm;
  return header;
}

CudaTable::CudaTable(std::shared_ptr<const Plan> plan, std::span<const WindowSetting> settings,
                     const KernelChoice& choice, BlockPool& pool, cudaStream_t stream)
    : Table(std::move(plan)), choice_(choice), shape_(choice.shape()), pool_(pool) {
  std::vector<WindowHeader> headers;
  for (const WindowSetting& setting : settings) headers.push_back(choice_.header(setting));
  const auto own_plan = this->plan();
  for (const Window& window : own_plan->windows) num_segments_.push_back(static_cast<int>(window.segments.size()));
  TableImage image = table_image(*own_plan, headers);
  offsets_ = std::move(image.offsets);
  block_ = pool_.take(image.bytes.size());
  // From pageable memory the runtime takes its copy before it returns, so `image` may go.
  const cudaError_t error =
      cudaMemcpyAsync(block_.data, image.bytes.data(), image.bytes.size(), cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) pool_.give_back(block_);
  cuda_check(error, "cudaMemcpyAsync");
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

}  // namespace l2pf
