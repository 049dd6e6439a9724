// SPDX-License-Identifier: Apache-2.0
#include "core/versions.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpushm/error.hpp"

namespace gpushm::core {
namespace {

using state = version_table::state;

/// A table whose slots and generations are numbered, as a domain does it.
class versions : public ::testing::Test {
 protected:
  std::uint64_t create(std::vector<std::string> parts = {},
                       std::uint64_t number = 0,
                       retention keep = {}) {
    const std::uint64_t id = ++next_id_;
    const std::uint64_t made =
        table_.create("w", number, std::move(parts), keep, next_slot_++, {.id = id});
    ids_[made] = id;
    return made;
  }
  gpushm::generation reserve(std::uint64_t number,
                             const std::string& part = "",
                             std::uint64_t bytes = 1) {
    table_.reserve("w", number, part, ++next_, bytes);
    return next_;
  }
  bool complete(gpushm::generation generation) { return table_.complete(generation, ++next_); }
  /// A version with one part.
  gpushm::generation publish(std::uint64_t number) {
    const auto part = reserve(number);
    EXPECT_TRUE(complete(part));
    return part;
  }
  void forget(gpushm::generation generation) { table_.forget(generation, ++next_); }
  /// Does what a domain does after a call. Returns the segments that were withdrawn.
  std::vector<gpushm::generation> settle() {
    std::vector<gpushm::generation> gone;
    bool is_busy = true;
    while (is_busy) {
      is_busy = table_.end_unused();
      while (const auto generation = table_.next_to_withdraw()) {
        gone.push_back(generation);
        forget(generation);
      }
    }
    return gone;
  }
  template <typename Call>
  static void expect_error(errc code, Call&& call) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const error& why) {
      EXPECT_EQ(why.code(), code) << why.what();
    }
  }

  version_table table_{version_table::limits{4, 3, 5}};
  gpushm::generation next_ = 100;
  std::uint32_t next_slot_ = 0;
  std::uint64_t next_id_ = 0;
  std::map<std::uint64_t, std::uint64_t> ids_;  ///< by the number of the version
};

TEST_F(versions, are_published_with_their_last_part) {
  EXPECT_EQ(create({"rank0", "rank1"}), 1U);
  const auto first = reserve(1, "rank0");
  const auto second = reserve(1, "rank1");
  EXPECT_FALSE(complete(second));
  EXPECT_FALSE(complete(second)) << "counted twice";
  EXPECT_FALSE(table_.is_visible(first));
  EXPECT_FALSE(table_.is_visible(second));
  EXPECT_EQ(table_.target_of("w", "latest"), 0U);
  EXPECT_TRUE(complete(first));
  EXPECT_TRUE(table_.is_visible(first));
  EXPECT_TRUE(table_.is_visible(second));
  EXPECT_EQ(table_.target_of("w", "latest"), 1U);
  const auto moved = table_.take_move();
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->number, 1U);
  EXPECT_FALSE(table_.take_move());
}

TEST_F(versions, end_as_one_before_they_are_published) {
  create({"rank0", "rank1"});
  const auto first = reserve(1, "rank0");
  const auto second = reserve(1, "rank1");
  complete(first);
  forget(second);
  EXPECT_EQ(table_.state_of("w", 1), state::ending);
  EXPECT_EQ(settle(), std::vector{first});
  EXPECT_FALSE(table_.has_name("w"));
  EXPECT_EQ(table_.take_free_slot(), 0U);
}

TEST_F(versions, without_segments_end_with_their_creator) {
  create({"a"});
  table_.fail(ids_.at(1), ++next_);
  EXPECT_FALSE(table_.has_name("w"));
  create({}, 5);
  publish(5);
  table_.fail(ids_.at(5), ++next_);  // it is published
  EXPECT_EQ(table_.state_of("w", 5), state::published);
}

