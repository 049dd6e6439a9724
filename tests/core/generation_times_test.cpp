// SPDX-License-Identifier: Apache-2.0
#include "core/generation_times.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

namespace gpushm::core {
namespace {

using namespace std::chrono_literals;

TEST(generation_times, are_not_known_for_earlier_processes) {
  generation_times times;
  EXPECT_TRUE(times.is_empty());
  times.note(100, time_point(50s));
  EXPECT_FALSE(times.of(99).is_known);
  EXPECT_EQ(times.of(99).at, time_point(50s)) << "not later than that";
  EXPECT_TRUE(times.of(100).is_known);
  EXPECT_EQ(times.of(100).at, time_point(50s));
}

TEST(generation_times, are_right_to_some_per_cent_of_the_age) {
  generation_times times;
  std::vector<time_point> created;
  time_point now(1'000s);
  std::minstd_rand random(1);
  for (generation each = 0; each != 100'000; ++each) {
    times.note(each, now);
    created.push_back(now);
    now += random() % 100 == 0 ? std::chrono::milliseconds(random() % 600'000)
                               : std::chrono::milliseconds(random() % 100);
  }
  for (generation each = 0; each != created.size(); ++each) {
    const auto estimate = times.of(each);
    ASSERT_TRUE(estimate.is_known);
    ASSERT_LE(estimate.at, created[each]);
    const auto age = std::chrono::duration<double>(now - created[each]);
    const auto error = std::chrono::duration<double>(created[each] - estimate.at);
    // Creations may have a pause between them.
    ASSERT_LE(error.count(), std::max(1.0, age.count() * 0.2)) << each;
  }
}

}  // namespace
}  // namespace gpushm::core
