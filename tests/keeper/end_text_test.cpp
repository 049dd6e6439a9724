// SPDX-License-Identifier: Apache-2.0
#include "succession/keeper/end_text.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <optional>

namespace gpushm::keeper {
namespace {

constexpr int exited_with(int code) {
  return code << 8;
}

TEST(end_text, names_the_signal) {
  EXPECT_EQ(end_text(exited_with(3), std::nullopt), "has ended with status 3");
  EXPECT_EQ(end_text(SIGSEGV, std::nullopt), "has ended with signal 11 (SIGSEGV)");
  EXPECT_EQ(end_text(SIGSYS | 0x80, std::nullopt), "has ended with signal 31 (SIGSYS)") << "dumped";
  EXPECT_EQ(end_text(40, std::nullopt), "has ended with signal 40");
}

TEST(end_text, shows_the_memory_after_a_kill) {
  const base::container_memory memory{250U << 20U, 256U << 20U, 3};
  EXPECT_EQ(end_text(SIGKILL, memory),
            "was killed (SIGKILL); memory of the container 250 MiB of 256 MiB now, 3 kills for "
            "lack of memory");
  EXPECT_EQ(end_text(SIGKILL, std::nullopt), "was killed (SIGKILL)");
  EXPECT_EQ(end_text(SIGTERM, memory), "has ended with signal 15 (SIGTERM)");
}

}  // namespace
}  // namespace gpushm::keeper
