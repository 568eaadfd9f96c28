#include "registry.h"

#include "fake_backend.h"

namespace l2pf {
namespace {

std::string message_of_get(int64_t handle) {
  try {
    Registry::instance().get(handle);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Registry, HandleFindsThePrefetcherMade) {
  const int64_t handle = Registry::instance().create({.max_tokens = 17});
  EXPECT_EQ(Registry::instance().get(handle)->options().max_tokens, 17);
  EXPECT_TRUE(Registry::instance().all().contains(handle));
  Registry::instance().destroy(handle);
  EXPECT_FALSE(Registry::instance().all().contains(handle));
}

TEST(Registry, HandlesStartAboveZeroAndAreNeverReused) {
  const int64_t first = Registry::instance().create({});
  Registry::instance().destroy(first);
  const int64_t second = Registry::instance().create({});
  Registry::instance().destroy(second);
  EXPECT_GT(first, 0);
  EXPECT_GT(second, first);
}

TEST(Registry, ADeadHandleIsNamed) {
  const int64_t handle = Registry::instance().create({});
  Registry::instance().destroy(handle);
  EXPECT_EQ(message_of_get(handle), "expected the handle of a live prefetcher, got " + std::to_string(handle));
  EXPECT_EQ(message_of_get(0), "expected the handle of a live prefetcher, got 0");
  EXPECT_THROW(Registry::instance().destroy(handle), std::invalid_argument);
}

TEST(Registry, AForwardKeepsADestroyedPrefetcherAlive) {
  const int64_t handle = Registry::instance().create({});
  const auto held = Registry::instance().get(handle);
  Registry::instance().destroy(handle);
  EXPECT_TRUE(held->accepts({1, 1, "decode"}));
}

}  // namespace
}  // namespace l2pf
