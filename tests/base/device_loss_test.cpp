// SPDX-License-Identifier: Apache-2.0
#include "base/segments/device_loss.hpp"

#include <gtest/gtest.h>

#include <set>

namespace gpushm::base {
namespace {

TEST(device_loss, text_names_the_cause) {
  EXPECT_EQ(text_of({loss_cause::xid, 79}), "Xid 79 (the GPU has fallen off the bus)");
  EXPECT_EQ(text_of({loss_cause::xid, 4'000}), "Xid 4000") << "not in the list";
  EXPECT_EQ(text_of({loss_cause::unreachable}), "the driver cannot reach it");
  EXPECT_EQ(text_of({loss_cause::reset}), "it was reset");
  EXPECT_EQ(text_of({loss_cause::reported}), "");
  EXPECT_EQ(text_of({}), "");
}

TEST(device_loss, unknown_cause_is_a_loss_without_a_cause) {
  EXPECT_EQ(loss_of(2, 95), (device_loss{loss_cause::xid, 95}));
  EXPECT_EQ(loss_of(4, 0), (device_loss{loss_cause::reset, 0}));
  const device_loss reported{loss_cause::reported, 0};
  EXPECT_EQ(loss_of(1, 0), reported);
  EXPECT_EQ(loss_of(0, 0), reported) << "of an earlier version";
  EXPECT_EQ(loss_of(5, 0), reported) << "of a later version";
  EXPECT_EQ(loss_of(255, 79), reported);
  EXPECT_EQ(loss_of(2, 0), reported) << "no Xid";
  EXPECT_EQ(loss_of(4, 79), reported) << "an Xid that is not the cause";
}

TEST(device_loss, fatal_xids_are_known_and_need_a_reset) {
  std::set<std::uint64_t> fatal;
  for (std::uint64_t number = 0; number < 1'000; ++number) {
    if (is_fatal_for_memory(number)) {
      EXPECT_TRUE(is_xid_of(xid_kind::needs_reset, number)) << number;
      fatal.insert(number);
    }
  }
  EXPECT_EQ(fatal, (std::set<std::uint64_t>{79, 95, 140}));
}

}  // namespace
}  // namespace gpushm::base
