#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

// How the operators refuse an argument: what was expected, and what came.
namespace l2pf::ops {

inline std::invalid_argument bad_argument(const std::string& op, const std::string& expected, const std::string& got) {
  return std::invalid_argument("dsv41::" + op + ": expected " + expected + ", got " + got);
}

template <typename T>
T require_word(std::optional<T> word, const char* op, const std::string& expected, const std::string& got) {
  if (!word) throw bad_argument(op, expected, "'" + got + "'");
  return *word;
}

inline void require_at_least(int64_t value, int64_t least, const char* op, const std::string& name) {
  if (value < least)
    throw bad_argument(op, "`" + name + "` of at least " + std::to_string(least), std::to_string(value));
}

}  // namespace l2pf::ops
