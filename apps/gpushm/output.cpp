// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/output.hpp"

#include <fmt/core.h>

#include <cerrno>
#include <cstdio>

#include "apps/gpushm/file_error.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text.hpp"

namespace gpushm::cli {

namespace {

bool is_output_reserved = false;

void write_to(std::FILE* file, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), file);
}

}  // namespace

void reserve_standard_output() {
  is_output_reserved = true;
}

void print(std::string_view text) {
  write_to(is_output_reserved ? stderr : stdout, text);
}

void print_line(std::string_view line) {
  print(base::printable(line) + "\n");
}

void note(std::string_view line) {
  write_to(stderr, fmt::format("gpushm: {}\n", base::printable(line)));
}

void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw_file_error(errno, "write standard output", {}, "write");
  }
}

std::string exact_size_text(std::uint64_t bytes) {
  if (bytes < 1024) {
    return fmt::format("{} {}", bytes, bytes == 1 ? "byte" : "bytes");
  }
  return fmt::format("{} ({} bytes)", base::size_text(bytes), bytes);
}

}  // namespace gpushm::cli
