#include <sstream>

#include "cuda/calibration.h"
#include "cuda/emulated_collective.h"
#include "cuda_graph_view.h"
#include "fake_cuda_fixture.h"

// The backend's verbs by themselves: what they put on streams and graphs, and that each fails with a BackendError that
// names the call, gives back what it took, and leaves no error behind.
namespace l2pf {
namespace {

using fake_cuda::Live;
using testing_support::FakeCudaFixture;
using testing_support::GraphView;
using testing_support::Model;
using testing_support::new_cuda_backend;
using testing_support::OurLines;
using testing_support::ours;

using Nodes = std::vector<size_t>;

class FakeCudaVerbTest : public FakeCudaFixture {
 protected:
  void SetUp() override {
    FakeCudaFixture::SetUp();
    L2PF_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  void TearDown() override {
    cudaStreamDestroy(stream);
    FakeCudaFixture::TearDown();
  }

  static std::vector<Segment> segments(size_t num_segments) {
    std::vector<Segment> made;
    for (uintptr_t i = 0; i < num_segments; ++i) made.push_back({0x1000 * (i + 1), 256, {}});
    return made;
  }
  std::shared_ptr<Table> table(CudaBackend& backend) {
    auto plan = std::make_shared<Plan>();
    plan->device = 0;
    plan->windows.push_back({0, CollectiveKind::kAllReduce, segments(2), 512});
    const std::vector<WindowSetting> settings{{512, Form::kAuto}};
    return backend.make_table(plan, settings, place());
  }
  Place place() const { return {0, stream}; }

  // Fails each call of `verb` in turn; `prepare` runs before, its calls do not fail. Returns the number of calls.
  template <typename Prepare, typename Verb>
  int64_t fail_each_call(const Prepare& prepare, const Verb& verb, int64_t step = 1) {
    for (int64_t call_index = 0;; call_index += step) {
      SCOPED_TRACE("call " + std::to_string(call_index));
      const Live before = fake_cuda::live();
      std::string error;
      std::vector<std::string> lines;
      {
        const auto prepared = prepare();
        OurLines captured;
        fake_cuda::fail_call(call_index, cudaErrorIllegalAddress);
        ours([&] {
          try {
            verb(*prepared);
          } catch (const BackendError& thrown) {
            error = thrown.what();
          }
        });
        lines = captured.take();
      }
      const std::string failed = fake_cuda::failed_call();
      fake_cuda::fail_no_call();
      Graveyard::instance().drain();
      fake_cuda::take_kernel_runs();
      const Live after = fake_cuda::live();
      EXPECT_EQ(after.events, before.events) << failed;
      EXPECT_EQ(after.streams, before.streams) << failed;
      EXPECT_EQ(after.user_objects, before.user_objects) << failed;
      EXPECT_EQ(lines.size() + (error.empty() ? 0 : 1), failed.empty() ? 0u : 1u) << failed << ", " << error;
      if (!failed.empty() && !HasFailure()) continue;
      std::cout << call_index / step << " calls failed in turn\n";
      return call_index;
    }
  }
  // A backend that lives as long as what is prepared; its device is made.
  static std::unique_ptr<CudaBackend> made_backend() {
    auto backend = std::make_unique<CudaBackend>();
    backend->device_info(0);
    return backend;
  }

  cudaStream_t stream = nullptr;
};

TEST_F(FakeCudaVerbTest, AForkWaitsForItsStreamAndAJoinForThePrefetch) {
  CudaBackend& backend = new_cuda_backend();
  const auto made = table(backend);
  fake_cuda::set_deferred(true);
  fake_cuda::take_kernel_runs();
  L2PF_CUDA_CHECK(fake_cuda::launch_kernel("before", stream));
  backend.fork({made, 0, {}, Form::kAuto}, place());
  L2PF_CUDA_CHECK(fake_cuda::launch_kernel("beside", stream));
  backend.join(place());
  L2PF_CUDA_CHECK(fake_cuda::launch_kernel("after", stream));
  L2PF_CUDA_CHECK(cudaStreamSynchronize(stream));
  const auto runs = fake_cuda::take_kernel_runs();
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_EQ(runs[0].name, "before");
  EXPECT_EQ(runs[1].name, "beside") << "it does not wait";
  EXPECT_NE(runs[2].name.find("l2pf_prefetch"), std::string::npos);
  EXPECT_NE(runs[2].stream, stream);
  EXPECT_EQ(runs[3].name, "after");
}

TEST_F(FakeCudaVerbTest, WindowsBecomeNodesThatStartWithTheirCollectives) {
  CudaBackend& backend = new_cuda_backend();
  Model model(backend, 0);
  model.eager();
  model.eager();
  model.capture();
  const GraphView view(model.graph());
  const Nodes prefetches = view.nodes_named("l2pf_prefetch");
  const Nodes collectives = view.nodes_named("collective");
  ASSERT_EQ(prefetches.size(), 3u);
  ASSERT_EQ(collectives.size(), 3u);
  EXPECT_EQ(view.names.size(), 9u) << "no event, no other node";
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(view.sources_of(prefetches[i], true), (Nodes{collectives[i]}));
    EXPECT_EQ(view.sources_of(prefetches[i], false), i == 0 ? Nodes{} : Nodes{prefetches[i - 1]});
  }
}

TEST_F(FakeCudaVerbTest, BeforeSm90NodesStartWhereTheirCollectivesDo) {
  fake_cuda::reset(1, 8);
  Model model(new_cuda_backend(), 0);
  model.eager();
  model.eager();
  model.capture();
  const GraphView view(model.graph());
  const Nodes gemms = view.nodes_named("gemm");
  const Nodes prefetches = view.nodes_named("l2pf_prefetch");
  ASSERT_EQ(prefetches.size(), 3u);
  EXPECT_EQ(view.sources_of(prefetches[1], false), (Nodes{gemms[0], prefetches[0]}));
  EXPECT_EQ(view.sources_of(prefetches[1], true), Nodes{});
}

TEST_F(FakeCudaVerbTest, ATimerThatIsNotDoneTellsNothingAndLeavesNoError) {
  CudaBackend& backend = new_cuda_backend();
  fake_cuda::set_deferred(true);
  const auto timer = backend.start_timer(place());
  L2PF_CUDA_CHECK(fake_cuda::launch_kernel("collective", stream));
  timer->stop(place());
  ours([&] { EXPECT_EQ(timer->elapsed_us(), std::nullopt); });
  L2PF_CUDA_CHECK(cudaStreamSynchronize(stream));
  EXPECT_GT(timer->elapsed_us().value_or(0), 0);
}

TEST_F(FakeCudaVerbTest, TheFirstUseOfADeviceFailsAtEveryCall) {
  EXPECT_GT(fail_each_call([] { return std::make_unique<CudaBackend>(); },
                           [](CudaBackend& backend) { backend.device_info(1); }),
            5);
}

TEST_F(FakeCudaVerbTest, MakingATableFailsAtEveryCallAndItsBlockIsUsedAgain) {
  EXPECT_GT(fail_each_call(&FakeCudaVerbTest::made_backend,
                           [&](CudaBackend& backend) {
                             table(backend);
                             table(backend);
                           }),
            5);
}

TEST_F(FakeCudaVerbTest, APatchFailsAtEveryCall) {
  struct Prepared {
    std::unique_ptr<CudaBackend> backend = made_backend();
    std::shared_ptr<Table> table;
  };
  const auto prepare = [&] {
    auto prepared = std::make_unique<Prepared>();
    prepared->table = table(*prepared->backend);
    return prepared;
  };
  EXPECT_GT(fail_each_call(prepare,
                           [&](Prepared& own) {
                             own.backend->patch_table(*own.table, 0, {16, Form::kLines}, place());
                           }),
            2);
}

TEST_F(FakeCudaVerbTest, ABareForkAndJoinFailAtEveryCall) {
  EXPECT_GT(fail_each_call(&FakeCudaVerbTest::made_backend,
                           [&](CudaBackend& backend) {
                             backend.fork({nullptr, 0, segments(kMaxInlineSegments + 1), Form::kAuto}, place());
                             backend.join(place());
                           }),
            8);
}

TEST_F(FakeCudaVerbTest, ABareAttachAndJoinFailAtEveryCallAndTheCaptureEndsCleanly) {
  struct Capturing {
    explicit Capturing(cudaStream_t on) : stream(on) {
      L2PF_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    }
    ~Capturing() {
      cudaGraph_t graph = nullptr;
      EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
    std::unique_ptr<CudaBackend> backend = made_backend();
    cudaStream_t stream;
  };
  EXPECT_GT(
      fail_each_call(
          [&] { return std::make_unique<Capturing>(stream); },
          [&](Capturing& own) {
            own.backend->mark(place());
            own.backend->attach({nullptr, 0, segments(kMaxInlineSegments + 1), Form::kAuto}, Placement::kAuto, place());
            own.backend->join(place());
          }),
      8);
}

TEST_F(FakeCudaVerbTest, ApplyingAPartitionMapFailsAtEveryCall) {
  CudaBackend::Choice choice;
  choice.num_ctas = 2;
  choice.piece_bytes = 4096;
  choice.partition_of_sm.assign(fake_cuda::kNumSms, 1);
  EXPECT_GT(fail_each_call(&FakeCudaVerbTest::made_backend,
                           [&](CudaBackend& backend) {
                             backend.apply(0, choice);
                             EXPECT_EQ(backend.device_info(0).forms.back(), Form::kLoadBoth);
                           }),
            5);
}

TEST_F(FakeCudaVerbTest, AMapThatFailedToBeCopiedLeavesItsBlockToTheNext) {
  CudaBackend::Choice choice;
  choice.num_ctas = 2;
  choice.partition_of_sm.assign(fake_cuda::kNumSms, 1);
  const auto backend = made_backend();
  const int before = fake_cuda::live().allocations;
  int num_applied = 0;
  bool has_failed = true;
  for (int64_t call_index = 0; has_failed; ++call_index) {
    OurLines lines;
    fake_cuda::fail_call(call_index, cudaErrorIllegalAddress);
    ours([&] {
      try {
        backend->apply(0, choice);
        ++num_applied;
      } catch (const BackendError&) {  // counted by what it did not apply
      }
    });
    lines.take();
    has_failed = !fake_cuda::failed_call().empty();
  }
  EXPECT_EQ(fake_cuda::live().allocations, before + num_applied) << "a map that is in use stays where it is";
}

TEST_F(FakeCudaVerbTest, ATimerFailsAtEveryCall) {
  EXPECT_GT(fail_each_call(&FakeCudaVerbTest::made_backend,
                           [&](CudaBackend& backend) {
                             const auto timer = backend.start_timer(place());
                             timer->stop(place());
                             EXPECT_TRUE(timer->elapsed_us().has_value());
                           }),
            10);
}

TEST_F(FakeCudaVerbTest, AnEmulatedCollectiveFailsAtEveryCallAndGivesItsMailboxBack) {
  int data = 0;
  const auto prepare = [] { return std::make_unique<int>(0); };
  const int before = fake_cuda::live().allocations;
  EXPECT_GT(
      fail_each_call(prepare, [&](int&) { EmulatedCollective::instance().launch(&data, sizeof(data), 0, 1, place()); }),
      1);
  EXPECT_EQ(fake_cuda::live().allocations, before + 2) << "mailbox and counters of the one that was made";
}

TEST_F(FakeCudaVerbTest, CalibrationFailsAtAnyCallAndGivesEverythingBack) {
  int data = 0;
  EmulatedCollective::instance().launch(&data, sizeof(data), 0, 1, place());  // kept for the life of the process
  const int before = fake_cuda::live().allocations;
  const auto prepare = [] { return std::make_unique<int>(0); };
  // In steps: it makes thousands of calls, in loops.
  const int64_t num_calls = fail_each_call(
      prepare, [](int&) { calibrate(0); }, 199);
  EXPECT_GT(num_calls, 500);
  EXPECT_EQ(fake_cuda::live().allocations, before);
}

}  // namespace
}  // namespace l2pf
