#include "cuda_graph_view.h"
#include "fake_cuda_verb_fixture.h"

// What the backend's verbs put on streams and graphs.
namespace l2pf {
namespace {

using testing_support::GraphView;
using testing_support::Model;
using testing_support::new_cuda_backend;
using testing_support::ours;

using Nodes = std::vector<size_t>;

class FakeCudaVerbTest : public testing_support::FakeCudaVerbFixture {};

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
  const Nodes gemms = view.nodes_named("gemm");
  ASSERT_EQ(prefetches.size(), 3u);
  ASSERT_EQ(collectives.size(), 3u);
  ASSERT_EQ(gemms.size(), 3u);
  EXPECT_EQ(view.names.size(), 9u) << "no event, no other node";
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(view.sources_of(prefetches[i], true), (Nodes{collectives[i]}));
  EXPECT_EQ(view.sources_of(gemms[0], false), (Nodes{prefetches[0]})) << "the first is in line";
  EXPECT_EQ(view.sources_of(gemms[1], false), (Nodes{collectives[1]})) << "few nodes between: the others are not";
  EXPECT_EQ(view.sources_of(prefetches[1], false), Nodes{});
  EXPECT_EQ(view.sources_of(prefetches[2], false), (Nodes{prefetches[1]}));
}

// What a kernel reads of a table's first window; the device's memory is the host's here.
WindowHeader header_of(const std::shared_ptr<Table>& made) {
  return static_cast<const CudaTable&>(*made).window(0)->header;
}

TEST_F(FakeCudaVerbTest, AGpuThatSharesTheHostsMemoryHasACapOnBytesInFlight) {
  EXPECT_EQ(header_of(table(new_cuda_backend())).loads_in_flight, kMaxLoadsInFlight);

  fake_cuda::set_integrated(true);
  CudaBackend& backend = new_cuda_backend();
  EXPECT_EQ(backend.device_info(0).footprint->in_flight_bytes, kSharedMemoryInFlightBytes);
  EXPECT_EQ(backend.device_info(0).forms, (std::vector<Form>{Form::kLoad, Form::kLoadKeep}))
      << "nobody waits for hints";
  const auto made = table(backend);
  EXPECT_EQ(header_of(made).num_ctas * header_of(made).loads_in_flight, 2);
  EXPECT_EQ(header_of(made).form, static_cast<int16_t>(Form::kLoad));
  backend.patch_table(*made, 0, {512, Form::kLines, 0}, place());
  EXPECT_EQ(header_of(made).loads_in_flight, kMaxLoadsInFlight) << "0 asks for no cap";
  EXPECT_EQ(header_of(made).form, static_cast<int16_t>(Form::kLines));
  backend.patch_table(*made, 0, {512, Form::kLines, 64 << 10}, place());
  EXPECT_EQ(header_of(made).num_ctas * header_of(made).loads_in_flight, 1);
  EXPECT_EQ(header_of(made).form, static_cast<int16_t>(Form::kLoad));
}

TEST_F(FakeCudaVerbTest, ANodeIsGivenWhatItsCollectiveCarriesByTableAndByValue) {
  CudaBackend& backend = new_cuda_backend();
  std::vector<CarriedRecords> given;
  fake_cuda::watch_added_nodes([&](const cudaGraphNodeParams& params) {
    given.push_back(*static_cast<const CarriedRecords*>(params.kernel.kernelParams[2]));
  });
  const auto made = table(backend);
  const std::vector<Segment> carried{{0x700000, 4096, {}}, {0x800000, 2 * kMaxCarriedBytes, {}}};
  L2PF_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  for (const Prefetch& prefetch :
       {Prefetch{made, 0, {}, Form::kAuto, carried}, Prefetch{nullptr, 0, segments(1), Form::kAuto, carried},
        Prefetch{made, 0, {}, Form::kAuto}}) {
    L2PF_CUDA_CHECK(fake_cuda::launch_kernel("collective", stream));
    backend.attach(prefetch, Placement::kInLine, place());
  }
  cudaGraph_t graph = nullptr;
  L2PF_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  cudaGraphDestroy(graph);
  ASSERT_EQ(given.size(), 3u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(given[i].address[0], 0x700000u);
    EXPECT_EQ(given[i].num_bytes[0], 4096);
    EXPECT_EQ(given[i].address[1], 0x800000u);
    EXPECT_EQ(given[i].num_bytes[1], kMaxCarriedBytes);
  }
  EXPECT_EQ(given[2].num_bytes[0] + given[2].num_bytes[1], 0) << "a bare prefetch carries nothing";
}

TEST_F(FakeCudaVerbTest, WindowsFarApartAreInLine) {
  CudaBackend& backend = new_cuda_backend();
  const auto two = table(backend);
  L2PF_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 3; ++i) {
    L2PF_CUDA_CHECK(fake_cuda::launch_kernel("collective", stream));
    backend.attach({two, 0, {}, Form::kAuto}, Placement::kAuto, place());
    for (int j = 0; j < 20; ++j) L2PF_CUDA_CHECK(fake_cuda::launch_kernel("gemm", stream));
  }
  backend.join(place());
  cudaGraph_t graph = nullptr;
  L2PF_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  const GraphView view(graph);
  EXPECT_EQ(view.names.size(), 66u);
  EXPECT_EQ(view.edges.size(), 65u) << "one chain";
  for (const size_t prefetch : view.nodes_named("l2pf_prefetch")) EXPECT_EQ(view.sources_of(prefetch, true).size(), 1u);
  cudaGraphDestroy(graph);
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

TEST_F(FakeCudaVerbTest, ATimerHoldsItsStreamBeforeItStarts) {
  CudaBackend& backend = new_cuda_backend();
  L2PF_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  const auto timer = backend.start_timer(place());
  L2PF_CUDA_CHECK(fake_cuda::launch_kernel("collective", stream));
  cudaGraph_t graph = nullptr;
  L2PF_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  const GraphView view(graph);
  // One holds it, one is timed for what a kernel of known length shows.
  ASSERT_EQ(view.nodes_named("spin").size(), 2u);
  EXPECT_LT(view.nodes_named("spin")[1], view.nodes_named("collective")[0]);
  cudaGraphDestroy(graph);
}

TEST_F(FakeCudaVerbTest, AnErrorThatSomeoneElseLeftStaysTheirs) {
  CudaBackend& backend = new_cuda_backend();
  EXPECT_EQ(cudaSetDevice(99), cudaErrorInvalidDevice);
  const auto made = table(backend);
  backend.fork({made, 0, {}, Form::kAuto}, place());
  backend.fork({nullptr, 0, segments(1), Form::kAuto}, place());
  backend.join(place());
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

}  // namespace
}  // namespace l2pf
