#include "status.h"

#include "forward_fixture.h"
#include "registry.h"

namespace l2pf {
namespace {

using testing_support::ForwardFixture;
using testing_support::weight;

class StatusTest : public ForwardFixture {
 protected:
  int64_t handle = make({.budget_bytes = 96, .form = Form::kLines, .plan = {.all_gather = false}});

  int64_t make(PrefetcherOptions options) {
    const int64_t made = Registry::instance().create(options);
    prefetcher = Registry::instance().get(made);
    return made;
  }
  std::string status(const std::string& error = "") {
    return status_json("0.1.0", false, {{"cuda:0", 0, &backend, error}});
  }
  std::string status_of_none() { return status_json("0.1.0", true, {}); }

  void TearDown() override {
    ForwardFixture::TearDown();
    Registry::instance().destroy(handle);
  }
};

TEST_F(StatusTest, IsTheWholeDocumentWithoutASignature) {
  EXPECT_EQ(
      status_of_none(),
      R"({"version":"0.1.0","cuda_built":true,"forms":["bulk","lines","load","load_keep","load_both"],"devices":[],)"
      R"("forward":null,"prefetchers":[{"prefetcher":)" +
          std::to_string(handle) +
          R"(,"budget_bytes":96,"all_gather":false,"form":"lines","placement":"auto","in_flight_bytes":-1,"max_tokens":256,)"
          R"("back_to_back":false,"strict":false,"paused":false,"signatures":[]}]})");
}

TEST_F(StatusTest, ShowsASignatureAndItsWindows) {
  ASSERT_TRUE(begin());
  current_forward()->record_weight(weight(0x500, 32), 0);
  current_forward()->record_weight(std::nullopt, 0);
  for (const auto& step : steps) collective(step.kind, step.weights);
  end_forward();
  EXPECT_CONTAINS(
      R"("signatures":[{"model":1,"num_tokens":1,"mode":"decode","state":"planned","reason":"","latched_off":false,)"
      R"("num_collectives":3,"num_windows":1,"planned_bytes":96,"prologue_bytes":32,"evicted_bytes":0,)"
      R"("num_other_device":0,"num_skipped_views":1,"num_eager":1,"num_captures":0,"num_launched":0,"windows":[{"collective_index":0,)"
      R"("kind":"all_reduce","num_segments":2,"window_bytes":128,"budget_bytes":96,"form":"lines","window_us":0}]}])",
      status());
}

TEST_F(StatusTest, ShowsWhatSetWindowSet) {
  eager();
  prefetcher->set_window(signature, 0, 32, Form::kLoad, backend, main);
  EXPECT_CONTAINS(R"("planned_bytes":32)", status());
  EXPECT_CONTAINS(R"("window_bytes":128,"budget_bytes":32,"form":"load")", status());
}

TEST_F(StatusTest, ShowsTheReasonOfAFrozenSignature) {
  capture();
  EXPECT_CONTAINS(R"("state":"frozen","reason":"captured before)", status());
}

TEST_F(StatusTest, ShowsALatchedSignature) {
  backend.failing_verb = "make_table";
  eager();
  EXPECT_CONTAINS(R"("reason":"latched off: make_table failed","latched_off":true)", status());
}

TEST_F(StatusTest, ShowsTheDeviceAndItsOutstandingPrefetch) {
  EXPECT_CONTAINS(R"("devices":[{"device":"cuda:0","name":"fake","l2_bytes":33554432,"forms":["lines","load"],)"
                  R"("footprint":null,"outstanding":false,"error":"why"}])",
                  status("why"));
  Outstanding::of(backend).fork({nullptr, 0, {weight(0x1000)}, Form::kAuto}, main);
  EXPECT_CONTAINS(R"("outstanding":true)", status());
  Outstanding::of(backend).join(main, 0);
}

TEST_F(StatusTest, ShowsThisThreadsForward) {
  ASSERT_TRUE(begin_forward(handle, prefetcher, signature, false));
  collective(CollectiveKind::kAllReduce);
  EXPECT_CONTAINS(R"("forward":{"prefetcher":)" + std::to_string(handle) +
                      R"(,"model":1,"num_tokens":1,"mode":"decode","num_collectives":1})",
                  status());
  end_forward();
  EXPECT_CONTAINS(R"("forward":null)", status());
}

TEST_F(StatusTest, EscapesTheMode) {
  signature.mode = "decode/\"x\"\n";
  eager();
  EXPECT_CONTAINS(R"("mode":"decode/\"x\"\u000a")", status());
}

TEST_F(StatusTest, ADeviceThatFailsIsReportedAndTheRestStays) {
  eager();
  backend.failing_verb = "device_info";
  EXPECT_CONTAINS(R"("device":"cuda:0","name":"","l2_bytes":0,"forms":[],"footprint":null,"outstanding":false,)"
                  R"("error":"device_info failed")",
                  status());
  EXPECT_CONTAINS(R"("state":"planned")", status());
}

TEST_F(StatusTest, ShowsEveryPrefetcher) {
  const int64_t other = Registry::instance().create({.strict = true});
  EXPECT_CONTAINS(R"("strict":true,"paused":false,"signatures":[]})", status());
  EXPECT_CONTAINS(R"({"prefetcher":)" + std::to_string(handle), status());
  Registry::instance().destroy(other);
}

}  // namespace
}  // namespace l2pf