TEST_F(versions, other_segments_come_after_the_publication_and_go_with_it) {
  create({"a"});
  expect_error(errc::no_such_segment, [&] { reserve(1, "cache"); });
  const auto part = reserve(1, "a");
  expect_error(errc::already_exists, [&] { reserve(1, "a"); });
  complete(part);
  const auto cache = reserve(1, "cache");
  EXPECT_FALSE(complete(cache));
  EXPECT_TRUE(table_.is_visible(cache));
  forget(cache);
  EXPECT_EQ(table_.state_of("w", 1), state::published);
  const auto again = reserve(1, "cache");
  table_.end("w", 1, ++next_);
  EXPECT_FALSE(table_.is_visible(part));
  EXPECT_FALSE(table_.is_visible(again));
  EXPECT_EQ(settle().size(), 2U);
  EXPECT_EQ(table_.segment_count(), 0U);
}

TEST_F(versions, numbers_only_rise) {
  EXPECT_EQ(create({}, 7), 7U);
  expect_error(errc::invalid_argument, [&] { create({}, 7); });
  expect_error(errc::invalid_argument, [&] { create({}, 6); });
  EXPECT_EQ(create(), 8U);
  table_.fail(ids_.at(8), ++next_);
  EXPECT_EQ(create(), 9U) << "also after one that has ended";
  expect_error(errc::invalid_argument, [&] { create({"a", "b", "a"}); });
  expect_error(errc::share_exceeded, [&] { create({"1", "2", "3", "4", "5", "6"}); });
  create();
  create();
  expect_error(errc::share_exceeded, [&] { create(); });
  EXPECT_EQ(table_.name_count(), 1U);
}

TEST_F(versions, each_move_of_an_alias_has_another_word) {
  for (int i = 0; i != 2; ++i) {
    publish(create());
  }
  table_.move("w", "prod", 1, next_slot_++, ++next_);
  const auto first = table_.word_of("w", "prod");
  table_.move("w", "prod", 2, 0, ++next_);
  table_.move("w", "prod", 1, 0, ++next_);
  const auto last = table_.word_of("w", "prod");
  ASSERT_TRUE(first && last);
  EXPECT_EQ(first->slot, last->slot);
  EXPECT_NE(first->generation, last->generation);
  table_.move("w", "prod", 1, 0, ++next_);
  EXPECT_EQ(table_.word_of("w", "prod"), last) << "it has not moved";
}

TEST_F(versions, aliases_refer_to_published_versions_only) {
  create();
  expect_error(errc::invalid_argument, [&] { table_.move("w", "prod", 1, 0, ++next_); });
  expect_error(errc::no_such_segment, [&] { table_.move("w", "prod", 2, 0, ++next_); });
  publish(1);
  expect_error(errc::invalid_argument, [&] { table_.move("w", "latest", 1, 0, ++next_); });
  expect_error(errc::invalid_argument, [&] { table_.remove_alias("w", "latest"); });
  expect_error(errc::no_such_segment, [&] { table_.remove_alias("w", "prod"); });
  table_.move("w", "a", 1, 10, ++next_);
  table_.move("w", "b", 1, 11, ++next_);
  expect_error(errc::share_exceeded, [&] { table_.move("w", "c", 1, 12, ++next_); });
  expect_error(errc::invalid_argument, [&] { table_.end("w", 1, ++next_); });
  table_.remove_alias("w", "a");
  EXPECT_EQ(table_.take_free_slot(), 10U);
  table_.remove_alias("w", "b");
  table_.end("w", 1, ++next_);
  EXPECT_EQ(table_.target_of("w", "latest"), 0U);
}

TEST_F(versions, latest_goes_back_when_the_newest_is_withdrawn) {
  for (int i = 0; i != 3; ++i) {
    publish(create());
  }
  EXPECT_EQ(table_.target_of("w", "latest"), 3U);
  table_.withdraw("w", 3, ++next_);
  EXPECT_EQ(table_.target_of("w", "latest"), 2U);
  publish(create());
  EXPECT_EQ(table_.target_of("w", "latest"), 4U);
}

TEST_F(versions, lost_memory_ends_the_version_and_moves_its_aliases) {
  create();
  publish(1);
  create();
  const auto second = publish(2);
  table_.move("w", "prod", 2, next_slot_++, ++next_);
  forget(second);
  EXPECT_EQ(table_.target_of("w", "latest"), 1U);
  EXPECT_EQ(table_.target_of("w", "prod"), 0U);
}

