#include "words.h"

#include <array>
#include <utility>

namespace l2pf {
namespace {

template <typename T, size_t N>
using Words = std::array<std::pair<T, std::string_view>, N>;

constexpr Words<CollectiveKind, 5> kCollectiveKinds{{{CollectiveKind::kAllReduce, "all_reduce"},
                                                     {CollectiveKind::kAllGather, "all_gather"},
                                                     {CollectiveKind::kReduceScatter, "reduce_scatter"},
                                                     {CollectiveKind::kAllToAll, "all_to_all"},
                                                     {CollectiveKind::kBroadcast, "broadcast"}}};
constexpr Words<Form, 6> kForms{{{Form::kAuto, "auto"},
                                 {Form::kBulk, "bulk"},
                                 {Form::kLines, "lines"},
                                 {Form::kLoad, "load"},
                                 {Form::kLoadKeep, "load_keep"},
                                 {Form::kLoadBoth, "load_both"}}};
constexpr Words<Placement, 4> kPlacements{{{Placement::kAuto, "auto"},
                                            {Placement::kInLine, "in_line"},
                                            {Placement::kLaunchOrder, "launch_order"},
                                            {Placement::kSideStream, "side_stream"}}};
constexpr std::array<std::string_view, 3> kDecodeLikeModes{"decode", "target_verify", "draft_extend"};

template <typename T, size_t N>
std::string_view text_of(const Words<T, N>& words, T value) {
  for (const auto& [word, text] : words)
    if (word == value) return text;
  return "?";
}

template <typename T, size_t N>
std::optional<T> parse(const Words<T, N>& words, std::string_view text) {
  for (const auto& [word, candidate] : words)
    if (candidate == text) return word;
  return std::nullopt;
}

template <typename T, size_t N>
std::string join(const Words<T, N>& words) {
  std::string joined;
  for (const auto& [word, text] : words) {
    if (!joined.empty()) joined += ", ";
    joined += text;
  }
  return joined;
}

}  // namespace

std::string_view to_string(CollectiveKind kind) { return text_of(kCollectiveKinds, kind); }
std::string_view to_string(Form form) { return text_of(kForms, form); }
std::string_view to_string(Placement placement) { return text_of(kPlacements, placement); }

std::optional<CollectiveKind> collective_kind(std::string_view text) { return parse(kCollectiveKinds, text); }
std::optional<Form> form(std::string_view text) { return parse(kForms, text); }
std::optional<Placement> placement(std::string_view text) { return parse(kPlacements, text); }

std::string collective_kinds() { return join(kCollectiveKinds); }
std::string forms() { return join(kForms); }
std::string placements() { return join(kPlacements); }

bool is_decode_like(std::string_view mode) {
  const std::string_view base = mode.substr(0, mode.find('/'));
  for (const auto& candidate : kDecodeLikeModes)
    if (base == candidate) return true;
  return false;
}

}  // namespace l2pf
