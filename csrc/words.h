#pragma once

#include <optional>
#include <string>
#include <string_view>

// The closed sets of words that cross the operator boundary, and their text.
namespace l2pf {

enum class CollectiveKind { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast };
enum class Form { kAuto, kBulk, kLines, kLoad, kLoadKeep, kLoadBoth };
enum class Placement { kAuto, kInLine, kLaunchOrder, kSideStream };

std::string_view to_string(CollectiveKind kind);
std::string_view to_string(Form form);
std::string_view to_string(Placement placement);

std::optional<CollectiveKind> collective_kind(std::string_view text);
std::optional<Form> form(std::string_view text);
std::optional<Placement> placement(std::string_view text);

// "all_reduce, all_gather, ...": what an error message lists as expected.
std::string collective_kinds();
std::string forms();
std::string placements();

// Decode-like forwards are the ones whose GEMMs are weight-bound. A "/variant" suffix keeps graphs of one
// shape apart (LoRA variants, streams) and does not change what kind of forward it is.
bool is_decode_like(std::string_view mode);

}  // namespace l2pf
