#pragma once

#include <torch/csrc/stable/library.h>

#include <string>

namespace l2pf::ops {

// A text argument of an operator. Not std::string: the conversion in the headers of torch 2.10 and 2.11 copies each
// such argument to the heap and never frees it, 48 bytes a call.
struct Text : std::string {
  using std::string::string;
};

}  // namespace l2pf::ops

HIDDEN_NAMESPACE_BEGIN(torch, stable, detail)

template <>
struct ToImpl<l2pf::ops::Text> {
  static l2pf::ops::Text call(StableIValue value, uint64_t, bool) {
    const StringHandle handle = torch::stable::detail::to<StringHandle>(value);
    size_t length = 0;
    const char* data = nullptr;
    TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
    l2pf::ops::Text text(data, length);
    TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
    return text;
  }
};

HIDDEN_NAMESPACE_END(torch, stable, detail)
