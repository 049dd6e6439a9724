// SPDX-License-Identifier: Apache-2.0
// Bytes are not the JSON of tensors, or are, and can be written again with the same meaning.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fuzz/require.hpp"
#include "weights/table_scan.hpp"
#include "weights/tensor_json.hpp"

namespace {

using namespace gpushm::weights;

/// What the scanner of tables accepts, the general parser does, and with the same result.
void scan(std::string_view text) {
  const auto scanned = scan_table(text);
  if (!scanned) {
    return;
  }
  bool is_same = false;
  try {
    is_same = parse_tensors(text, dialect::table) == *scanned;
  } catch (const invalid_json&) {  // NOLINT(bugprone-empty-catch): then it is not the same
  }
  GPUSHM_REQUIRE(is_same);
}

void try_to_read(std::string_view text, dialect as) {
  tensors value;
  try {
    value = read_tensors(text, as);
    for (const tensor& each : value.all) {
      static_cast<void>(bytes_of(each));
    }
  } catch (const invalid_json& why) {
    GPUSHM_REQUIRE(why.what()[0] != '\0');
    return;
  }
  GPUSHM_REQUIRE(read_tensors(write_tensors(value), dialect::table) == value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try_to_read(text, dialect::file);
  try_to_read(text, dialect::table);
  scan(text);
  try {
    static_cast<void>(read_index(text));
  } catch (const invalid_json& why) {
    GPUSHM_REQUIRE(why.what()[0] != '\0');
  }
  return 0;
}
