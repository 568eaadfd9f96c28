#include <chrono>
#include <thread>
#include <utility>

#include "cuda/graveyard.h"
#include "cuda_fixture.h"
#include "cuda_graph_view.h"

// Captures on a real device: the nodes and edges a prefetch becomes, and how long a graph holds its tables.
namespace l2pf {
namespace {

using testing_support::CudaFixture;
using testing_support::CudaStream;
using testing_support::DeviceMemory;
using testing_support::GraphView;

using Nodes = std::vector<size_t>;

class CudaCaptureTest : public CudaFixture {
 protected:
  void TearDown() override {
    if (exec) cudaGraphExecDestroy(exec);
    if (graph) cudaGraphDestroy(graph);
  }

  void begin(const CudaStream& on) { L2PF_CUDA_CHECK(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal)); }
  void end(const CudaStream& on) {
    L2PF_CUDA_CHECK(cudaStreamEndCapture(on, &graph));
    L2PF_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  }
  // What is made at first use is made here: a capture may not allocate.
  void warm_up(const CudaStream& on) {
    collective(on);
    on.synchronize();
  }
  void window(const CudaStream& on, const Prefetch& prefetch, Placement placement = Placement::kAuto) {
    backend().mark(on.place());
    collective(on);
    backend().attach(prefetch, placement, on.place());
  }
  void replay(const CudaStream& on) {
    L2PF_CUDA_CHECK(cudaGraphLaunch(exec, on));
    on.synchronize();
  }
  bool has_launch_order() {
    int major = 0;
    L2PF_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major >= 9;
  }

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
};

TEST_F(CudaCaptureTest, CaptureIdsAreZeroInEagerCodeAndDifferOtherwise) {
  const CudaStream one, two;
  EXPECT_EQ(backend().capture_id({0, nullptr}), 0u);
  EXPECT_EQ(backend().capture_id(one.place()), 0u);
  begin(one);
  begin(two);
  EXPECT_NE(backend().capture_id(one.place()), 0u);
  EXPECT_NE(backend().capture_id(one.place()), backend().capture_id(two.place()));
  EXPECT_EQ(backend().capture_id({0, nullptr}), 0u) << "the legacy stream is never captured";
  cudaGraph_t unused = nullptr;
  L2PF_CUDA_CHECK(cudaStreamEndCapture(two, &unused));
  cudaGraphDestroy(unused);
  end(one);
  EXPECT_EQ(backend().capture_id(one.place()), 0u);
}

TEST_F(CudaCaptureTest, EachWindowIsOneNodeInLineThatStartsWithItsCollective) {
  const CudaStream stream;
  const DeviceMemory weights(2 * kMiB);
  const auto table = table_of({{{weights.address(), kMiB, {}}}, {{weights.address() + kMiB, kMiB, {}}}}, stream);
  warm_up(stream);
  if (!has_launch_order()) GTEST_SKIP() << "launch-completion edges exist from sm_90 on";
  begin(stream);
  for (int i = 0; i < 2; ++i) window(stream, {table, i, {}, Form::kAuto}, Placement::kInLine);
  backend().join(stream.place());
  collective(stream);
  end(stream);

  const GraphView view(graph);
  const Nodes prefetches = view.nodes_named("l2pf_prefetch");
  const Nodes collectives = view.nodes_named("l2pf_emulated_collective");
  ASSERT_EQ(prefetches.size(), 2u);
  ASSERT_EQ(collectives.size(), 3u);
  EXPECT_EQ(view.edges.size(), 4u) << "one chain: no branch, no join";
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(view.sources_of(prefetches[i], true), (Nodes{collectives[i]}));
    EXPECT_EQ(view.sources_of(collectives[i + 1], false), (Nodes{prefetches[i]}));
  }
}

TEST_F(CudaCaptureTest, OnABranchEachNodeIsBehindThePreviousOne) {
  const CudaStream stream;
  const DeviceMemory weights(3 * kMiB);
  const uintptr_t base = weights.address();
  const auto table = table_of({{{base, kMiB, {}}}, {{base + kMiB, kMiB, {}}}, {{base + 2 * kMiB, kMiB, {}}}}, stream);
  warm_up(stream);
  if (!has_launch_order()) GTEST_SKIP() << "launch-completion edges exist from sm_90 on";
  begin(stream);
  for (int i = 0; i < 3; ++i) window(stream, {table, i, {}, Form::kAuto}, Placement::kLaunchOrder);
  backend().join(stream.place());
  collective(stream);
  end(stream);

  const GraphView view(graph);
  const Nodes prefetches = view.nodes_named("l2pf_prefetch");
  const Nodes collectives = view.nodes_named("l2pf_emulated_collective");
  ASSERT_EQ(prefetches.size(), 3u);
  ASSERT_EQ(collectives.size(), 4u);
  EXPECT_EQ(view.names.size(), 7u) << "no event, no other node";
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(view.sources_of(prefetches[i], true), (Nodes{collectives[i]}));
    EXPECT_EQ(view.sources_of(prefetches[i], false), i == 0 ? Nodes{} : Nodes{prefetches[i - 1]});
    if (i > 0) EXPECT_EQ(view.sources_of(collectives[i], false), (Nodes{collectives[i - 1]})) << "it does not wait";
  }
  Nodes joined = view.sources_of(collectives[3], false);
  std::sort(joined.begin(), joined.end());
  Nodes expected{collectives[2], prefetches[2]};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(joined, expected);
}

