// SPDX-License-Identifier: Apache-2.0
#include "base/process/child_process.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "base/files/unique_fd.hpp"

namespace gpushm::base {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

std::string output_of(child_process& child) {
  std::string text;
  EXPECT_TRUE(child.read_all(text, deadline_in(seconds(10))));
  EXPECT_EQ(child.wait(deadline_in(seconds(10))), 0);
  return text;
}

bool has_close_range() {
  utsname system{};
  ::uname(&system);
  int major = 0;
  int minor = 0;
  char dot = 0;
  std::istringstream(system.release) >> major >> dot >> minor;
  return major > 5 || (major == 5 && minor >= 11);
}

TEST(child_process, program_inherits_only_standard_streams) {
  if (!has_close_range()) {
    GTEST_SKIP() << "Linux before 5.11 has no CLOSE_RANGE_CLOEXEC";
  }
  // As another thread may have opened it.
  const unique_fd other(::memfd_create("not-for-programs", 0));
  ASSERT_TRUE(other);
  child_options options;
  options.argv = {"/bin/ls", "-l", "/proc/self/fd"};
  auto child = child_process::start(options);
  EXPECT_THAT(output_of(child), Not(HasSubstr("not-for-programs")));
}

TEST(child_process, forked_child_writes_to_its_own_pipe) {
  auto child =
      child_process::fork([](int output) { static_cast<void>(::write(output, "done", 4) == 4); });
  EXPECT_EQ(output_of(child), "done");
}

TEST(child_process, forked_child_that_throws_exits_with_1) {
  auto child = child_process::fork([](int) { throw std::runtime_error("expected"); });
  std::string text;
  EXPECT_TRUE(child.read_all(text, deadline_in(seconds(10))));
  EXPECT_EQ(status_text(child.wait(deadline_in(seconds(10))).value_or(0)), "exit status 1");
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace gpushm::base
