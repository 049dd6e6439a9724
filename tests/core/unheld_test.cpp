// SPDX-License-Identifier: Apache-2.0
// What operators see of segments, and what they remove.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const peer alice{101, 1000, true, {"pod a"}};
const peer bob{201, 2000, true, {"pod b"}};
constexpr session_id creator = 1;
constexpr session_id reader = 2;

class unheld_segments : public testing::Test {
 protected:
  unheld_segments() {
    domain_.at(time_point(std::chrono::seconds(100)));
    domain_.connect(creator, alice);
    domain_.connect(reader, bob);
  }
  gpushm::generation make(const std::string& name, lifetime kept) {
    const auto generation = domain_.reserve(creator, host_segment(name, 4096, kept)).generation;
    domain_.attach(creator, generation, 0, 1);
    domain_.publish(creator, generation, {});
    return generation;
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> result;
    std::optional<std::uint32_t> slot = 0;
    while (slot) {
      slot = domain_.visit_segments(*slot, 2, [&](const segment& each) -> std::size_t {
        result.push_back(each.name);
        return 2;  // a page has one
      });
    }
    return result;
  }

  domain domain_{"default", 42, naming_limits};
  recorder seen_{domain_};
};

TEST_F(unheld_segments, are_removed_and_no_others) {
  const auto leased = make("leased", lifetime::leased);
  const auto kept = make("kept", lifetime::persistent);
  const auto unpublished =
      domain_.reserve(creator, host_segment("unpublished", 4096, lifetime::persistent)).generation;
  EXPECT_FALSE(domain_.remove_unheld(kept)) << "its creator has it";
  domain_.open(reader, {1, 0, "kept", 0, {}});
  domain_.release(creator, kept, 1);
  EXPECT_FALSE(domain_.remove_unheld(kept)) << "a reader has it";
  EXPECT_THAT(domain_.holders_of(domain_.segment_of(kept), 4), ElementsAre("pod b"));
  domain_.release(reader, kept, 1);
  EXPECT_THAT(domain_.holders_of(domain_.segment_of(kept), 4), IsEmpty());
  EXPECT_FALSE(domain_.remove_unheld(leased));
  EXPECT_FALSE(domain_.remove_unheld(unpublished));
  EXPECT_FALSE(domain_.remove_unheld(12'345)) << "there is none";
  EXPECT_THAT(names(), ElementsAre("leased", "kept", "unpublished"));

  EXPECT_TRUE(domain_.remove_unheld(kept));
  EXPECT_THAT(names(), ElementsAre("leased", "unpublished"));
  EXPECT_FALSE(domain_.remove_unheld(kept)) << "again";
  EXPECT_THAT(seen_.freed_generations(), ElementsAre(kept));
  make("kept", lifetime::persistent);  // the name is free
}

TEST_F(unheld_segments, have_the_time_of_their_creation) {
  const auto first = make("first", lifetime::persistent);
  domain_.at(time_point(std::chrono::seconds(200)));
  const auto second = make("second", lifetime::persistent);
  EXPECT_TRUE(domain_.creation_of(first).is_known);
  EXPECT_EQ(domain_.creation_of(first).at, time_point(std::chrono::seconds(100)));
  EXPECT_EQ(domain_.creation_of(second).at, time_point(std::chrono::seconds(200)));
}

}  // namespace
}  // namespace gpushm::core