TEST_F(CudaCaptureTest, TheSideStreamPlacementStartsWhereTheCollectiveDid) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  const auto table = table_of({{{weights.address(), kMiB, {}}}}, stream);
  warm_up(stream);
  begin(stream);
  collective(stream);
  window(stream, {table, 0, {}, Form::kAuto}, Placement::kSideStream);
  end(stream);
  const GraphView view(graph);
  const Nodes prefetches = view.nodes_named("l2pf_prefetch");
  ASSERT_EQ(prefetches.size(), 1u);
  EXPECT_EQ(view.sources_of(prefetches[0], false), (Nodes{view.nodes_named("l2pf_emulated_collective")[0]}));
  EXPECT_EQ(view.sources_of(prefetches[0], true), Nodes{});
}

TEST_F(CudaCaptureTest, ACaptureThatEndsWithAPrefetchEndsCleanlyAndReplaysIt) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  const auto table = table_of({{{weights.address(), kMiB, {}}}}, stream);
  warm_up(stream);
  begin(stream);
  window(stream, {table, 0, {}, Form::kAuto});
  end(stream);
  watch(*table, 0);
  replay(stream);
  EXPECT_EQ(num_ctas_done(*table, 0), static_cast<uint32_t>(table->shape().num_ctas))
      << "the end of the replay waits for it";
}

TEST_F(CudaCaptureTest, AJoinedCaptureThatEndsRightThereEndsCleanly) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  const auto table = table_of({{{weights.address(), kMiB, {}}}}, stream);
  warm_up(stream);
  begin(stream);
  window(stream, {table, 0, {}, Form::kAuto});
  backend().join(stream.place());
  end(stream);
  replay(stream);
}

TEST_F(CudaCaptureTest, APatchSwitchesANodeOffAndOnWithoutRecapture) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  const auto table = table_of({{{weights.address(), kMiB, {}}}}, stream);
  warm_up(stream);
  begin(stream);
  window(stream, {table, 0, {}, Form::kAuto});
  end(stream);
  for (const int64_t byte_limit : {int64_t{0}, kMiB, int64_t{0}}) {
    backend().patch_table(*table, 0, {byte_limit, Form::kAuto}, stream.place());
    stream.synchronize();
    watch(*table, 0);
    replay(stream);
    EXPECT_EQ(num_ctas_done(*table, 0) > 0, byte_limit > 0);
  }
}

TEST_F(CudaCaptureTest, AWindowCannotBeSetOnACapturingStream) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  const auto table = table_of({{{weights.address(), kMiB, {}}}}, stream);
  stream.synchronize();
  begin(stream);
  EXPECT_THROW(backend().patch_table(*table, 0, {0, Form::kAuto}, stream.place()), BackendError);
  end(stream);
}

TEST_F(CudaCaptureTest, SegmentsByValueTakeChainedNodes) {
  const CudaStream stream;
  const DeviceMemory weights(kMiB);
  std::vector<Segment> segments;
  for (uintptr_t i = 0; i < kMaxInlineSegments + 4; ++i) segments.push_back({weights.address() + 4096 * i, 256, {}});
  warm_up(stream);
  begin(stream);
  window(stream, {nullptr, 0, segments, Form::kAuto}, Placement::kLaunchOrder);
  end(stream);
  const GraphView view(graph);
  const Nodes nodes = view.nodes_named("l2pf_prefetch_inline");
  ASSERT_EQ(nodes.size(), 2u);
  const Nodes behind = view.sources_of(nodes[1], false);
  EXPECT_NE(std::find(behind.begin(), behind.end(), nodes[0]), behind.end());
  replay(stream);
}

TEST_F(CudaCaptureTest, TwoCapturesAtOnceKeepTheirNodesApart) {
  const CudaStream one, two;
  const DeviceMemory weights(kMiB);
  const auto table = table_of({{{weights.address(), kMiB, {}}}}, one);
  warm_up(one);
  begin(one);
  begin(two);
  window(one, {table, 0, {}, Form::kAuto});
  window(two, {table, 0, {}, Form::kAuto});
  window(one, {table, 0, {}, Form::kAuto});
  backend().join(two.place());
  backend().join(one.place());
  cudaGraph_t other = nullptr;
  L2PF_CUDA_CHECK(cudaStreamEndCapture(two, &other));
  end(one);
  EXPECT_EQ(GraphView(other).nodes_named("l2pf_prefetch").size(), 1u);
  EXPECT_EQ(GraphView(graph).nodes_named("l2pf_prefetch").size(), 2u);
  cudaGraphDestroy(other);
  replay(one);
}

TEST_F(CudaCaptureTest, ATableOutlivesItsGraphsAndIsFreedAfterTheLast) {
  const CudaStream stream;
  auto weights = std::make_shared<DeviceMemory>(kMiB);
  const std::weak_ptr<DeviceMemory> owner = weights;
  auto table = table_of({{{weights->address(), kMiB, weights}}}, stream);
  const std::weak_ptr<Table> watched = table;
  warm_up(stream);
  const size_t num_captures = Captures::instance().size();
  begin(stream);
  window(stream, {table, 0, {}, Form::kAuto});
  window(stream, {table, 0, {}, Form::kAuto});
  end(stream);
  // Only the graphs hold them from here on.
  table.reset();
  weights.reset();
  Graveyard::instance().drain();
  EXPECT_FALSE(watched.expired());

  L2PF_CUDA_CHECK(cudaGraphDestroy(std::exchange(graph, nullptr)));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  Graveyard::instance().drain();
  EXPECT_FALSE(watched.expired()) << "the executable graph still reads it";
  EXPECT_FALSE(owner.expired());
  replay(stream);

  L2PF_CUDA_CHECK(cudaGraphExecDestroy(std::exchange(exec, nullptr)));
  // CUDA tells on a thread of its own, some time later.
  for (int i = 0; i < 500 && !watched.expired(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    Graveyard::instance().drain();
  }
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(owner.expired());
  EXPECT_LE(Captures::instance().size(), num_captures);
}

}  // namespace
}  // namespace l2pf
