#include "forward_fixture.h"

// What a captured collective reads and writes goes to its window's node.
namespace l2pf {
namespace {

using testing_support::ForwardFixture;
using testing_support::weight;

using ForwardCarriedTest = ForwardFixture;

TEST_F(ForwardCarriedTest, ANodeReadsWhatItsCollectiveCarriesWherePlaceAndViewAreKnown) {
  const Segment x{0x100000, 256, nullptr};
  const Segment y{0x200000, 512, nullptr};
  const std::optional<Segment> none;
  const std::vector<std::pair<std::optional<Segment>, std::optional<Segment>>> carried{{x, x}, {x, y}, {none, y}};
  const auto run_with = [&] {
    ASSERT_TRUE(begin());
    for (const auto& [input, output] : carried) {
      current_forward()->collective_begin(CollectiveKind::kAllReduce, backend, main, input);
      current_forward()->collective_end(backend, main, output);
      current_forward()->record_weight(weight(0x1000), main.device);
    }
    end_forward();
  };
  run_with();
  run_with();
  EXPECT_TRUE(backend.carried.empty()) << "no node in eager code";
  backend.captures[1] = kCapture;
  run_with();
  backend.captures.clear();
  const auto addresses = [&](size_t i) {
    std::vector<uintptr_t> found;
    for (const Segment& segment : backend.carried.at(i)) found.push_back(segment.address);
    return found;
  };
  ASSERT_EQ(backend.carried.size(), 3u);
  EXPECT_EQ(addresses(0), (std::vector<uintptr_t>{x.address})) << "in place: once";
  EXPECT_EQ(addresses(1), (std::vector<uintptr_t>{x.address, y.address}));
  EXPECT_EQ(addresses(2), (std::vector<uintptr_t>{y.address}));
}

}  // namespace
}  // namespace l2pf
