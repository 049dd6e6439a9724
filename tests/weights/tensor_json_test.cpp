// SPDX-License-Identifier: Apache-2.0
#include "tensors/files/tensor_json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace {

using namespace gpushm::tensors;
using testing::HasSubstr;

std::string problem_of(const std::string& json, dialect dialect = dialect::file) {
  try {
    for (const tensor& each : read_tensors(json, dialect).all) {
      static_cast<void>(bytes_of(each));
    }
    return {};
  } catch (const invalid_json& why) {
    return why.what();
  }
}

constexpr const char* good = R"("dtype":"F32","shape":[2,3],"data_offsets":[0,24])";

TEST(tensor_json, is_read) {
  const auto read = read_tensors(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},"a":{)" +
          std::string(good) + "}}",
      dialect::file);
  EXPECT_EQ(read.metadata, (text_pairs{{"format", "pt"}}));
  ASSERT_EQ(read.all.size(), 2U);
  EXPECT_EQ(read.all[0].name, "a");
  EXPECT_EQ(read.all[0].shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(read.all[1].type.name, "BF16");
  EXPECT_EQ(read.all[1].begin, 24U);
  EXPECT_EQ(bytes_of(read.all[0]), 24U);
  EXPECT_EQ(bytes_of(read.all[1]), 2U);
}

TEST(tensor_json, accepts_what_the_reference_accepts) {
  for (const std::string& json :
       {std::string("{}"),
        std::string("  {} \n"),
        std::string(R"({"__metadata__":null})"),
        R"({"":{)" + std::string(good) + "}}",
        R"({"a":{"more":[1,{"x":[]},null],)" + std::string(good) + "}}",
        std::string(R"({"a":{"dtype":"F32","shape":[0,99999999999],"data_offsets":[0,0]}})")}) {
    EXPECT_EQ(problem_of(json), "") << json;
  }
}

TEST(tensor_json, refuses_everything_else) {
  const std::string g = good;
  std::string ones;
  for (int i = 0; i != 64; ++i) {
    ones += "1,";
  }
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "does not begin"},
      {"\xEF\xBB\xBF{}", "does not begin"},
      {"{", "not JSON"},
      {"{}x", "not JSON"},
      {std::string("{}\0", 3), "not JSON"},
      {"[]", "array instead of an object"},
      {"7", "number instead of an object"},
      {R"({"a":{)" + g + R"(},"a":{)" + g + "}}", R"("a" is there twice)"},
      {R"({"__metadata__":{},"__metadata__":{}})", "twice"},
      {R"({"__metadata__":{"x":"1","x":"2"}})", R"("x" is there twice)"},
      {R"({"__metadata__":{"x":1}})", "where a text is wanted"},
      {R"({"__metadata__":{"x":{}}})", "where a text is wanted"},
      {R"({"__metadata__":[]})", "where a text is wanted"},
      {R"({"a":null})", "null"},
      {R"({"a":["F32",[1],[0,4]]})", "array"},
      {R"({"a":{"dtype":"F32",)" + g + "}}", R"("dtype" twice)"},
      {R"({"a":{"shape":[2],"data_offsets":[0,8]}})", "no dtype"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,1],"shape":[)" + ones + "1]}}",
       "more than 64 dimensions"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", "no shape"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", "no data_offsets"},
      {R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", R"(dtype "F33")"},
      {R"({"a":{"dtype":"C128","shape":[2],"data_offsets":[0,32]}})", R"(dtype "C128")"},
      {R"({"a":{"dtype":1,"shape":[2],"data_offsets":[0,8]}})", "a number"},
      {R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", "a number"},
      {R"({"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}})", "a text"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "-2"},
      {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "fraction"},
      {R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", "array"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "two data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", "two data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551616]}})", "large"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", "2^64"},
      {R"({"a":{"dtype":"F64","shape":[288230376151711744],"data_offsets":[0,8]}})", "2^64 bits"},
      {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", "whole bytes"},
      {R"({"a":{"x":)" + std::string(200, '[') + std::string(200, ']') + "," + g + "}}", "127"},
      {R"({"\ud800":{)" + g + "}}", "not JSON"}};
  for (const auto& [json, cause] : cases) {
    EXPECT_THAT(problem_of(json), HasSubstr(cause)) << json;
  }
}

TEST(tensor_json, table_is_written_and_read) {
  tensor_list table;
  table.metadata = {{"format", "pt"}, {"quote\"", "\n"}};
  table.all = {{"a", *find_dtype("C128"), {2}, 0, 32, {}, std::string(16, '0'), "complex128"},
               {"tied \xC3\xA9", *find_dtype("F32"), {2, 3}, 256, 280, {1, 2}, {}, {}},
               {"t2", *find_dtype("F32"), {2, 3}, 256, 280, {3, 1}, {}, {}}};
  const std::string json = write_tensors(table);
  EXPECT_EQ(read_tensors(json, dialect::table), table) << json;
  EXPECT_THAT(problem_of(json), HasSubstr("C128")) << "a file has fewer types";
  EXPECT_EQ(write_tensors({}), "{}");
  EXPECT_THAT(problem_of(R"({"a":{"strides":[1],)" + std::string(good) + "}}", dialect::table),
              HasSubstr("one stride for each"));
  EXPECT_THAT(problem_of(R"({"a":{"hash":"xyz",)" + std::string(good) + "}}", dialect::table),
              HasSubstr("hexadecimal"));
}

TEST(tensor_json, index_is_read) {
  EXPECT_EQ(read_index(R"({"metadata":{"total_size":1},"weight_map":{"b":"2","a":"1"}})"),
            (text_pairs{{"b", "2"}, {"a", "1"}}));
  for (const std::string json : {"{}",
                                 "[]",
                                 R"({"weight_map":[]})",
                                 R"({"weight_map":{"a":1}})",
                                 R"({"weight_map":{"a":{}}})",
                                 R"({"weight_map":{"a":"1","a":"2"}})",
                                 R"({"weight_map":{},"weight_map":{}})"}) {
    EXPECT_THROW(static_cast<void>(read_index(json)), invalid_json) << json;
  }
}

}  // namespace
