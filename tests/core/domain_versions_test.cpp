// SPDX-License-Identifier: Apache-2.0
// Versions and aliases of a domain: what members see, what ends with what, what is charged, and
// what a successor continues with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>

#include "base/segments/versioned_names.hpp"
#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint32_t broker_uid = 42;
constexpr session_id trainer = 1;
constexpr session_id reader = 2;
constexpr session_id rank = 3;  ///< of the trainer's uid
constexpr time_point later{milliseconds(1'000)};

class domain_versions : public testing::Test {
 protected:
  domain_versions() { connect(); }

  void connect() {
    domain_->connect(trainer, {101, 1000, true});
    domain_->connect(reader, {201, 2000, true});
    domain_->connect(rank, {102, 1000, true});
  }
  std::uint64_t create(std::vector<std::string> parts = {}, retention keep = {}) {
    return domain_->create_version(trainer, {"w/x", 0, std::move(parts), keep});
  }
  gpushm::generation reserve(const std::string& name, session_id session = trainer) {
    const auto made = domain_->reserve(session, host_segment(name, 4096, lifetime::persistent));
    domain_->attach(session, made.generation, 0, 1);
    return made.generation;
  }
  gpushm::generation make(const std::string& name, session_id session = trainer) {
    const auto made = reserve(name, session);
    domain_->publish(session, made, {});
    domain_->release(session, made, 1);
    return made;
  }
  /// A published version of one part.
  gpushm::generation version() {
    const std::uint64_t number = create();
    return make("w/x@" + std::to_string(number));
  }
  /// The reply to an open; generation 0 and no code: it waits.
  reply opened(const std::string& name,
               session_id session = reader,
               std::optional<time_point> deadline = std::nullopt) {
    seen_.replies().clear();
    domain_->open(session, {++request_, 0, name, 0, deadline});
    return seen_.replies().empty() ? reply{} : seen_.replies().back();
  }
  errc refusal(const std::string& name) { return opened(name).code; }
  void work() {
    seen_.settle();
    while (domain_->work()) {
      seen_.settle();
    }
    seen_.settle();
  }
  errc code_of(const std::function<void()>& call) {
    errc code{};
    error_of(call, &code);
    return code;
  }
  void restart() {
    saved_state recorded = seen_.settle().recorded();
    auto successor =
        std::make_unique<domain>("default", broker_uid, naming_limits, nullptr, recorded);
    seen_.follow(*successor);
    domain_ = std::move(successor);
  }

  std::unique_ptr<domain> domain_ = std::make_unique<domain>("default", broker_uid, naming_limits);
  recorder seen_{*domain_};
  std::uint64_t request_ = 0;
};

TEST_F(domain_versions, are_visible_with_their_last_part) {
  EXPECT_EQ(create({"r0", "r1"}), 1U);
  const auto first = make("w/x@1/r0");
  EXPECT_EQ(refusal("w/x@1/r0"), errc::no_such_segment);
  EXPECT_EQ(refusal("w/x@latest/r0"), errc::no_such_segment);
  // Another process of the same uid makes its part.
  const auto second = make("w/x@1/r1", rank);
  EXPECT_EQ(opened("w/x@1/r0").generation, first);
  EXPECT_EQ(opened("w/x@latest/r1").generation, second);
  EXPECT_EQ(domain_->resolve("w/x").number, 1U);
  EXPECT_EQ(domain_->resolve("w/x@latest").number, 1U);
}

TEST_F(domain_versions, wake_opens_of_all_their_parts_and_of_their_alias) {
  create({"r0", "r1"});
  domain_->open(reader, {1, 0, "w/x@1/r0", 0, later});
  domain_->open(reader, {2, 0, "w/x@latest/r1", 0, later});
  domain_->open(reader, {3, 0, "w/x@latest/none", 0, later});
  const auto first = make("w/x@1/r0");
  EXPECT_THAT(seen_.replies(), IsEmpty());
  const auto second = make("w/x@1/r1");
  work();
  std::set<gpushm::generation> generations;
  for (const reply& each : seen_.replies()) {
    generations.insert(each.generation);
  }
  EXPECT_THAT(generations, ElementsAre(first, second));
  // What is created in a published version is published by itself.
  seen_.replies().clear();
  const auto cache = make("w/x@1/none");
  work();
  ASSERT_EQ(seen_.replies().size(), 1U);
  EXPECT_EQ(seen_.replies()[0].generation, cache);
}

TEST_F(domain_versions, and_a_bare_name_exclude_each_other) {
  version();
  EXPECT_EQ(code_of([&] { reserve("w/x"); }), errc::already_exists);
  const reply refused = opened("w/x");
  EXPECT_EQ(refused.code, errc::no_such_segment);
  EXPECT_THAT(refused.text, HasSubstr("w/x@latest"));
  EXPECT_THAT(refused.text, HasSubstr("w/x@1"));
  make("w/y");
  EXPECT_EQ(code_of([&] { domain_->create_version(trainer, {"w/y"}); }), errc::already_exists);
}

TEST_F(domain_versions, have_aliases_whose_word_changes_with_each_move) {
  const auto one = version();
  reply by_alias = opened("w/x@latest");
  EXPECT_EQ(by_alias.generation, one);
  const alias_word first = by_alias.alias;
  ASSERT_NE(first.generation, 0U);
  EXPECT_EQ(seen_.slots().at(first.slot).generation, first.generation);
  EXPECT_EQ(seen_.slots().at(first.slot).state, segment_state::live);
  EXPECT_EQ(opened("w/x@1").alias.generation, 0U);
  const auto two = version();
  by_alias = opened("w/x@latest");
  EXPECT_EQ(by_alias.generation, two);
  EXPECT_EQ(by_alias.alias.slot, first.slot);
  EXPECT_GT(by_alias.alias.generation, first.generation);
  EXPECT_EQ(seen_.slots().at(first.slot).generation, by_alias.alias.generation);
  // Withdrawn: the one before it again, under a third word.
  domain_->withdraw_version(trainer, "w/x", 2);
  const reply again = opened("w/x@latest");
  EXPECT_EQ(again.generation, one);
  EXPECT_GT(again.alias.generation, by_alias.alias.generation);
}

TEST_F(domain_versions, are_rolled_forward_and_back_by_an_alias) {
  const auto one = version();
  const auto two = version();
  domain_->move_alias(trainer, "w/x", "prod", 1);
  EXPECT_EQ(opened("w/x@prod").generation, one);
  domain_->move_alias(rank, "w/x", "prod", 2);
  EXPECT_EQ(opened("w/x@prod").generation, two);
  domain_->move_alias(trainer, "w/x", "prod", 1);
  EXPECT_EQ(opened("w/x@prod").generation, one);
  EXPECT_EQ(code_of([&] { domain_->move_alias(trainer, "w/x", "prod", 9); }),
            errc::no_such_segment);
  EXPECT_EQ(code_of([&] { domain_->move_alias(reader, "w/x", "prod", 2); }),
            errc::permission_denied);
  EXPECT_EQ(code_of([&] { domain_->remove_version(trainer, "w/x", 1); }), errc::invalid_argument)
      << "an alias refers to it";
  domain_->remove_alias(trainer, "w/x", "prod");
  EXPECT_EQ(refusal("w/x@prod"), errc::no_such_segment);
}

TEST_F(domain_versions, end_without_a_part_of_whom_died) {
  create({"r0", "r1"});
  make("w/x@1/r0");
  reserve("w/x@1/r1", rank);
  domain_->disconnect(rank, false);
  work();
  EXPECT_EQ(domain_->segment_count(), 0U);
  EXPECT_THAT(domain_->versions_of("w/x"), IsEmpty());
  EXPECT_EQ(refusal("w/x@1/r0"), errc::peer_died);
  EXPECT_EQ(code_of([&] { reserve("w/x@1/r0"); }), errc::peer_died);
}

TEST_F(domain_versions, end_with_their_creator_before_they_are_published) {
  create({"r0", "r1"});
  make("w/x@1/r0", rank);
  domain_->disconnect(trainer, true);
  work();
  EXPECT_EQ(domain_->segment_count(), 0U);
  EXPECT_EQ(domain_->slots().in_use(), 0U);
  // One that is published stays.
  domain_->connect(trainer, {101, 1000, true});
  version();
  domain_->disconnect(trainer, false);
  work();
  EXPECT_NE(opened("w/x@latest").generation, 0U);
}

TEST_F(domain_versions, stay_for_their_readers_and_go_with_the_last) {
  const auto one = version();
  EXPECT_EQ(opened("w/x@1").generation, one);
  version();
  version();
  version();
  work();
  // Three and four: the newest, and the one kept for a rollback. One is in use.
  std::vector<std::uint64_t> numbers;
  for (const version_facts& each : domain_->versions_of("w/x")) {
    numbers.push_back(each.number);
  }
  EXPECT_THAT(numbers, ElementsAre(4, 3, 1));
  domain_->release(reader, one, 1);
  work();
  EXPECT_EQ(domain_->versions_of("w/x").size(), 2U);
  EXPECT_EQ(domain_->find_segment(one), nullptr);
}

TEST_F(domain_versions, are_removed_with_everything_under_their_name) {
  create({"r0"});
  make("w/x@1/r0");
  make("w/x@1/cache/kernels");
  EXPECT_EQ(code_of([&] { domain_->remove(trainer, "w/x@1/r0"); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] { domain_->remove(trainer, "w/x@latest"); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] { domain_->remove(reader, "w/x@1"); }), errc::permission_denied);
  domain_->remove(trainer, "w/x@1");
  EXPECT_EQ(refusal("w/x@1/r0"), errc::no_such_segment) << "at once";
  EXPECT_EQ(refusal("w/x@1/cache/kernels"), errc::no_such_segment);
  work();
  EXPECT_EQ(domain_->segment_count(), 0U);
  EXPECT_EQ(domain_->slots().in_use(), 0U);
  EXPECT_EQ(domain_->allocated_bytes(), 0U);
}

TEST_F(domain_versions, tell_the_holders_of_what_an_alias_has_left) {
  const auto one = version();
  opened("w/x@latest");
  seen_.losses().clear();
  domain_->subscribe(rank, 1, "w/x@");
  version();
  work();
  ASSERT_EQ(seen_.losses().size(), 1U);
  EXPECT_EQ(seen_.losses()[0], (recorder::loss{reader, one, event_kind::alias_moved}));
  const auto& notices = seen_.notices();
  EXPECT_TRUE(std::any_of(notices.begin(), notices.end(), [](const notice& each) {
    return each.kind == event_kind::alias_moved && each.name == "w/x@latest" &&
           each.session == rank;
  }));
}

TEST_F(domain_versions, tell_the_holders_also_after_a_restart) {
  const auto one = version();
  opened("w/x@latest");
  version();
  seen_.settle();
  restart();
  seen_.losses().clear();
  work();
  ASSERT_EQ(seen_.losses().size(), 1U);
  EXPECT_EQ(seen_.losses()[0], (recorder::loss{reader, one, event_kind::alias_moved}));
}

TEST_F(domain_versions, refuse_what_cannot_be_part_of_one) {
  create({"r0"});
  EXPECT_EQ(code_of([&] { reserve("w/x@latest/r0"); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] { reserve("w/x@1/r1"); }), errc::no_such_segment);
  EXPECT_EQ(code_of([&] { reserve("w/x@2/r0"); }), errc::no_such_segment);
  EXPECT_EQ(code_of([&] { reserve("w/x@1/r0", reader); }), errc::permission_denied);
  EXPECT_EQ(code_of([&] { domain_->create_version(reader, {"w/x"}); }), errc::permission_denied);
  EXPECT_EQ(code_of([&] { domain_->create_version(trainer, {"w/x@1"}); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] { domain_->create_version(trainer, {"w/x", 1}); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] { domain_->create_version(trainer, {std::string(250, 'n')}); }),
            errc::invalid_argument)
      << "its names would be too long";
  EXPECT_EQ(code_of([&] {
              reservation wanted = host_segment("w/x@1/r0");
              wanted.replaces = 5;
              domain_->reserve(trainer, wanted);
            }),
            errc::invalid_argument);
  reserve("w/x@1/r0");
  EXPECT_EQ(code_of([&] { reserve("w/x@1/r0"); }), errc::already_exists);
}

/// Whatever happens, in any order, and over restarts: no part of a version is seen while another is
/// missing, an alias never refers to nothing that is missing, and in the end nothing is left.
class random_domain_versions : public domain_versions,
                               public testing::WithParamInterface<std::uint32_t> {
 protected:
  void check() {
    seen_.settle();
    for (const version_facts& each : domain_->versions_of("w/x")) {
      std::size_t visible = 0;
      for (const char* const part : {"r0", "r1"}) {
        const std::string name = "w/x@" + std::to_string(each.number) + "/" + part;
        const reply got = opened(name);
        visible += got.generation != 0 ? 1 : 0;
        if (got.generation != 0) {
          domain_->release(reader, got.generation, 1);
        }
      }
      ASSERT_EQ(visible, each.state == version_state::published ? 2U : 0U) << each.number;
      if (each.state != version_state::published) {
        ASSERT_THAT(each.aliases, IsEmpty());
      }
    }
  }
};

TEST_P(random_domain_versions, are_complete_or_not_there) {
  std::mt19937 random(GetParam());
  std::set<session_id> connected{trainer, reader, rank};
  std::vector<std::pair<session_id, gpushm::generation>> held;
  session_id next_session = 10;
  session_id maker = trainer;
  session_id helper = rank;
  for (int step = 0; step != 1'500; ++step) {
    const auto known = domain_->versions_of("w/x");
    const std::uint64_t number = known.empty() ? 1 : known[random() % known.size()].number;
    const std::string name = "w/x@" + std::to_string(number);
    try {
      switch (random() % 14) {
        case 0:
        case 1:
          domain_->create_version(
              random() % 4 == 0 ? helper : maker,
              {"w/x", 0, {"r0", "r1"}, {static_cast<std::uint32_t>(random() % 3), 0}});
          break;
        case 2:
        case 3:
        case 4:
        case 5: {
          const std::string part = random() % 8 == 0 ? "/cache" : random() % 2 == 0 ? "/r0" : "/r1";
          const session_id by = random() % 2 == 0 ? maker : helper;
          const auto made = reserve(name + part, by);
          if (random() % 8 != 0) {
            domain_->publish(by, made, {});
          }
          if (random() % 4 != 0) {
            domain_->release(by, made, 1);
          }
          break;
        }
        case 6: {
          const reply got = opened("w/x@" + std::string(random() % 2 == 0 ? "latest" : "prod") +
                                   (random() % 2 == 0 ? "/r0" : "/r1"));
          if (got.generation != 0) {
            ASSERT_EQ(seen_.slots().at(got.alias.slot).generation, got.alias.generation);
            held.emplace_back(reader, got.generation);
          }
          break;
        }
        case 7:
          if (!held.empty()) {
            std::swap(held[random() % held.size()], held.back());
            domain_->release(held.back().first, held.back().second, 1);
            held.pop_back();
          }
          break;
        case 8:
          domain_->move_alias(maker, "w/x", "prod", number);
          break;
        case 9:
          random() % 2 == 0 ? domain_->withdraw_version(maker, "w/x", number)
                            : domain_->remove_alias(maker, "w/x", "prod");
          break;
        case 10:
          domain_->remove(maker, name);
          break;
        case 11: {  // one of those who make parts dies, and another one comes
          session_id& gone = random() % 2 == 0 ? maker : helper;
          if (random() % 2 == 0) {
            domain_->disconnect(gone, random() % 2 == 0);
            gone = ++next_session;
            domain_->connect(gone, {101, 1000, true});
          } else if (domain_->lose(gone)) {
            const session_id lost = gone;
            gone = ++next_session;
            domain_->connect(gone, {101, 1000, true});
            if (random() % 2 == 0) {
              domain_->resume(lost, gone);
              while (domain_->resume_some(gone)) {
              }
              domain_->keep(gone, {}, {}, false);
            } else {
              domain_->disconnect(lost, false);
            }
          } else {
            gone = ++next_session;
            domain_->connect(gone, {101, 1000, true});
          }
          break;
        }
        case 12:
          domain_->open(reader, {++request_, 0, "w/x@latest/r1", 0, later});
          break;
        default:
          if (random() % 4 == 0) {
            restart();
          } else {
            seen_.settle();
            static_cast<void>(domain_->work());
          }
      }
    } catch (const error&) {  // NOLINT(bugprone-empty-catch): refused, which changes nothing
    }
    ASSERT_NO_FATAL_FAILURE(check()) << "step " << step;
  }
  for (const session_id each : {maker, helper, reader}) {
    domain_->disconnect(each, true);
  }
  work();
  domain_->connect(trainer, {101, 1000, true});
  for (const version_facts& each : domain_->versions_of("w/x")) {
    for (const std::string& alias : each.aliases) {
      if (alias != base::latest_alias) {
        domain_->remove_alias(trainer, "w/x", alias);
      }
    }
  }
  for (const version_facts& each : domain_->versions_of("w/x")) {
    domain_->remove_version(trainer, "w/x", each.number);
  }
  work();
  domain_->disconnect(trainer, true);
  work();
  EXPECT_EQ(domain_->segment_count(), 0U);
  EXPECT_EQ(domain_->slots().in_use(), 0U);
  EXPECT_EQ(domain_->allocated_bytes(), 0U);
  EXPECT_EQ(domain_->descriptors(), 0U);
  EXPECT_EQ(domain_->budget().used(resource::memory_bytes), 0U);
  EXPECT_EQ(domain_->budget().used(resource::segments), 0U);
}

INSTANTIATE_TEST_SUITE_P(seeds, random_domain_versions, testing::Range(1U, 13U));

}  // namespace
}  // namespace gpushm::core