TEST_F(versions, stay_as_long_as_they_are_used_or_kept) {
  std::vector<gpushm::generation> parts;
  for (int i = 0; i != 2; ++i) {
    create();
    parts.push_back(publish(parts.size() + 1));
    EXPECT_TRUE(settle().empty()) << "one that is not used is kept";
  }
  table_.hold(parts[0]);
  create();
  parts.push_back(publish(3));
  create();
  parts.push_back(publish(4));
  EXPECT_EQ(settle(), std::vector{parts[1]}) << "1 is held, 3 is kept, 4 is the latest";
  table_.release(parts[0]);
  EXPECT_EQ(settle(), std::vector{parts[0]});
}

TEST_F(versions, kept_bytes_are_bounded) {
  for (int i = 0; i != 3; ++i) {
    const auto number = create({}, 0, {3, 10});
    complete(reserve(number, "", 6));
  }
  EXPECT_EQ(settle().size(), 1U) << "2 is kept, 1 would be more than 10 bytes";
}

/// Random calls, compared with a plain list of what must be there.
class random_versions : public versions, public ::testing::WithParamInterface<unsigned> {
 protected:
  struct expected_part {
    gpushm::generation generation = 0;
    bool complete = false;
  };
  struct expected_version {
    state now = state::building;
    bool withdrawn = false;
    std::map<std::string, expected_part> parts;
    std::set<gpushm::generation> others;
    std::set<gpushm::generation> held;
  };

  [[nodiscard]] std::uint64_t expected_latest() const {
    std::uint64_t highest = 0;
    for (const auto& [number, each] : expected_) {
      if (each.now == state::published && !each.withdrawn) {
        highest = number;
      }
    }
    return highest;
  }

  /// Records follow the changes that the table reports, as a broker's journal does.
  void check_records() {
    const auto changes = table_.take_changes();
    ASSERT_TRUE(changes);
    for (const version_table::changed& each : *changes) {
      if (each.is_alias) {
        put(recorded_aliases_,
            each.key,
            table_.saved_alias_of(static_cast<std::uint32_t>(each.key)));
      } else {
        put(recorded_versions_, each.key, table_.saved_version_of(each.key));
      }
    }
    std::size_t records = 0;
    table_.visit_records([&](const version_table::changed& each) {
      ++records;
      if (each.is_alias) {
        const auto slot = static_cast<std::uint32_t>(each.key);
        ASSERT_EQ(recorded_aliases_.at(each.key), table_.saved_alias_of(slot));
      } else {
        ASSERT_EQ(recorded_versions_.at(each.key), table_.saved_version_of(each.key));
      }
    });
    ASSERT_EQ(records, recorded_aliases_.size() + recorded_versions_.size());
  }
  template <typename Value>
  static void put(std::map<std::uint64_t, Value>& records,
                  std::uint64_t key,
                  const std::optional<Value>& value) {
    if (value) {
      records[key] = *value;
    } else {
      records.erase(key);
    }
  }
  /// A table that is made from the records is the same.
  void check_restored() {
    version_table other{version_table::limits{}};
    for (const auto& [id, each] : recorded_versions_) {
      other.restore(id, each);
    }
    for (const auto& [slot, each] : recorded_aliases_) {
      other.restore(static_cast<std::uint32_t>(slot), each);
    }
    for (const auto& [number, each] : expected_) {
      for (const auto& [name, part] : each.parts) {
        if (part.generation != 0) {
          other.restore_segment("w", number, name, part.generation, 1, part.complete);
        }
      }
      for (const auto generation : each.others) {
        other.restore_segment("w", number, "cache", generation, 1, true);
      }
    }
    ASSERT_EQ(other.segment_count(), table_.segment_count());
    ASSERT_EQ(other.next_to_withdraw(), table_.next_to_withdraw());
    for (const auto& [number, each] : expected_) {
      ASSERT_EQ(other.state_of("w", number), each.now);
      for (const auto& [name, part] : each.parts) {
        if (part.generation != 0) {
          ASSERT_EQ(other.is_visible(part.generation), table_.is_visible(part.generation));
          ASSERT_EQ(other.is_last_part(part.generation), table_.is_last_part(part.generation));
        }
      }
    }
    for (const char* alias : {"latest", "a", "b"}) {
      ASSERT_EQ(other.target_of("w", alias), table_.target_of("w", alias));
      ASSERT_EQ(other.word_of("w", alias), table_.word_of("w", alias));
    }
    other.visit_records([&](const version_table::changed& each) {
      if (!each.is_alias) {
        ASSERT_EQ(other.saved_version_of(each.key), recorded_versions_.at(each.key));
      }
    });
  }

