// SPDX-License-Identifier: Apache-2.0
#include "tensors/files/tensor_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensors/files/tensor_json.hpp"

namespace {

using namespace gpushm::tensors;
using testing::HasSubstr;

constexpr std::uint64_t tensor_bytes = std::uint64_t{1} << 40U;

/// Why a table is refused; empty: it is not.
std::string problem_of(const table_words& words, std::uint64_t segment = tensor_bytes) {
  try {
    const tensor_table table(words, segment);
    return {};
  } catch (const invalid_table& why) {
    return why.what();
  }
}

/// With tensors by place and metadata by key.
tensor_list random_table(std::mt19937& random) {
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  constexpr std::array<const char*, 4> prefixes{"", "model.layers.", "\xC3\xA9", "z"};
  tensor_list table;
  for (std::uint64_t i = 0, count = below(3); i != count; ++i) {
    table.metadata.emplace_back("key" + std::to_string(i), "value {" + std::to_string(i));
  }
  std::uint64_t next = 0;
  for (std::uint64_t i = 0, count = below(6); i != count; ++i) {
    tensor one;
    one.name = prefixes.at(below(prefixes.size())) + std::to_string(below(1'000)) + "." +
               std::to_string(i);
    one.type = all_dtypes.at(below(all_dtypes.size()));
    for (std::uint64_t rank = below(4); rank != 0; --rank) {
      one.shape.push_back(below(10) * 8);
    }
    if (one.shape.empty()) {
      one.type = *find_dtype("F32");
    }
    one.begin = next;
    one.end = next + bytes_of(one);
    next = one.end + below(2) * 256;
    if (below(3) == 0) {  // as in C
      std::int64_t stride = 1;
      for (auto size = one.shape.rbegin(); size != one.shape.rend(); ++size) {
        one.strides.push_back(stride);
        stride *= static_cast<std::int64_t>(*size);
      }
      std::reverse(one.strides.begin(), one.strides.end());
    }
    one.hash = below(2) == 0 ? "0123456789abcdef" : "";
    one.framework_dtype = below(4) == 0 ? "complex128" : "";
    table.all.push_back(std::move(one));
  }
  return table;
}

/// Of two tied tensors, one with strides, a scalar, and metadata.
tensor_list sample_table() {
  tensor_list table;
  table.metadata = {{"format", "pt"}, {"quote\"", "\n"}};
  table.all = {{"scalar", *find_dtype("C128"), {}, 0, 16, {}, "0123456789abcdef", "complex128"},
               {"tied", *find_dtype("F32"), {2, 3}, 256, 280, {1, 2}, {}, {}},
               {"also \xC3\xA9", *find_dtype("F32"), {2, 3}, 256, 280, {}, {}, {}},
               {"none", *find_dtype("U8"), {0, 7}, 512, 512, {}, {}, {}}};
  return table;
}

TEST(tensor_tables, are_written_and_read) {
  std::mt19937 random(1);
  for (int i = 0; i != 1'000; ++i) {
    const tensor_list written = random_table(random);
    const tensor_table table(encode_table(written), tensor_bytes);
    ASSERT_EQ(table.content(), written) << write_tensors(written);
    ASSERT_EQ(encode_table(table.content()), table.words());
    // The same as JSON, which has the order of the program that writes it.
    ASSERT_EQ(encode_table(read_tensors(write_tensors(written), dialect::table)), table.words());
  }
  const tensor_table sample(encode_table(sample_table()), 512);
  EXPECT_EQ(sample.content(), sample_table());
}

TEST(tensor_tables, are_specified_byte_by_byte) {
  tensor_list one;
  one.metadata = {{"k", "vw"}};
  one.all = {{"ab", *find_dtype("BF16"), {2, 3}, 256, 268, {1, 2}, "0123456789abcdef", "x"}};
  const table_words words = encode_table(one);
  const std::string_view bytes = bytes_in(words);
  using std::string_literals::operator""s;
  EXPECT_EQ(bytes.substr(0, 32), "gpushmtb\2\0\0\0\1\0\0\0\1\0\0\0\4\0\0\0\6\0\0\0\0\0\0\0"s);
  EXPECT_EQ(bytes.substr(32, 64),
            "\0\1\0\0\0\0\0\0\x0C\1\0\0\0\0\0\0"
            "0123456789abcdef"
            "\0\0\0\0\2\0\0\0\2\0\0\0\1\0\0\0"
            "\0\0\0\0\2\0\x0E\1\0\0\0\0\0\0\0\0"s);
  EXPECT_EQ(bytes.substr(96, 16), "\3\0\0\0\1\0\0\0\4\0\0\0\2\0\0\0"s);
  EXPECT_EQ(bytes.substr(112, 32),
            "\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"s);
  EXPECT_EQ(bytes.substr(144), "\0\0\0\0\0\0\0\0abxkvw\0\0"s);
}

TEST(tensor_tables, find_tensors_by_name) {
  std::mt19937 random(2);
  for (int i = 0; i != 300; ++i) {
    const tensor_list written = random_table(random);
    const tensor_table table(encode_table(written), tensor_bytes);
    for (std::size_t index = 0; index != written.all.size(); ++index) {
      EXPECT_EQ(table.find(written.all[index].name), index);
      EXPECT_EQ(table.find(written.all[index].name + " "), std::nullopt);
    }
    EXPECT_EQ(table.find("no such name"), std::nullopt);
    EXPECT_EQ(table.find(""), std::nullopt);
  }
}

/// Another process has changed it: refused, or another table that has this one encoding.
void expect_harmless(const table_words& words, const tensor_list& original, std::uint64_t segment) {
  std::optional<tensor_table> table;
  try {
    table.emplace(words, segment);
  } catch (const invalid_table& why) {
    ASSERT_NE(std::string_view(why.what()), "");
    return;
  }
  const tensor_list content = table->content();
  ASSERT_NE(content, original);
  ASSERT_EQ(encode_table(content), words);
  for (const tensor& each : content.all) {
    ASSERT_LE(each.begin, each.end);
    ASSERT_LE(each.end, segment);
    ASSERT_TRUE(table->find(each.name));
  }
}

TEST(tensor_tables, do_no_harm_with_any_byte_changed) {
  const tensor_list original = sample_table();
  const table_words good = encode_table(original);
  ASSERT_EQ(problem_of(good, 512), "");
  std::size_t refused = 0;
  std::size_t count = 0;
  for (std::size_t at = 0; at != bytes_in(good).size(); ++at) {
    for (int bits = 1; bits < 256; bits += bits < 16 ? 1 : 16) {  // each alone, and others
      table_words changed = good;
      char* const byte = reinterpret_cast<char*>(changed.data()) + at;
      *byte = static_cast<char>(*byte ^ bits);
      ASSERT_NO_FATAL_FAILURE(expect_harmless(changed, original, 512)) << at << ": " << bits;
      if (!problem_of(changed, 512).empty()) {
        ++refused;
      }
      ++count;
    }
  }
  EXPECT_GT(refused, count * 3 / 4);
}

TEST(tensor_tables, do_no_harm_with_several_bytes_changed) {
  std::mt19937 random(3);
  for (int i = 0; i != 20'000; ++i) {
    const tensor_list original = random_table(random);
    const table_words good = encode_table(original);
    table_words changed = good;
    for (auto left = random() % 4 + 1; left != 0; --left) {
      char* const byte =
          reinterpret_cast<char*>(changed.data()) + random() % bytes_in(changed).size();
      constexpr std::array often{'\0', '\1', '\2', '\x7F', '\xFF'};
      *byte = random() % 2 == 0 ? often.at(random() % often.size()) : static_cast<char>(random());
    }
    if (changed != good) {
      ASSERT_NO_FATAL_FAILURE(expect_harmless(changed, original, tensor_bytes));
    }
  }
}

TEST(tensor_tables, are_refused_with_other_lengths) {
  const table_words good = encode_table(sample_table());
  for (std::size_t size = 0; size != good.size() + 4; ++size) {
    table_words changed = good;
    changed.resize(size);
    EXPECT_EQ(problem_of(changed, 512).empty(), size == good.size()) << size;
  }
}

TEST(tensor_tables, say_what_is_wrong) {
  const table_words good = encode_table(sample_table());
  EXPECT_EQ(problem_of(good, 511), R"(tensor "none" is not within the segment)");
  EXPECT_THAT(problem_of({}), HasSubstr("0 bytes, fewer than its header"));
  const auto with = [&](std::size_t at, std::string_view bytes) {
    table_words changed = good;
    std::memcpy(reinterpret_cast<char*>(changed.data()) + at, bytes.data(), bytes.size());
    return problem_of(changed, 512);
  };
  EXPECT_EQ(with(0, "{"), "it does not begin with \"gpushmtb\"");
  EXPECT_EQ(with(8, "\3"), "it has version 3, and this library reads 2");
  EXPECT_THAT(with(12, "\7"), HasSubstr("its header does not describe its"));
  EXPECT_THAT(with(32 + 54, "\x18"), HasSubstr("the record of tensor number 0 is not valid"));
  EXPECT_THAT(with(32 + 16, "G"), HasSubstr("the record of tensor number 0 is not valid"));
  EXPECT_EQ(with(32 + 8, "\x11"), R"(tensor "scalar" has another size than its shape)");
  const auto refused = [](tensor tensor) {
    tensor_list table;
    table.all = {std::move(tensor)};
    return problem_of(encode_table(table));
  };
  const dtype f64 = *find_dtype("F64");
  constexpr std::uint64_t huge = std::uint64_t{1} << 60U;
  constexpr std::int64_t far = std::int64_t{1} << 62U;
  EXPECT_THAT(refused({"a", f64, {huge, huge}, 0, 8, {}, {}, {}}), HasSubstr("2^64 elements"));
  EXPECT_THAT(refused({"a", f64, {huge}, 0, 8, {}, {}, {}}), HasSubstr("2^64 bits"));
  EXPECT_THAT(refused({"a", *find_dtype("F4"), {3}, 0, 2, {}, {}, {}}), HasSubstr("whole bytes"));
  EXPECT_THAT(refused({"a", f64, {2}, 0, 16, {-1}, {}, {}}), HasSubstr("strides that cannot be"));
  EXPECT_THAT(refused({"a", f64, {9, 9}, 0, 16, {far, far}, {}, {}}), HasSubstr("strides that"));
  EXPECT_THAT(refused({"a", f64, {2}, 0, 16, {3}, {}, {}}), HasSubstr("another size"));
  EXPECT_THAT(refused({"a", f64, {2}, 16, 0, {}, {}, {}}), HasSubstr("not within the segment"));
  EXPECT_THAT(refused({"__metadata__", f64, {}, 0, 8, {}, {}, {}}), HasSubstr("__metadata__"));
  EXPECT_THAT(refused({"\xFF", f64, {}, 0, 8, {}, {}, {}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(refused({"a", f64, std::vector<std::uint64_t>(65, 1), 0, 8, {}, {}, {}}),
              HasSubstr("not valid"));
  tensor_list twice;
  twice.all = {{"a", f64, {}, 0, 8, {}, {}, {}}, {"a", f64, {}, 8, 16, {}, {}, {}}};
  EXPECT_EQ(problem_of(encode_table(twice)), "the name \"a\" is there twice");
  std::swap(twice.all[0], twice.all[1]);
  EXPECT_THAT(problem_of(encode_table(twice)), HasSubstr("not in the order of places"));
  tensor_list keys;
  keys.metadata = {{"a", "1"}, {"a", "2"}};
  EXPECT_THAT(problem_of(encode_table(keys)), HasSubstr("not in the order of keys"));
}

}  // namespace
