// SPDX-License-Identifier: Apache-2.0
#include "base/process/busy_names.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/process/deadline.hpp"

namespace gpushm::base {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;
using hold = busy_names::hold;

clock::time_point passed() {
  return clock::now() - 1s;
}
clock::time_point far() {
  return gpushm_testing::deadline_after(30s);
}

TEST(busy_names, gives_each_name_once) {
  busy_names names;
  const hold a = names.take("a", passed());
  ASSERT_TRUE(a);
  EXPECT_EQ(*a, "a");
  EXPECT_FALSE(names.take("a", passed()));
  EXPECT_TRUE(names.take("b", passed()));
  EXPECT_TRUE(names.take("", passed()));
  EXPECT_TRUE(names.take("b", passed()));
}

TEST(busy_names, empty_hold_at_the_deadline) {
  busy_names names;
  const hold a = names.take("a", passed());
  const auto deadline = clock::now() + 30ms;
  EXPECT_FALSE(names.take("a", deadline));
  EXPECT_GE(clock::now(), deadline);
}

TEST(busy_names, moved_hold_ends_once) {
  static_assert(!std::is_copy_constructible_v<hold>);
  busy_names names;
  hold first = names.take("a", passed());
  hold second = std::move(first);
  first.reset();
  EXPECT_FALSE(names.take("a", passed()));
  second = names.take("b", passed());
  EXPECT_TRUE(names.take("a", passed()));
  EXPECT_FALSE(names.take("b", passed()));
  second.reset();
  EXPECT_TRUE(names.take("b", passed()));
}

TEST(busy_names, hold_ends_with_an_exception) {
  busy_names names;
  EXPECT_THROW(
      {
        const hold a = names.take("a", passed());
        throw std::runtime_error("in use");
      },
      std::runtime_error);
  EXPECT_TRUE(names.take("a", passed()));
}

TEST(busy_names, waiting_call_gets_the_name_from_another_thread) {
  busy_names names;
  hold a = names.take("a", passed());
  std::latch begun(1);
  std::future<bool> got = std::async(std::launch::async, [&] {
    begun.count_down();
    return static_cast<bool>(names.take("a", far()));
  });
  begun.wait();
  EXPECT_EQ(got.wait_for(20ms), std::future_status::timeout);
  EXPECT_TRUE(names.take("b", passed()));  // does not wait for "a"
  std::thread([&a] { a.reset(); }).join();
  EXPECT_TRUE(got.get());
}

TEST(busy_names, threads_exclude_each_other) {
  constexpr unsigned rounds = 200;
  constexpr unsigned threads = 64;
  const std::array<std::string, 3> spellings{"a", "b", "c"};
  busy_names names;
  std::array<unsigned, 3> used{};  // each guarded by its name only
  std::array<std::atomic<int>, 3> holders{};
  std::atomic<unsigned> failures{0};
  {
    std::latch start(threads);
    std::vector<std::jthread> running;
    for (unsigned number = 0; number < threads; ++number) {
      running.emplace_back([&, number] {
        start.arrive_and_wait();
        for (unsigned round = 0; round < rounds; ++round) {
          const std::size_t index = (number + round) % spellings.size();
          const hold taken = names.take(spellings.at(index), far());
          if (!taken || holders.at(index).fetch_add(1) != 0) {
            ++failures;
          }
          ++used.at(index);
          holders.at(index).fetch_sub(1);
        }
      });
    }
  }
  EXPECT_EQ(failures, 0U);
  EXPECT_EQ(used[0] + used[1] + used[2], threads * rounds);
  for (const std::string& each : spellings) {
    EXPECT_TRUE(names.take(each, passed()));
  }
}

TEST(busy_names, threads_give_up_at_the_deadline) {
  busy_names names;
  hold a = names.take("a", passed());
  std::atomic<unsigned> gave_up{0};
  {
    std::vector<std::jthread> running;
    for (unsigned number = 0; number < 64; ++number) {
      running.emplace_back([&] { gave_up += names.take("a", clock::now() + 10ms) ? 0U : 1U; });
    }
  }
  EXPECT_EQ(gave_up, 64U);
  a.reset();
  EXPECT_TRUE(names.take("a", passed()));
}

}  // namespace
}  // namespace gpushm::base
