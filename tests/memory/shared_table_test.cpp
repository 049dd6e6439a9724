// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/sources/shared_table.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <latch>
#include <memory>

#include "gpu/memory/sources/opened_addresses.hpp"

namespace gpushm::memory {
namespace {

using namespace std::chrono_literals;

/// The driver takes 9 ms to map a peer's memory: other keys must not wait for that.
TEST(shared_table, creates_different_keys_concurrently) {
  shared_table<int, int> table;
  std::latch both(2);
  const auto make = [&] {
    both.arrive_and_wait();  // never returns if one waits for the other
    return std::make_unique<int>(1);
  };
  auto other = std::async(std::launch::async, [&] { return table.find_or_make(1, make); });
  const auto mine = table.find_or_make(2, make);
  EXPECT_NE(other.get(), mine);
}

// ---- addresses ----

using addresses = opened_addresses<int>;

bool always(const addresses::entry& /*entry*/) {
  return true;
}

TEST(opened_addresses, distinguish_old_memory_from_new) {
  addresses addresses;
  addresses::place first;
  addresses::place place;
  const addresses::opening opening(addresses);
  EXPECT_EQ(addresses.enter(opening, 1, 0x1000, always, first), addresses::verdict::entered);
  EXPECT_EQ(addresses.enter(opening, 1, 0x1000, always, place), addresses::verdict::entered)
      << "the same memory, for another device";
  EXPECT_EQ(addresses.enter(opening, 2, 0x2000, always, place), addresses::verdict::entered);
  EXPECT_EQ(addresses.enter(opening, 3, 0x1000, always, place), addresses::verdict::another);
  const auto never = [](const addresses::entry&) { return false; };
  EXPECT_EQ(addresses.enter(opening, 3, 0x1000, never, place), addresses::verdict::entered)
      << "a reset has destroyed the previous mapping";
}

TEST(opened_addresses, are_unsure_if_closed_during_open) {
  addresses addresses;
  addresses::place old;
  addresses::place place;
  {
    const addresses::opening opening(addresses);
    ASSERT_EQ(addresses.enter(opening, 1, 0x1000, always, old), addresses::verdict::entered);
  }
  {
    const addresses::opening opening(addresses);
    addresses.closing(old);
    addresses.closed(old);
    EXPECT_EQ(addresses.enter(opening, 2, 0x1000, always, place), addresses::verdict::unsure);
    EXPECT_EQ(addresses.enter(opening, 2, 0x2000, always, place), addresses::verdict::entered)
        << "another address is unaffected";
  }
  const addresses::opening again(addresses);
  EXPECT_EQ(addresses.enter(again, 2, 0x1000, always, place), addresses::verdict::entered);
}

TEST(opened_addresses, wait_while_address_is_being_closed) {
  addresses addresses;
  addresses::place old;
  {
    const addresses::opening opening(addresses);
    ASSERT_EQ(addresses.enter(opening, 1, 0x1000, always, old), addresses::verdict::entered);
  }
  addresses.closing(old);
  auto verdict = std::async(std::launch::async, [&] {
    const addresses::opening opening(addresses);
    addresses::place place;
    return addresses.enter(opening, 2, 0x1000, always, place);
  });
  EXPECT_EQ(verdict.wait_for(50ms), std::future_status::timeout);
  addresses.closed(old);
  EXPECT_EQ(verdict.get(), addresses::verdict::unsure);
}

}  // namespace
}  // namespace gpushm::memory