  void check() {
    check_records();
    if (++checks_ % 16 == 0) {
      check_restored();
    }
    for (const auto& [number, each] : expected_) {
      ASSERT_EQ(table_.state_of("w", number), each.now) << number;
      for (const auto& [name, part] : each.parts) {
        if (part.generation != 0) {
          ASSERT_EQ(table_.is_visible(part.generation), each.now == state::published);
        }
      }
    }
    ASSERT_EQ(table_.target_of("w", "latest"), expected_latest());
    for (const auto& [alias, target] : aliases_) {
      ASSERT_EQ(table_.target_of("w", alias), target);
      if (target != 0) {
        ASSERT_EQ(table_.state_of("w", target), state::published);
      }
    }
    // Each change of a target has another word.
    for (const char* alias : {"latest", "a", "b"}) {
      const auto word = table_.word_of("w", alias);
      const auto target = table_.target_of("w", alias);
      if (word && target != 0) {
        const auto known = targets_.emplace(std::pair(word->slot, word->generation), target).first;
        ASSERT_EQ(known->second, target) << "one word for two versions";
      }
    }
  }

  /// A version has begun to end.
  void end(std::uint64_t number) {
    expected_[number].now = state::ending;
    for (auto& [alias, target] : aliases_) {
      if (target == number) {
        target = 0;
      }
    }
  }
  void gone(gpushm::generation generation) {
    for (auto at = expected_.begin(); at != expected_.end(); ++at) {
      expected_version& each = at->second;
      each.held.erase(generation);
      bool was_part = false;
      for (auto& [name, part] : each.parts) {
        if (part.generation == generation) {
          part.generation = 0;
          was_part = true;
        }
      }
      if (was_part || each.others.erase(generation) != 0) {
        if (was_part && each.now != state::ending) {
          end(at->first);
        }
        return;
      }
    }
  }
  [[nodiscard]] bool is_empty(const expected_version& version) const {
    return version.others.empty() &&
           std::all_of(version.parts.begin(), version.parts.end(), [](const auto& each) {
             return each.second.generation == 0;
           });
  }
  void drop_empty() {
    std::erase_if(expected_, [&](const auto& each) {
      return each.second.now == state::ending && is_empty(each.second);
    });
    if (expected_.empty()) {
      aliases_.clear();
    }
  }
  /// What a domain does: the versions that end must be unused.
  void settle_and_check(const retention& keep) {
    bool is_busy = true;
    while (is_busy) {
      is_busy = table_.end_unused();
      for (auto& [number, each] : expected_) {
        if (each.now == state::published && table_.state_of("w", number) != state::published) {
          ASSERT_TRUE(each.held.empty()) << number;
          ASSERT_NE(expected_latest(), number);
          for (const auto& [alias, target] : aliases_) {
            ASSERT_NE(target, number);
          }
          each.now = state::ending;
        }
      }
      while (const auto generation = table_.next_to_withdraw()) {
        forget(generation);
        gone(generation);
      }
      drop_empty();
    }
    std::uint32_t kept = 0;
    for (const auto& [number, each] : expected_) {
      const bool is_target =
          number == expected_latest() ||
          std::any_of(aliases_.begin(), aliases_.end(), [version = number](const auto& alias) {
            return alias.second == version;
          });
      if (each.now == state::published && each.held.empty() && !is_target) {
        ASSERT_FALSE(each.withdrawn);
        ++kept;
      }
    }
    ASSERT_LE(kept, keep.versions);
  }

