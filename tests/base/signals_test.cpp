// SPDX-License-Identifier: Apache-2.0
#include "base/process/signals.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>

namespace gpushm::base {
namespace {

/// With signal 0, which harms nothing where a number is let through.
TEST(signals, go_to_one_process_or_group_only) {
  EXPECT_EQ(signal_process(::getpid(), 0), 0);
  for (const pid_t many : {0, -1, -::getpgrp(), std::numeric_limits<pid_t>::min()}) {
    errno = 0;
    EXPECT_EQ(signal_process(many, 0), -1) << many;
    EXPECT_EQ(errno, EINVAL) << many;
  }
  for (const pid_t many : {1, 0, -1, -::getpid(), std::numeric_limits<pid_t>::min()}) {
    errno = 0;
    EXPECT_EQ(signal_group(many, 0), -1) << many;
    EXPECT_EQ(errno, EINVAL) << many;
  }
  if (const pid_t group = ::getpgrp(); group > 1) {
    EXPECT_EQ(signal_group(group, 0), 0);
  }
}

}  // namespace
}  // namespace gpushm::base
