// SPDX-License-Identifier: Apache-2.0
// Bytes are not the table of a segment, or are the only encoding of one whose tensors are all
// within the segment. Tables of JSON are written and read with the same meaning.
#include "tensors/files/tensor_table.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "tensors/files/tensor_json.hpp"
#include "tests/fuzz/require.hpp"

namespace {

using namespace gpushm::tensors;

constexpr std::uint64_t tensor_bytes = std::uint64_t{1} << 40U;

std::optional<tensor_table> read_table(table_words words) {
  try {
    return tensor_table(std::move(words), tensor_bytes);
  } catch (const invalid_table& why) {
    GPUSHM_REQUIRE(why.what()[0] != '\0');
    return std::nullopt;
  }
}

void check(const tensor_table& table) {
  for (std::size_t i = 0; i != table.size(); ++i) {
    const table_entry entry = table[i];
    GPUSHM_REQUIRE(entry.begin <= entry.end && entry.end <= tensor_bytes);
    GPUSHM_REQUIRE(entry.strides.empty() || entry.strides.size() == entry.shape.size());
    GPUSHM_REQUIRE(table.find(entry.name) == i);
  }
  GPUSHM_REQUIRE(encode_table(table.content()) == table.words());
}

/// JSON that a program publishes.
void publish(std::string_view text) {
  std::optional<tensor_list> content;
  try {
    content = read_tensors(text, dialect::table);
  } catch (const invalid_json&) {
    return;
  }
  std::sort(content->metadata.begin(), content->metadata.end());
  if (const auto table = read_table(encode_table(*content))) {
    check(*table);
    GPUSHM_REQUIRE(table->content() == *content);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  table_words words(size / sizeof(std::uint64_t));
  if (!words.empty()) {
    std::memcpy(words.data(), data, words.size() * sizeof(std::uint64_t));
  }
  if (const auto table = read_table(std::move(words))) {
    check(*table);
  }
  publish({reinterpret_cast<const char*>(data), size});
  return 0;
}
