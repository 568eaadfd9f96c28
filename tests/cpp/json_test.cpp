#include "json.h"

#include <gtest/gtest.h>

#include <limits>

namespace l2pf {
namespace {

TEST(JsonWriter, EmptyObjectAndArray) {
  EXPECT_EQ(JsonWriter().begin_object().end_object().text(), "{}");
  EXPECT_EQ(JsonWriter().begin_array().end_array().text(), "[]");
}

TEST(JsonWriter, CommasStandBetweenMembersAndElementsOnly) {
  JsonWriter json;
  json.begin_object().member("a", 1).key("b").begin_array().value(2).value(3).end_array();
  json.key("c").begin_object().end_object().member("d", true).end_object();
  EXPECT_EQ(json.text(), R"({"a":1,"b":[2,3],"c":{},"d":true})");
}

TEST(JsonWriter, ObjectsInAnArray) {
  JsonWriter json;
  json.begin_array();
  for (int i = 0; i < 2; ++i) json.begin_object().member("i", i).end_object();
  json.end_array();
  EXPECT_EQ(json.text(), R"([{"i":0},{"i":1}])");
}

TEST(JsonWriter, NullAndBooleans) {
  JsonWriter json;
  json.begin_array().null().value(false).value(true).end_array();
  EXPECT_EQ(json.text(), "[null,false,true]");
}

TEST(JsonWriter, WholeRangeOfIntegers) {
  JsonWriter json;
  json.begin_array().value(std::numeric_limits<int64_t>::min()).value(std::numeric_limits<uint64_t>::max()).end_array();
  EXPECT_EQ(json.text(), "[-9223372036854775808,18446744073709551615]");
}

TEST(JsonWriter, TextIsNotTakenForATruth) {
  const char* text = "x";
  EXPECT_EQ(JsonWriter().value(text).text(), R"("x")");
  EXPECT_EQ(JsonWriter().begin_object().member("k", "literal").end_object().text(), R"({"k":"literal"})");
  EXPECT_EQ(JsonWriter().begin_object().member("k", std::string("s")).end_object().text(), R"({"k":"s"})");
}

TEST(JsonWriter, EscapesQuotesBackslashesAndControlCharacters) {
  EXPECT_EQ(JsonWriter().value("a\"b\\c\nd\x01").text(), R"("a\"b\\c\u000ad\u0001")");
  EXPECT_EQ(JsonWriter().value(std::string_view("\0", 1)).text(), R"("\u0000")");
}

TEST(JsonWriter, EscapesKeysToo) {
  EXPECT_EQ(JsonWriter().begin_object().member("a\"", 1).end_object().text(), R"({"a\"":1})");
}

TEST(JsonWriter, LeavesUtf8Alone) { EXPECT_EQ(JsonWriter().value("\xc3\xa9").text(), "\"\xc3\xa9\""); }

}  // namespace
}  // namespace l2pf
