// SPDX-License-Identifier: Apache-2.0
#include "apps/support/log_line.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <string>

#include "base/unique_fd.hpp"

namespace gpushm::app {
namespace {

class log_pipe : public testing::Test {
 protected:
  log_pipe() { open(); }
  void open() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    reader_ = base::unique_fd(ends[0]);
    writer_ = base::unique_fd(ends[1]);
    EXPECT_EQ(::fcntl(reader_.get(), F_SETFL, O_NONBLOCK), 0);
  }
  void write(const std::string& text) { write_log_line("program", text, writer_.get()); }
  /// Everything that was written since the last call.
  std::string read() {
    std::string all;
    std::array<char, 4096> part{};
    for (ssize_t size = 0; (size = ::read(reader_.get(), part.data(), part.size())) > 0;) {
      all.append(part.data(), static_cast<std::size_t>(size));
    }
    return all;
  }

  base::unique_fd reader_;
  base::unique_fd writer_;
};

TEST_F(log_pipe, gets_lines) {
  write("one");
  write("");
  EXPECT_EQ(read(), "program: one\nprogram: \n");
}

TEST_F(log_pipe, that_is_full_drops_lines_and_counts_them) {
  constexpr std::size_t lines = 5'000;
  const std::string text(91, 'x');  // 101 bytes a line
  for (std::size_t i = 0; i < lines; ++i) {
    write(text);  // must not block
  }
  const std::string kept = read();
  EXPECT_EQ(kept.size() % 101, 0U);
  const std::size_t count = kept.size() / 101;
  EXPECT_GT(count, 100U);
  EXPECT_LT(count, lines);
  write("last");
  EXPECT_EQ(read(),
            "program: " + std::to_string(lines - count) + " lines were dropped\nprogram: last\n");
  write("next");
  EXPECT_EQ(read(), "program: next\n");
}

TEST_F(log_pipe, without_a_reader_does_not_end_the_program) {
  reader_.reset();
  write("lost");  // no SIGPIPE
  open();
  write("next");
  EXPECT_EQ(read(), "program: 1 lines were dropped\nprogram: next\n");
}

TEST_F(log_pipe, gets_no_more_than_a_pipe_takes_at_once) {
  write(std::string(100'000, 'x'));
  const std::string all = read();
  EXPECT_EQ(all.size(), std::size_t{PIPE_BUF});
  EXPECT_EQ(all.back(), '\n');
}

}  // namespace
}  // namespace gpushm::app