  std::map<std::uint64_t, expected_version> expected_;
  std::map<std::string, std::uint64_t> aliases_;
  std::map<std::pair<std::uint32_t, gpushm::generation>, std::uint64_t> targets_;
  std::map<std::uint64_t, saved_version> recorded_versions_;
  std::map<std::uint64_t, saved_alias> recorded_aliases_;
  std::size_t checks_ = 0;
};

TEST_P(random_versions, are_what_a_plain_list_says) {
  std::mt19937 random(GetParam());
  const retention keep{GetParam() % 3, 0};
  const std::vector<std::string> names{"", "r0", "r1"};
  const auto any = [&]() -> std::uint64_t {
    if (expected_.empty()) {
      return 1;
    }
    return std::next(expected_.begin(), static_cast<std::ptrdiff_t>(random() % expected_.size()))
        ->first;
  };
  for (int step = 0; step != 4'000; ++step) {
    const std::uint64_t number = any();
    const auto at = expected_.find(number);
    try {
      switch (random() % 10) {
        case 0: {
          std::vector<std::string> parts(names.begin(),
                                         names.begin() + static_cast<std::ptrdiff_t>(random() % 3));
          const auto made = create(parts, 0, keep);
          expected_version& fresh = expected_[made];
          for (const std::string& each : parts.empty() ? std::vector<std::string>{""} : parts) {
            fresh.parts[each];
          }
          break;
        }
        case 1:
        case 2: {
          const std::string part = random() % 5 == 0 ? "cache" : names[random() % names.size()];
          const auto generation = reserve(number, part);
          if (const auto known = at->second.parts.find(part); known != at->second.parts.end()) {
            known->second.generation = generation;
          } else {
            ASSERT_EQ(at->second.now, state::published);
            at->second.others.insert(generation);
          }
          break;
        }
        case 3:
        case 4: {
          if (at == expected_.end() || at->second.parts.empty()) {
            break;
          }
          auto part = at->second.parts.begin();
          std::advance(part, static_cast<std::ptrdiff_t>(random() % at->second.parts.size()));
          if (part->second.generation == 0) {
            break;
          }
          const bool published = complete(part->second.generation);
          part->second.complete = true;
          const bool all = std::all_of(at->second.parts.begin(),
                                       at->second.parts.end(),
                                       [](const auto& each) { return each.second.complete; });
          ASSERT_EQ(published, all && at->second.now == state::building);
          if (published) {
            at->second.now = state::published;
          }
          break;
        }
        case 5: {
          if (at == expected_.end() || at->second.parts.begin()->second.generation == 0) {
            break;
          }
          const auto generation = at->second.parts.begin()->second.generation;
          if (at->second.held.count(generation) != 0) {
            table_.release(generation);
            at->second.held.erase(generation);
          } else {
            table_.hold(generation);
            at->second.held.insert(generation);
          }
          break;
        }
        case 6: {
          const std::string alias = random() % 2 == 0 ? "a" : "b";
          table_.move("w", alias, number, next_slot_++, ++next_);
          aliases_[alias] = number;
          break;
        }
        case 7:
          if (random() % 4 == 0) {
            table_.withdraw("w", number, ++next_);
            at->second.withdrawn = true;
          } else if (random() % 2 == 0) {
            table_.remove_alias("w", "a");
            aliases_.erase("a");
          }
          break;
        case 8:
          if (random() % 4 == 0) {
            table_.end("w", number, ++next_);
            end(number);
            drop_empty();
          }
          break;
        default:
          if (at != expected_.end() && !is_empty(at->second) && random() % 4 == 0) {
            const auto generation = !at->second.others.empty()
                                        ? *at->second.others.begin()
                                        : at->second.parts.begin()->second.generation;
            if (generation != 0) {
              forget(generation);
              gone(generation);
              drop_empty();
            }
          }
          break;
      }
    } catch (const error&) {  // refused: nothing has changed, which `check` compares
    }
    ASSERT_NO_FATAL_FAILURE(check());
    if (random() % 3 == 0) {
      ASSERT_NO_FATAL_FAILURE(settle_and_check(keep));
      ASSERT_NO_FATAL_FAILURE(check());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(seeds, random_versions, ::testing::Range(0U, 12U));

}  // namespace
}  // namespace gpushm::core
