// SPDX-License-Identifier: Apache-2.0
// Who has caused a change, and its number.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/saved_state.hpp"
#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;

class core_changes : public testing::Test {
 protected:
  core_changes() {
    domain_->connect(creator, alice);
    domain_->connect(reader, bob);
    domain_->connect(operator_session, root);
    domain_->connect(watcher, {40, 1'009, true});
    domain_->subscribe(watcher, 1, "");
    static_cast<void>(changes());
  }

  /// Of the last calls, for subscribers. Checks that no number is missing.
  std::vector<change> changes() {
    effects& effects = domain_->pending();
    std::vector<change> result;
    for (const change& each : effects.changes) {
      if (each.holder != 0) {
        EXPECT_EQ(each.number, 0U);
        continue;
      }
      EXPECT_EQ(each.number, ++last_number_);
      result.push_back(each);
      result.back().of = nullptr;  // segments must not outlive their domain
    }
    for (const record_name& each : effects.records) {
      saved_value value = domain_->saved(each);
      if (value.index() == 0) {
        recorded_.records.erase(each);
      } else {
        recorded_.records[each] = std::move(value);
      }
    }
    effects.clear();
    return result;
  }
  void work_to_the_end(std::vector<change>& collected) {
    while (domain_->work()) {
      const auto some = changes();
      collected.insert(collected.end(), some.begin(), some.end());
    }
    const auto some = changes();
    collected.insert(collected.end(), some.begin(), some.end());
  }
  /// A successor of the domain, from what was recorded.
  void restart() {
    static_cast<void>(changes());
    domain_ = std::make_unique<domain>("default", owner, bounds, nullptr, recorded_);
    recorded_ = domain_->save();
  }
  gpushm::generation make(const std::string& name, lifetime kept = lifetime::persistent) {
    const auto created = domain_->reserve(creator, host_segment(name, 4096, kept)).generation;
    domain_->attach(creator, created, 0, 1);
    domain_->publish(creator, created, {});
    return created;
  }
  void open(session_id session, const std::string& name) {
    domain_->open(session, {++request_, 0, name, 0, std::nullopt});
  }
  static void expect(const std::vector<change>& collected,
                     const std::vector<std::pair<event_kind, peer>>& expected) {
    ASSERT_EQ(collected.size(), expected.size());
    for (std::size_t i = 0; i != collected.size(); ++i) {
      EXPECT_EQ(collected[i].kind, expected[i].first) << i;
      ASSERT_NE(collected[i].by, nullptr) << i;
      EXPECT_EQ(*collected[i].by, expected[i].second) << i;
    }
  }

  static constexpr std::uint32_t owner = 42;
  static constexpr session_id creator = 1;
  static constexpr session_id reader = 2;
  static constexpr session_id operator_session = 3;
  static constexpr session_id watcher = 4;
  static constexpr limits bounds{.names_changes = true};
  const peer alice{101, 1'000, true, {"pod a", true}};
  const peer bob{201, 1'001, true, {"pod b", true}};
  const peer root{301, owner, true};
  std::unique_ptr<domain> domain_ = std::make_unique<domain>("default", owner, bounds);
  saved_state recorded_ = domain_->save();
  std::uint64_t last_number_ = 0;
  std::uint64_t request_ = 0;
};

TEST_F(core_changes, name_the_session_that_caused_them) {
  const auto created = make("kv");
  open(reader, "kv");
  domain_->release(reader, created, 1);
  open(reader, "kv");
  domain_->disconnect(reader, false);
  domain_->remove(operator_session, "kv");
  expect(changes(),
         {{event_kind::published, alice},
          {event_kind::opened, bob},
          {event_kind::released, bob},
          {event_kind::opened, bob},
          {event_kind::peer_died, bob},
          {event_kind::released, bob},
          {event_kind::removed, root}});
}

TEST_F(core_changes, name_who_ends_a_lease_without_a_fence) {
  make("kv");
  open(reader, "kv");
  EXPECT_TRUE(domain_->at(at_ms(1)).lose(reader));
  static_cast<void>(changes());
  domain_->unfence(operator_session, "kv");
  const auto collected = changes();
  expect(collected, {{event_kind::unfenced, root}, {event_kind::released, root}});
  EXPECT_EQ(collected[0].peer_pid, bob.pid) << "subscribers see whose lease it was";
}

TEST_F(core_changes, have_no_actor_if_the_broker_causes_them) {
  const auto created = make("kv");
  static_cast<void>(changes());
  domain_->lose_memory(created);
  const auto collected = changes();
  ASSERT_EQ(collected.size(), 1U);
  EXPECT_EQ(collected[0].kind, event_kind::removed);
  EXPECT_EQ(collected[0].by, nullptr);
}

// More than one turn ends at once: the rest is the successor's.
TEST_F(core_changes, go_on_after_a_restart_without_a_gap) {
  constexpr int count = 600;
  for (int i = 0; i < count; ++i) {
    make(std::to_string(i));
    open(reader, std::to_string(i));
    static_cast<void>(changes());
  }
  domain_->disconnect(reader, false);
  std::vector<change> collected = changes();
  const std::size_t before = collected.size();
  restart();
  ASSERT_TRUE(domain_->has_work());
  work_to_the_end(collected);
  EXPECT_GT(collected.size(), before);
  EXPECT_EQ(collected.size(), 2U * count);  // deaths and releases
  for (const change& each : collected) {
    ASSERT_NE(each.by, nullptr);
    EXPECT_EQ(*each.by, bob);
  }
  restart();
  make("new");
  expect(changes(), {{event_kind::published, alice}});
}

TEST_F(core_changes, have_no_numbers_without_subscribers) {
  domain_->unsubscribe(watcher, 1);
  make("kv");
  EXPECT_TRUE(changes().empty());
  domain_->subscribe(watcher, 2, "");
  open(reader, "kv");
  expect(changes(), {{event_kind::opened, bob}});
  EXPECT_EQ(last_number_, 1U);
}

}  // namespace
}  // namespace gpushm::core
