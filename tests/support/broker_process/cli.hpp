// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {

/// A directory with a socket for a broker, and the command `gpushm` run against it.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class cli {
 public:
  [[nodiscard]] const gpushm_testing::temp_dir& directory() const noexcept { return directory_; }
  [[nodiscard]] std::string socket() const { return directory_ / "socket"; }

  /// Options to start `gpushm ARGUMENTS`; $GPUSHM_SOCKET names the socket.
  [[nodiscard]] gpushm_testing::spawn_options command(std::vector<std::string> arguments) const {
    gpushm_testing::spawn_options options;
    options.argv = {gpushm_testing::own_program("gpushm")};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.env = {{"GPUSHM_SOCKET", socket()}, {"TMPDIR", directory_.path()}};
    return options;
  }
  [[nodiscard]] gpushm_testing::child start(std::vector<std::string> arguments) const {
    return gpushm_testing::child::start(command(std::move(arguments)));
  }
  [[nodiscard]] gpushm_testing::run_result run(std::vector<std::string> arguments) const {
    return gpushm_testing::run_program(command(std::move(arguments)), std::chrono::seconds(60));
  }
  /// Starts a broker and returns once it is ready.
  [[nodiscard]] gpushm_testing::child serve(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), "serve");
    auto broker = start(std::move(more));
    broker.wait_for_line("^gpushm: serving domain", std::chrono::seconds(20));
    return broker;
  }

 private:
  gpushm_testing::temp_dir directory_{0755};
};

/// CRC-32C (Castagnoli) of `bytes` as eight hexadecimal digits, bit by bit: slow, but independent
/// of the implementation under test.
[[nodiscard]] inline std::string crc32c_text(std::string_view bytes) {
  std::uint32_t sum = 0xffffffffU;
  for (const char byte : bytes) {
    sum ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      sum = (sum >> 1U) ^ ((sum & 1U) != 0 ? 0x82f63b78U : 0U);
    }
  }
  std::string text(8, '0');
  for (std::size_t i = 0; i < 8; ++i) {
    text[i] = "0123456789abcdef"[(~sum >> (28U - 4U * static_cast<unsigned>(i))) & 0xfU];
  }
  return text;
}

}  // namespace gpushm_tests
