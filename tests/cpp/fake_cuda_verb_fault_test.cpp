#include "cuda/calibration.h"
#include "cuda/emulated_collective.h"
#include "fake_cuda_verb_fixture.h"

// Each CUDA call of the backend's verbs fails in turn: a BackendError names it, what was taken is given back, and no
// error is left behind.
namespace l2pf {
namespace {

using fake_cuda::Live;
using testing_support::OurLines;
using testing_support::ours;

class FakeCudaVerbFaultTest : public testing_support::FakeCudaVerbFixture {
 protected:
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
};

TEST_F(FakeCudaVerbFaultTest, TheFirstUseOfADeviceFailsAtEveryCall) {
  EXPECT_GT(fail_each_call([] { return std::make_unique<CudaBackend>(); },
                           [](CudaBackend& backend) { backend.device_info(1); }),
            5);
}

TEST_F(FakeCudaVerbFaultTest, MakingATableFailsAtEveryCallAndItsBlockIsUsedAgain) {
  EXPECT_GT(fail_each_call(&FakeCudaVerbFaultTest::made_backend,
                           [&](CudaBackend& backend) {
                             table(backend);
                             table(backend);
                           }),
            5);
}

TEST_F(FakeCudaVerbFaultTest, APatchFailsAtEveryCall) {
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

TEST_F(FakeCudaVerbFaultTest, ABareForkAndJoinFailAtEveryCall) {
  EXPECT_GT(fail_each_call(&FakeCudaVerbFaultTest::made_backend,
                           [&](CudaBackend& backend) {
                             backend.fork({nullptr, 0, segments(kMaxInlineSegments + 1), Form::kAuto}, place());
                             backend.join(place());
                           }),
            8);
}

TEST_F(FakeCudaVerbFaultTest, ABareAttachAndJoinFailAtEveryCallAndTheCaptureEndsCleanly) {
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

TEST_F(FakeCudaVerbFaultTest, ApplyingAPartitionMapFailsAtEveryCall) {
  CudaBackend::Choice choice;
  choice.num_ctas = 2;
  choice.piece_bytes = 4096;
  choice.partition_of_sm.assign(fake_cuda::kNumSms, 1);
  EXPECT_GT(fail_each_call(&FakeCudaVerbFaultTest::made_backend,
                           [&](CudaBackend& backend) {
                             backend.apply(0, choice);
                             EXPECT_EQ(backend.device_info(0).forms.back(), Form::kLoadBoth);
                           }),
            5);
}

TEST_F(FakeCudaVerbFaultTest, AMapThatFailedToBeCopiedLeavesItsBlockToTheNext) {
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

TEST_F(FakeCudaVerbFaultTest, ATimerFailsAtEveryCall) {
  EXPECT_GT(fail_each_call(&FakeCudaVerbFaultTest::made_backend,
                           [&](CudaBackend& backend) {
                             const auto timer = backend.start_timer(place());
                             timer->stop(place());
                             EXPECT_TRUE(timer->elapsed_us().has_value());
                           }),
            10);
}

TEST_F(FakeCudaVerbFaultTest, AnEmulatedCollectiveFailsAtEveryCallAndGivesItsMemoryBack) {
  int data = 0;
  const auto prepare = [] { return std::make_unique<int>(0); };
  const int before = fake_cuda::live().allocations;
  EXPECT_GT(
      fail_each_call(prepare, [&](int&) { EmulatedCollective::instance().launch(&data, sizeof(data), 0, 1, place()); }),
      1);
  EXPECT_EQ(fake_cuda::live().allocations, before + 1) << "the counters of the one that was made";
}

TEST_F(FakeCudaVerbFaultTest, CalibrationFailsAtAnyCallAndGivesEverythingBack) {
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
