#include "cuda/calibration.h"

#include "cuda_fixture.h"

// One calibration of the real device: figures that no GPU we know of can miss.
namespace l2pf {
namespace {

using testing_support::CudaFixture;

class CudaCalibrationTest : public CudaFixture {};

TEST_F(CudaCalibrationTest, FindsFiguresThatMakeSenseAndAChoiceTheBackendTakes) {
  const DeviceInfo info = backend().device_info(0);
  const int num_sms = backend().num_sms(0);
  const Calibration found = calibrate(0);

  EXPECT_EQ(found.l2_bytes, info.l2_bytes);
  EXPECT_GT(found.hot_knee_bytes, 0);
  EXPECT_LE(found.hot_knee_bytes, found.l2_bytes);
  EXPECT_GT(found.dram_read_gbps, 50);
  EXPECT_LT(found.dram_read_gbps, 20000);
  EXPECT_GT(found.hot_us, 0);
  EXPECT_LT(found.hot_us, found.cold_us);
  EXPECT_LE(found.after_us.at(found.form), 1.1 * found.cold_us);
  EXPECT_GE(found.after_us.at(found.form), 0.5 * found.hot_us);
  EXPECT_GE(found.num_ctas, 1);
  EXPECT_LE(found.num_ctas, 4 * num_sms);
  EXPECT_GT(found.chosen_fill_gbps(), 0);
  if (!found.partition_of_sm.empty()) {
    ASSERT_EQ(found.partition_of_sm.size(), static_cast<size_t>(num_sms));
    const auto in_second = std::count(found.partition_of_sm.begin(), found.partition_of_sm.end(), 1);
    EXPECT_GE(in_second, num_sms / 4);
    EXPECT_LE(in_second, num_sms - num_sms / 4);
  }

  backend().apply(0, {found.form, found.num_ctas, found.piece_bytes, found.start_delay_ns, found.hot_knee_bytes,
                      found.chosen_fill_gbps(), found.partition_of_sm});
  const auto forms = backend().device_info(0).forms;
  EXPECT_NE(std::find(forms.begin(), forms.end(), found.form), forms.end());
  EXPECT_GT(backend().auto_budget_bytes(0, 10), 0);
  EXPECT_LE(backend().auto_budget_bytes(0, 1e6), found.hot_knee_bytes);
}

}  // namespace
}  // namespace l2pf
