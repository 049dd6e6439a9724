// SPDX-License-Identifier: Apache-2.0
#include "sync/timeline_place.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "sync/timeline_page.hpp"

namespace gpushm::sync {
namespace {

TEST(timeline_place, is_the_same_after_a_journey) {
  for (const timeline_place& each : {timeline_place{"p", 1, 0, 1},
                                     timeline_place{std::string(255, 'x'), max_generation, 511, 1},
                                     timeline_place{"page", 7, 0, words_per_page}}) {
    EXPECT_EQ(decode_place(encode(each)), each);
  }
}

TEST(timeline_place, refuses_words_outside_of_a_page) {
  for (const timeline_place& each : {timeline_place{"p", 0, 0, 1},
                                     timeline_place{"p", max_generation + 1, 0, 1},
                                     timeline_place{"p", 1, words_per_page, 1},
                                     timeline_place{"p", 1, 0, 0},
                                     timeline_place{"p", 1, 1, words_per_page},
                                     timeline_place{"p", 1, 2, UINT32_MAX},
                                     timeline_place{"p", 1, UINT32_MAX, 2},
                                     timeline_place{"", 1, 0, 1},
                                     timeline_place{std::string(256, 'x'), 1, 0, 1}}) {
    EXPECT_EQ(decode_place(encode(each)), std::nullopt);
  }
}

TEST(timeline_place, takes_any_bytes) {
  std::mt19937_64 random(1);
  for (int i = 0; i != 100'000; ++i) {
    std::vector<std::byte> bytes(random() % 40);
    for (std::byte& each : bytes) {
      each = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    }
    if (const auto place = decode_place(bytes)) {
      EXPECT_LE(place->first + place->count, words_per_page);
      EXPECT_EQ(encode(*place), bytes);
    }
  }
}

}  // namespace
}  // namespace gpushm::sync
