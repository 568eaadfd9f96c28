#include "words.h"

#include <gtest/gtest.h>

namespace l2pf {
namespace {

TEST(Words, EveryCollectiveKindReadsBackFromItsText) {
  for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                          CollectiveKind::kAllToAll, CollectiveKind::kBroadcast})
    EXPECT_EQ(collective_kind(to_string(kind)), kind);
}

TEST(Words, EveryFormReadsBackFromItsText) {
  for (const auto one : {Form::kAuto, Form::kBulk, Form::kLines, Form::kLoad, Form::kLoadKeep, Form::kLoadBoth})
    EXPECT_EQ(form(to_string(one)), one);
}

TEST(Words, EveryPlacementReadsBackFromItsText) {
  for (const auto one : {Placement::kAuto, Placement::kLaunchOrder, Placement::kSideStream})
    EXPECT_EQ(placement(to_string(one)), one);
}

TEST(Words, UnknownTextIsNothing) {
  EXPECT_EQ(collective_kind("allreduce"), std::nullopt);
  EXPECT_EQ(collective_kind(""), std::nullopt);
  EXPECT_EQ(form("Bulk"), std::nullopt);
  EXPECT_EQ(placement("side"), std::nullopt);
}

TEST(Words, ListsNameEveryWord) {
  EXPECT_EQ(collective_kinds(), "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast");
  EXPECT_EQ(forms(), "auto, bulk, lines, load, load_keep, load_both");
  EXPECT_EQ(placements(), "auto, in_line, launch_order, side_stream");
}

TEST(Words, DecodeLikeModes) {
  for (const auto* mode : {"decode", "target_verify", "draft_extend", "decode/lora", "target_verify/stream1"})
    EXPECT_TRUE(is_decode_like(mode)) << mode;
}

TEST(Words, OtherModesAreNotDecodeLike) {
  for (const auto* mode : {"", "prefill", "extend", "mixed", "Decode", "decode_", "decoder", "lora/decode", "/decode"})
    EXPECT_FALSE(is_decode_like(mode)) << mode;
}

}  // namespace
}  // namespace l2pf
