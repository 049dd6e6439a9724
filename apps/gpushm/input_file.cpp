// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/input_file.hpp"

#include <array>
#include <cerrno>
#include <iostream>
#include <optional>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/text/size_text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

std::string read_standard_input(std::size_t max_bytes) {
  std::string text;
  std::array<char, 65'536> part{};
  // One byte above the limit is enough for a refusal.
  while (text.size() <= max_bytes && std::cin) {
    std::cin.read(part.data(), part.size());
    text.append(part.data(), static_cast<std::size_t>(std::cin.gcount()));
  }
  return text;
}

std::string read_input(std::string_view operation,
                       const std::string& file,
                       std::size_t max_bytes,
                       std::string_view next_step) {
  errno = 0;
  auto text = file == "-" ? std::optional(read_standard_input(max_bytes))
                          : base::read_small_file(file, max_bytes + 1);
  if (!text) {
    base::throw_errno(errno, operation, file, "read");
  }
  if (text->size() > max_bytes) {
    throw error(errc::message_too_large,
                operation,
                file,
                "the file is larger than " + base::size_text(max_bytes),
                next_step);
  }
  return *std::move(text);
}

}  // namespace gpushm::cli
