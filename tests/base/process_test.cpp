// SPDX-License-Identifier: Apache-2.0
#include "base/process/process.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace gpushm::base {
namespace {

TEST(process_identity, is_complete_and_stable) {
  const process_identity self = this_process();
  EXPECT_EQ(self.pid, ::getpid());
  EXPECT_EQ(self.boot_id.size(), 36U);
  EXPECT_NE(self.pid_namespace, 0U);
  EXPECT_NE(self.start_time, 0U);
  EXPECT_NE(self.epoch, (std::array<std::uint8_t, 16>{}));
  EXPECT_EQ(this_process(), self);
}

TEST(process_identity, differs_in_forked_child) {
  const process_identity parent = this_process();
  const pid_t child = ::fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    const process_identity self = this_process();
    const bool other = self.pid == ::getpid() && self.pid != parent.pid &&
                       self.epoch != parent.epoch && self.boot_id == parent.boot_id &&
                       self.start_time >= parent.start_time;
    ::_exit(other ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

/// Process 1 of a namespace has a child that is process 1 of the next one: the numbers are equal,
/// and an earlier version compared nothing else.
TEST(process_identity, differs_in_child_with_same_pid) {
  constexpr int not_allowed = 77;
  const pid_t child = ::fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
      ::_exit(not_allowed);
    }
    const pid_t first = ::fork();
    if (first == 0) {
      const process_identity parent = this_process();
      if (parent.pid != 1 || ::unshare(CLONE_NEWPID) != 0) {
        ::_exit(2);
      }
      const pid_t second = ::fork();
      if (second == 0) {
        const process_identity self = this_process();
        ::_exit(self.pid != 1 ? 3 : self.epoch == parent.epoch ? 1 : 0);
      }
      int status = 0;
      ::_exit(::waitpid(second, &status, 0) == second ? WEXITSTATUS(status) : 4);
    }
    int status = 0;
    ::_exit(::waitpid(first, &status, 0) == first ? WEXITSTATUS(status) : 5);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == not_allowed) {
    GTEST_SKIP() << "this process may not create a PID namespace";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(process_identity, has_ended_if_pid_is_unused_or_reused) {
  const process_identity self = this_process();
  EXPECT_FALSE(has_ended(self));
  process_identity earlier = self;  // had the same number before this process
  earlier.start_time -= 1;
  EXPECT_TRUE(has_ended(earlier));
  const pid_t child = ::fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    ::_exit(0);
  }
  process_identity exited = self;
  exited.pid = child;
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(has_ended(exited));
  EXPECT_TRUE(has_ended(exited)) << "repeated query";
  exited.pid_namespace += 1;
  EXPECT_FALSE(has_ended(exited)) << "other namespaces are unknown";
  exited = earlier;
  exited.boot_id = "another";
  EXPECT_FALSE(has_ended(exited));
}

TEST(process_identity, watched_process_is_seen_to_exit) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  int stay[2];
  ASSERT_EQ(::pipe(stay), 0);
  const pid_t child = ::fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    const process_identity self = this_process();
    static_cast<void>(!::write(ends[1], &self.start_time, sizeof self.start_time));
    static_cast<void>(!::write(ends[1], self.epoch.data(), self.epoch.size()));
    ::close(stay[1]);
    char nothing = 0;
    static_cast<void>(!::read(stay[0], &nothing, 1));
    ::_exit(0);
  }
  process_identity other = this_process();
  other.pid = child;
  ASSERT_EQ(::read(ends[0], &other.start_time, sizeof other.start_time),
            ssize_t{sizeof other.start_time});
  ASSERT_EQ(::read(ends[0], other.epoch.data(), other.epoch.size()),
            static_cast<ssize_t>(other.epoch.size()));
  EXPECT_FALSE(has_ended(other));
  EXPECT_FALSE(has_ended(other));
  ::close(stay[1]);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(has_ended(other));
  for (const int each : {ends[0], ends[1], stay[0]}) {
    ::close(each);
  }
}

}  // namespace
}  // namespace gpushm::base
