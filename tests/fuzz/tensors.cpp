// SPDX-License-Identifier: Apache-2.0
// Bytes are not the JSON of tensors, or are, and can be written again with the same meaning.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tensors/files/tensor_json.hpp"
#include "tests/fuzz/require.hpp"

namespace {

using namespace gpushm::tensors;

void try_to_read(std::string_view text, dialect dialect) {
  tensor_list value;
  try {
    value = read_tensors(text, dialect);
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
  try {
    static_cast<void>(read_index(text));
  } catch (const invalid_json& why) {
    GPUSHM_REQUIRE(why.what()[0] != '\0');
  }
  return 0;
}
