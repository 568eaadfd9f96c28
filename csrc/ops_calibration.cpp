#include "ops_checks.h"
#include "ops_impl.h"
#ifdef L2PF_WITH_CUDA
#include "cuda/calibration.h"
#include "cuda/cuda_backend.h"
#include "ops_tensor.h"
#endif

// The operators that measure a GPU, and take over what was measured.
namespace l2pf::ops {

#ifdef L2PF_WITH_CUDA

// More than any device has; what comes from a file is not believed further.
constexpr int64_t kMaxPieceBytes = 1 << 24;
constexpr double kMaxFillGbps = 1e6;

std::string calibration_key(int64_t device) {
  require_at_least(device, 0, "calibration_key", "device");
  return to_json(l2pf::calibration_key(static_cast<DeviceIndex>(device)), L2PF_VERSION);
}

std::string calibrate(int64_t device) {
  require_at_least(device, 0, "calibrate", "device");
  if (current_stream_is_capturing()) throw bad_argument("calibrate", "no capture in progress", "a capturing stream");
  return to_json(l2pf::calibrate(static_cast<DeviceIndex>(device)), L2PF_VERSION);
}

void apply_calibration(int64_t device, Text form_word, int64_t num_ctas, int64_t piece_bytes, int64_t start_delay_ns,
                       int64_t hot_knee_bytes, double fill_gbps, std::vector<int64_t> partition_of_sm) {
  constexpr const char* op = "apply_calibration";
  require_at_least(device, 0, op, "device");
  require_at_least(num_ctas, 1, op, "num_ctas");
  require_at_least(piece_bytes, kSegmentAlignment, op, "piece_bytes");
  require_at_least(hot_knee_bytes, 0, op, "hot_knee_bytes");
  if (piece_bytes > kMaxPieceBytes)
    throw bad_argument(op, "`piece_bytes` of at most " + std::to_string(kMaxPieceBytes), std::to_string(piece_bytes));
  if (!(fill_gbps >= 0 && fill_gbps <= kMaxFillGbps))
    throw bad_argument(op, "`fill_gbps` in [0, 1e6]", std::to_string(fill_gbps));
  if (start_delay_ns < 0 || start_delay_ns > 100'000)
    throw bad_argument(op, "`start_delay_ns` in [0, 100000]", std::to_string(start_delay_ns));
  const auto known = require_word(form(form_word), op, "`form` to be one of " + forms(), form_word);
  auto& backend = CudaBackend::instance();
  const auto index = static_cast<DeviceIndex>(device);
  if (num_ctas > 4 * backend.num_sms(index))
    throw bad_argument(op, "`num_ctas` of at most four an SM", std::to_string(num_ctas));
  if (piece_bytes % kSegmentAlignment != 0)
    throw bad_argument(op, "`piece_bytes` to be a multiple of 16", std::to_string(piece_bytes));
  for (const int64_t partition : partition_of_sm)
    if (partition != 0 && partition != 1) throw bad_argument(op, "partitions 0 and 1", std::to_string(partition));
  backend.apply(index, {known, static_cast<int>(num_ctas), static_cast<int>(piece_bytes),
                        static_cast<int>(start_delay_ns), hot_knee_bytes, fill_gbps, std::move(partition_of_sm)});
}

#else

std::string calibration_key(int64_t) {
  throw bad_argument("calibration_key", "a build with its CUDA half", "one without");
}

std::string calibrate(int64_t) { throw bad_argument("calibrate", "a build with its CUDA half", "one without"); }

void apply_calibration(int64_t, Text, int64_t, int64_t, int64_t, int64_t, double, std::vector<int64_t>) {
  throw bad_argument("apply_calibration", "a build with its CUDA half", "one without");
}

#endif

}  // namespace l2pf::ops
