// SPDX-License-Identifier: Apache-2.0
#include "apps/support/log_line.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <regex>
#include <string>
#include <string_view>

#include "base/files/unique_fd.hpp"
#include "base/segments/names.hpp"

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
    // The log has the number.
    if (writer_.get() != to_) {
      EXPECT_EQ(::dup3(writer_.get(), to_, O_CLOEXEC), to_);
      writer_ = base::unique_fd(to_);
    }
  }
  void write(const std::string& text) { log_.write(log_level::info, text); }
  /// The lines that were written since the last call, without the time.
  std::string read() {
    return std::regex_replace(
        read_all(), std::regex(R"((^|\n)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z )"), "$1");
  }
  std::string read_all() {
    std::string text;
    std::array<char, 4096> part{};
    for (ssize_t size = 0; (size = ::read(reader_.get(), part.data(), part.size())) > 0;) {
      text.append(part.data(), static_cast<std::size_t>(size));
    }
    return text;
  }

  static constexpr int to_ = 200;
  base::unique_fd reader_;
  base::unique_fd writer_;
  program_log log_{"program", log_level::info, log_format::text, to_};
  program_log documents_{"program", log_level::debug, log_format::json, to_};
};

TEST_F(log_pipe, gets_lines) {
  write("one");
  write("");
  EXPECT_EQ(read(), "info    program: one\ninfo    program: \n");
}

TEST_F(log_pipe, that_is_full_drops_lines_and_counts_them) {
  constexpr std::size_t lines = 5'000;
  const std::string text(58, 'x');  // 101 bytes a line with time, level and program
  for (std::size_t i = 0; i < lines; ++i) {
    write(text);  // must not block
  }
  const std::string kept = read_all();
  EXPECT_EQ(kept.size() % 101, 0U);
  const std::size_t count = kept.size() / 101;
  EXPECT_GT(count, 100U);
  EXPECT_LT(count, lines);
  write("last");
  EXPECT_EQ(read(),
            "warning program: " + std::to_string(lines - count) +
                " lines were dropped\ninfo    program: last\n");
  write("next");
  EXPECT_EQ(read(), "info    program: next\n");
}

TEST_F(log_pipe, without_a_reader_does_not_end_the_program) {
  reader_.reset();
  write("lost");  // no SIGPIPE
  open();
  write("next");
  EXPECT_EQ(read(), "warning program: 1 lines were dropped\ninfo    program: next\n");
}

TEST_F(log_pipe, gets_no_more_than_a_pipe_takes_at_once) {
  write(std::string(100'000, 'x'));
  const std::string all = read_all();
  EXPECT_EQ(all.size(), std::size_t{PIPE_BUF});
  EXPECT_EQ(all.back(), '\n');
}

TEST_F(log_pipe, gets_no_half_of_a_character) {
  std::string text;
  while (text.size() < PIPE_BUF) {
    text += "\u20AC";  // 3 bytes
  }
  for (const char* const before : {"", "x", "xx"}) {
    write(before + text);
    std::string line = read_all();
    EXPECT_LE(line.size(), std::size_t{PIPE_BUF});
    EXPECT_GE(line.size(), std::size_t{PIPE_BUF} - 2);
    line.pop_back();
    EXPECT_TRUE(base::is_utf8(line)) << before;
  }
}

TEST_F(log_pipe, gets_the_level_in_each_line) {
  log_.write(log_level::debug, "left out");
  log_.write(log_level::warning, "two\nlines");
  log_.write(log_level::error, "last");
  EXPECT_EQ(read(), "warning program: two\\x0alines\nerror   program: last\n");
}

TEST_F(log_pipe, gets_documents) {
  documents_.write(log_level::debug, "a \"b\" \\ c\nd \u20AC");
  std::string line = read_all();
  EXPECT_EQ(std::regex_replace(line, std::regex("[0-9]"), "0"),
            "{\"time\":\"0000-00-00T00:00:00.000Z\",\"level\":\"debug\",\"program\":"
            "\"program\",\"message\":\"a \\\"b\\\" \\\\ c\\nd \u20AC\"}\n");
  documents_.write(log_level::debug, std::string(100'000, '"'));
  line = read_all();
  EXPECT_LE(line.size(), std::size_t{PIPE_BUF});
  EXPECT_TRUE(line.ends_with("\\\"\"}\n")) << "complete, and no half of an escape";
}

TEST(log_levels, have_words) {
  EXPECT_EQ(log_level_of("debug"), log_level::debug);
  EXPECT_EQ(log_level_of("error"), log_level::error);
  EXPECT_EQ(log_level_of("off"), std::nullopt);
}

}  // namespace
}  // namespace gpushm::app
