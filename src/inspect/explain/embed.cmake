# SPDX-License-Identifier: Apache-2.0
# cmake -DINPUT=file -DOUTPUT=file.cpp -DNAME=function -P embed.cmake
# Writes a source file whose function gpushm::inspect::NAME returns the bytes of INPUT.
file(READ "${INPUT}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n"
       bytes "${bytes}")
file(WRITE "${OUTPUT}" "// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string_view>

namespace gpushm::inspect {

namespace {
constexpr unsigned char ${NAME}_bytes[] = {
${bytes}
};
}  // namespace

std::string_view ${NAME}() noexcept;
std::string_view ${NAME}() noexcept {
  return {reinterpret_cast<const char*>(${NAME}_bytes), sizeof ${NAME}_bytes};
}

}  // namespace gpushm::inspect
")
