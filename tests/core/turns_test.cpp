// SPDX-License-Identifier: Apache-2.0
// A turn does a bounded amount of work, in a large domain, too: counted by the objects that it
// changes, each of which a broker records.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/saved_state.hpp"
#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;

constexpr std::uint32_t max_opens = 4'200;
constexpr std::size_t resumed_each_turn = 3 * 256 + 2;  // objects that change
constexpr session_id exporter = 1;
constexpr session_id member = 2;

class core_turns : public testing::Test {
 protected:
  core_turns() {
    domain_.connect(exporter, {10, 1'000, true});
    domain_.connect(member, {20, 1'001, true});
    static_cast<void>(changed());
  }

  /// The values of what the last call has changed.
  std::map<record_name, saved_value> changed() {
    effects& effects = domain_.pending();
    EXPECT_FALSE(effects.too_many_records) << "everything would be recorded";
    std::map<record_name, saved_value> result;
    for (const record_name& each : effects.records) {
      result.emplace(each, domain_.saved(each));
    }
    effects.clear();
    return result;
  }
  /// Until nothing is left. Returns the number of replies.
  std::size_t work_to_the_end(std::size_t replies_per_turn = 0) {
    constexpr int most = 100'000;
    std::size_t replies = domain_.pending().replies.size();
    static_cast<void>(changed());
    for (int turns = 0; domain_.has_work() && turns < most && !HasFailure(); ++turns) {
      domain_.work();
      EXPECT_LE(domain_.pending().replies.size(), replies_per_turn);
      replies += domain_.pending().replies.size();
      static_cast<void>(changed());
    }
    EXPECT_FALSE(domain_.has_work());
    return replies;
  }
  /// Waits for `count` names.
  void wait_for_names(session_id session, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      domain_.open(session, {7, i, "name " + std::to_string(i), 0, at_ms(1'000'000)});
      static_cast<void>(changed());
    }
  }
  /// `3 * max_opens / 2` opens wait for the exporter of one segment.
  void wait_for_exporter() {
    reservation wanted = host_segment("shared");
    wanted.backend = backend::cuda_ipc;
    wanted.device.kind = device_kind::gpu;
    wanted.chunk_count = 0;
    wanted.ticket = {std::byte{1}};
    const gpushm::generation generation = domain_.reserve(exporter, wanted).generation;
    domain_.publish(exporter, generation, {});
    static_cast<void>(changed());
    for (session_id each = 100; each < 103; ++each) {
      domain_.connect(each, {30, 2'000 + static_cast<std::uint32_t>(each), true});
      for (std::uint32_t i = 0; i < max_opens / 2; ++i) {
        domain_.open(each, {7, i, "shared", 0, at_ms(1'000'000)});
        static_cast<void>(changed());
      }
    }
  }
  /// `count` segments, each leased by the exporter.
  void create_many(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      domain_.reserve(exporter, host_segment(std::to_string(i)));
      static_cast<void>(changed());
    }
  }
  /// Another session of its process begins to take what the lost one has.
  void begin_to_resume(session_id lost, session_id successor) {
    ASSERT_TRUE(domain_.lose(lost));
    domain_.connect(successor, {11, 1'000, true});
    static_cast<void>(changed());
    ASSERT_TRUE(domain_.resume(lost, successor));
  }
  /// Returns the number of turns.
  std::size_t resume_the_rest(domain& domain, session_id session) {
    std::size_t turns = 0;
    for (bool more = true; more && !HasFailure(); ++turns) {
      more = domain.resume_some(session);
      EXPECT_FALSE(domain.pending().too_many_records);
      EXPECT_LE(domain.pending().records.size(), resumed_each_turn);
      domain.pending().clear();
    }
    return turns;
  }
  /// Another domain from what this one has saved.
  [[nodiscard]] saved_state restored_and_saved() const {
    saved_state from = domain_.save();
    const domain successor("default", 42, bounds, nullptr, from);
    return successor.save();
  }

  static constexpr limits bounds{.max_pending_opens = max_opens, .names_changes = true};
  domain domain_{"default", 42, bounds};
};

TEST_F(core_turns, close_with_many_waiting_opens_is_recorded_by_itself) {
  wait_for_names(member, max_opens);
  EXPECT_FALSE(domain_.at(at_ms(1)).lose(member));
  static_cast<void>(work_to_the_end());
  EXPECT_EQ(domain_.waiting_count(), 0U);
}

TEST_F(core_turns, waiting_opens_of_a_closed_session_end_in_turns) {
  constexpr std::size_t each_turn = 256;
  wait_for_names(member, max_opens);
  std::uint32_t turns = 0;
  for (bool more = true; more && turns < max_opens; ++turns) {
    more = domain_.stop_some(member);
    EXPECT_LE(changed().size(), each_turn);
  }
  EXPECT_EQ(turns, (max_opens + each_turn - 1) / each_turn);
  EXPECT_EQ(domain_.waiting_count(), 0U);
  EXPECT_FALSE(domain_.stop_some(member));
  EXPECT_FALSE(domain_.at(at_ms(1)).lose(member));
  EXPECT_FALSE(domain_.stop_some(member)) << "it has ended";
}

TEST_F(core_turns, close_after_a_restart_is_recorded_by_itself) {
  wait_for_names(member, max_opens);
  saved_state from = domain_.save();
  domain successor("default", 42, bounds, nullptr, from);
  successor.disconnect(member, true);
  EXPECT_FALSE(successor.pending().too_many_records);
}

/// More than one OpenMany has: of several with one id.
TEST_F(core_turns, cancellation_of_many_opens_takes_several_turns) {
  constexpr std::size_t each_turn = 1'024;
  wait_for_names(member, max_opens);
  for (std::size_t turn = 1; turn <= max_opens / each_turn; ++turn) {
    EXPECT_TRUE(domain_.cancel_some(member, 7));
    EXPECT_EQ(changed().size(), each_turn);
    EXPECT_EQ(domain_.waiting_count(), max_opens - turn * each_turn);
  }
  EXPECT_FALSE(domain_.cancel_some(member, 7));
  EXPECT_TRUE(changed().empty()) << "the rest ends in one turn";
  EXPECT_TRUE(domain_.cancel(member, 7));
  EXPECT_EQ(changed().size(), max_opens % each_turn);
  EXPECT_EQ(domain_.waiting_count(), 0U);
}

TEST_F(core_turns, cancellation_of_one_among_many_requests_takes_one_turn) {
  wait_for_names(member, max_opens - 1);
  domain_.open(member, {8, 0, "another", 0, at_ms(1'000'000)});
  static_cast<void>(changed());
  EXPECT_FALSE(domain_.cancel_some(member, 8));
  EXPECT_FALSE(domain_.cancel_some(member, 9));
  EXPECT_FALSE(domain_.cancel_some(member + 1, 8)) << "no such session";
  EXPECT_TRUE(domain_.cancel(member, 8));
  EXPECT_EQ(domain_.waiting_count(), max_opens - 1);
}

/// Opens that wait for an exporter, likewise.
TEST_F(core_turns, cancellation_of_many_questions_takes_several_turns) {
  constexpr std::size_t each_turn = 1'024;
  constexpr session_id waiter = 100;
  wait_for_exporter();
  EXPECT_TRUE(domain_.cancel_some(waiter, 7));
  EXPECT_EQ(changed().size(), each_turn);
  EXPECT_TRUE(domain_.cancel_some(waiter, 7));
  EXPECT_EQ(changed().size(), each_turn);
  EXPECT_FALSE(domain_.cancel_some(waiter, 7));
  EXPECT_TRUE(domain_.cancel(waiter, 7));
  EXPECT_EQ(changed().size(), max_opens / 2 - 2 * each_turn);
}

TEST_F(core_turns, end_of_many_subscribers_of_one_process_is_recorded_by_itself) {
  constexpr session_id first = 100;
  constexpr session_id count = limits{}.max_all_subscriptions / limits{}.max_subscriptions / 2 + 1;
  for (session_id each = first; each < first + count; ++each) {
    domain_.connect(each, {30, 1'000 + static_cast<std::uint32_t>(each), true});
    for (std::uint64_t i = 0; i < limits{}.max_subscriptions; ++i) {
      domain_.subscribe(each, i + 1, "");
    }
    static_cast<void>(changed());
  }
  for (session_id each = first; each < first + count; ++each) {
    domain_.mute(each);
  }
  EXPECT_EQ(changed().size(), count * limits{}.max_subscriptions);
}

TEST_F(core_turns, end_of_an_exporter_that_many_opens_wait_for_is_recorded_by_itself) {
  wait_for_exporter();
  domain_.disconnect(exporter, false);
  constexpr std::size_t each_turn = 256;
  EXPECT_LE(domain_.pending().replies.size(), each_turn);
  EXPECT_EQ(work_to_the_end(each_turn), 3 * max_opens / 2);
  EXPECT_EQ(domain_.segment_count(), 0U);
}

/// Of opens that wait for an exporter whose lease is ended without a fence.
TEST_F(core_turns, opens_of_an_unfenced_exporter_are_refused_in_turns) {
  constexpr std::size_t each_turn = 256;
  constexpr session_id operators = 4;
  wait_for_exporter();
  domain_.connect(operators, {40, 42, true});
  ASSERT_TRUE(domain_.lose(exporter));
  static_cast<void>(changed());
  domain_.unfence(operators, "shared");
  EXPECT_LE(domain_.pending().replies.size(), each_turn);
  EXPECT_LE(changed().size(), 2 * each_turn);
  EXPECT_EQ(domain_.segment_count(), 1U) << "until its opens are refused";
  // A successor goes on where this one is.
  saved_state from = domain_.save();
  domain successor("default", 42, bounds, nullptr, from);
  EXPECT_TRUE(successor.has_work());
  EXPECT_EQ(work_to_the_end(each_turn), 3 * max_opens / 2 - each_turn);
  while (successor.work()) {
    EXPECT_LE(successor.pending().replies.size(), each_turn);
    successor.pending().clear();
  }
  successor.pending().clear();
  EXPECT_TRUE(successor.save() == domain_.save());
  EXPECT_EQ(domain_.segment_count(), 0U);
}

/// Of a process that has ended with many connections, each with a lease of one segment.
TEST_F(core_turns, leases_of_many_sessions_are_unfenced_in_turns) {
  constexpr std::size_t each_turn = 256;
  constexpr session_id first = 100;
  constexpr session_id count = 600;
  constexpr session_id operators = 4;
  const gpushm::generation generation = domain_.reserve(exporter, host_segment("kv")).generation;
  domain_.attach(exporter, generation, 0, 1);
  domain_.publish(exporter, generation, {});
  for (session_id each = first; each < first + count; ++each) {
    domain_.connect(each, {30, 2'000, true});
    domain_.open(each, {1, 0, "kv", 0, std::nullopt});
    ASSERT_TRUE(domain_.lose(each));
    static_cast<void>(changed());
  }
  ASSERT_TRUE(domain_.lose(exporter));
  domain_.connect(operators, {40, 42, true});
  static_cast<void>(changed());
  for (std::size_t left = count; left > each_turn; left -= each_turn) {
    EXPECT_TRUE(domain_.unfence(operators, "kv"));
    EXPECT_LE(changed().size(), 4 * each_turn);
    EXPECT_EQ(domain_.ending_count(), left - each_turn + 1);
    EXPECT_TRUE(domain_.is_ending(exporter)) << "the segment's creator is the last";
  }
  EXPECT_FALSE(domain_.unfence(operators, "kv"));
  EXPECT_EQ(domain_.ending_count(), 0U);
  EXPECT_EQ(domain_.segment_count(), 0U);
}

/// Also those that hold nothing: its questions, and the names that it has not published.
TEST_F(core_turns, lists_of_an_ended_session_are_freed_in_turns) {
  constexpr std::uint32_t segments = 4'096;
  constexpr std::size_t ended_each_turn = 256;
  constexpr std::size_t freed_each_turn = 1'024;
  create_many(segments);
  domain_.disconnect(exporter, true);
  std::size_t turns = 1;
  for (; domain_.has_work() && turns < segments; ++turns) {
    static_cast<void>(changed());
    domain_.work();
  }
  EXPECT_EQ(domain_.segment_count(), 0U);
  EXPECT_EQ(turns, segments / ended_each_turn + segments / freed_each_turn - 1);
}

TEST_F(core_turns, questions_of_an_ended_exporter_are_freed_in_turns) {
  constexpr session_id operators = 4;
  constexpr std::size_t refused_each_turn = 256;
  constexpr std::size_t freed_each_turn = 1'024;
  constexpr std::size_t opens = std::size_t{max_opens} / 2 * 3;
  wait_for_exporter();
  domain_.connect(operators, {40, 42, true});
  ASSERT_TRUE(domain_.lose(exporter));
  static_cast<void>(changed());
  domain_.unfence(operators, "shared");
  static_cast<void>(changed());
  std::size_t turns = 0;
  for (; domain_.work() && turns < opens; ++turns) {
    static_cast<void>(changed());
  }
  static_cast<void>(changed());
  EXPECT_GE(turns, opens / freed_each_turn - 1);
  EXPECT_LE(turns, opens / refused_each_turn + 1);
  EXPECT_EQ(domain_.segment_count(), 0U);
}

/// As many as a Keep has, each with fewer answers than the broker has sent. What it has reported is
/// not recorded again with the next one.
TEST_F(core_turns, leases_that_a_session_keeps_are_recorded_once) {
  constexpr std::uint32_t each_request = 4'096;
  constexpr std::uint32_t segments = each_request + 100;
  constexpr session_id successor = 3;
  for (std::uint32_t i = 0; i < segments; ++i) {
    const std::string name = std::to_string(i);
    const gpushm::generation generation = domain_.reserve(exporter, host_segment(name)).generation;
    domain_.attach(exporter, generation, 0, 1);
    domain_.publish(exporter, generation, {});
    domain_.open(exporter, {1, 0, name, 0, std::nullopt});
    static_cast<void>(changed());
  }
  ASSERT_NO_FATAL_FAILURE(begin_to_resume(exporter, successor));
  static_cast<void>(changed());
  static_cast<void>(resume_the_rest(domain_, successor));
  std::vector<std::uint64_t> generations(each_request);
  std::iota(generations.begin(), generations.end(), 1);
  const std::vector<std::uint64_t> counts(each_request, 1);
  domain_.keep(successor, generations, counts, true);
  EXPECT_EQ(changed().size(), each_request);
  // A successor of the broker goes on where this one is.
  saved_state from = domain_.save();
  domain other("default", 42, bounds, nullptr, from);
  EXPECT_TRUE(other.save() == domain_.save());
  const std::vector<std::uint64_t> last{each_request + 1};
  const std::vector<std::uint64_t> once{1};
  domain_.keep(successor, last, once, false);
  EXPECT_LE(changed().size(), 3U) << "that one, the session, and what it does not keep";
  other.keep(successor, last, once, false);
  other.pending().clear();
  EXPECT_TRUE(other.save() == domain_.save());
  static_cast<void>(work_to_the_end());
  EXPECT_EQ(domain_.segment_count(), each_request + 1);
  // The next one reports all of it again.
  ASSERT_NO_FATAL_FAILURE(begin_to_resume(successor, successor + 1));
  static_cast<void>(changed());
  static_cast<void>(resume_the_rest(domain_, successor + 1));
  domain_.keep(successor + 1, once, once, false);
  static_cast<void>(work_to_the_end());
  EXPECT_EQ(domain_.segment_count(), 1U);
}

/// The leases that it has not kept, and those that end with it.
TEST_F(core_turns, session_that_ends_before_what_it_does_not_keep_shares_its_turns) {
  constexpr std::uint32_t segments = 1'500;
  constexpr std::size_t each_turn = 256;
  constexpr session_id successor = 3;
  create_many(segments);
  ASSERT_NO_FATAL_FAILURE(begin_to_resume(exporter, successor));
  static_cast<void>(changed());
  static_cast<void>(resume_the_rest(domain_, successor));
  domain_.keep(successor, {}, {}, false);
  static_cast<void>(changed());
  domain_.disconnect(successor, true);
  static_cast<void>(changed());
  std::size_t left = domain_.segment_count();
  EXPECT_EQ(left, segments - each_turn);
  for (std::uint32_t turns = 0; domain_.work() && turns < segments; ++turns) {
    EXPECT_LE(left - domain_.segment_count(), each_turn);
    left = domain_.segment_count();
    static_cast<void>(changed());
  }
  EXPECT_EQ(domain_.segment_count(), 0U);
}

/// An earlier version of the broker has recorded in the session what it had reported.
TEST_F(core_turns, leases_reported_to_an_earlier_version_are_kept) {
  constexpr session_id successor = 3;
  create_many(3);
  ASSERT_TRUE(domain_.lose(exporter));
  domain_.connect(successor, {11, 1'000, true});
  ASSERT_TRUE(domain_.resume(exporter, successor));
  static_cast<void>(changed());
  saved_state from = domain_.save();
  std::get<saved_session>(from.records.at({record_kind::session, successor})).kept = {{3, 1}};
  domain other("default", 42, bounds, nullptr, from);
  other.keep(successor, {}, {}, false);
  while (other.work()) {
  }
  EXPECT_EQ(other.segment_count(), 2U);
  EXPECT_EQ(other.find_segment(2), nullptr);
}

/// The end of the lost session's process changes nothing, and a successor goes on.
TEST_F(core_turns, leases_are_resumed_in_turns) {
  constexpr std::uint32_t segments = 1'000;
  constexpr session_id successor = 3;
  create_many(segments);
  ASSERT_TRUE(domain_.lose(exporter));
  domain_.connect(successor, {11, 1'000, true});
  domain_.connect(successor + 1, {11, 1'000, true});
  static_cast<void>(changed());
  ASSERT_TRUE(domain_.resume(exporter, successor));
  EXPECT_LE(changed().size(), resumed_each_turn);
  EXPECT_TRUE(domain_.is_resuming(successor));
  EXPECT_FALSE(domain_.resume(exporter, successor + 1)) << "it is being resumed";
  domain_.disconnect(exporter, false);
  EXPECT_TRUE(changed().empty());
  saved_state from = domain_.save();
  domain other("default", 42, bounds, nullptr, from);
  EXPECT_TRUE(other.save() == domain_.save());
  EXPECT_TRUE(other.is_resuming(successor));
  for (domain* const each : {&domain_, &other}) {
    EXPECT_EQ(resume_the_rest(*each, successor), 3U);
    EXPECT_FALSE(each->is_resuming(successor));
    EXPECT_EQ(each->ending_count(), 0U);
    EXPECT_EQ(each->lease_count(), segments);
    EXPECT_EQ(each->held(successor, 1).creator_session, successor);
    EXPECT_EQ(each->held(successor, segments).creator_session, successor);
  }
  EXPECT_TRUE(other.save() == domain_.save());
}

/// It has everything first.
TEST_F(core_turns, session_that_ends_while_it_resumes_another_ends_in_turns) {
  constexpr std::uint32_t segments = 1'000;
  constexpr session_id successor = 3;
  create_many(segments);
  ASSERT_NO_FATAL_FAILURE(begin_to_resume(exporter, successor));
  static_cast<void>(changed());
  while (domain_.stop_some(successor)) {
    EXPECT_LE(changed().size(), resumed_each_turn);
  }
  static_cast<void>(changed());
  EXPECT_FALSE(domain_.is_resuming(successor));
  EXPECT_TRUE(domain_.lose(successor));
  static_cast<void>(changed());
  EXPECT_FALSE(domain_.is_ending(exporter));
  EXPECT_EQ(domain_.segment_count(), segments);
  domain_.disconnect(successor, false);
  static_cast<void>(work_to_the_end());
  EXPECT_EQ(domain_.segment_count(), 0U);
}

/// Without turns before it, as when memory is short.
TEST_F(core_turns, session_that_ends_at_once_has_what_it_resumes) {
  constexpr std::uint32_t segments = 600;
  constexpr session_id successor = 3;
  create_many(segments);
  ASSERT_NO_FATAL_FAILURE(begin_to_resume(exporter, successor));
  domain_.disconnect(successor, true);
  static_cast<void>(work_to_the_end());
  EXPECT_EQ(domain_.segment_count(), 0U);
  EXPECT_EQ(domain_.ending_count(), 0U);
}

/// Many leases, which another session resumes, does not keep, and leaves behind.
TEST_F(core_turns, thousands_of_leases_end_in_turns) {
  constexpr std::uint32_t segments = 8'000;  // a full domain takes a minute with a sanitizer
  constexpr std::size_t changes_per_turn = 4'096;
  constexpr session_id successor = 3;
  create_many(segments);
  ASSERT_TRUE(domain_.at(at_ms(1)).lose(exporter));
  domain_.connect(successor, {11, 1'000, true});
  static_cast<void>(changed());
  ASSERT_TRUE(domain_.resume(exporter, successor));
  EXPECT_LE(changed().size(), resumed_each_turn);
  EXPECT_EQ(resume_the_rest(domain_, successor), segments / 256);
  domain_.keep(successor, std::vector<std::uint64_t>{1}, std::vector<std::uint64_t>{1}, false);
  static_cast<void>(changed());
  // A few turns of what it did not keep.
  constexpr int turns = 3;
  for (int i = 0; i < turns; ++i) {
    ASSERT_TRUE(domain_.work());
    const auto changes = changed();
    EXPECT_LE(changes.size(), changes_per_turn);
    for (const auto& [which, value] : changes) {
      if (const auto* const left = std::get_if<saved_unkept>(&value)) {
        EXPECT_LE(left->left.size(), 256U);
      }
    }
  }
  EXPECT_TRUE(restored_and_saved() == domain_.save());
  domain_.disconnect(successor, true);
  EXPECT_EQ(changed().count({record_kind::end, successor}), 1U);
  for (int i = 0; i < turns; ++i) {
    ASSERT_TRUE(domain_.work());
    const auto changes = changed();
    EXPECT_LE(changes.size(), changes_per_turn);
    EXPECT_EQ(changes.count({record_kind::end, successor}), 0U);  // the same until its last lease
  }
  EXPECT_TRUE(restored_and_saved() == domain_.save());
  bool ended = false;
  while (domain_.work() && !HasFailure()) {
    ended = ended || changed().count({record_kind::end, successor}) != 0;
  }
  ended = ended || changed().count({record_kind::end, successor}) != 0;
  EXPECT_TRUE(ended);
  EXPECT_EQ(domain_.segment_count(), 0U);
  EXPECT_EQ(domain_.lease_count(), 0U);
}

}  // namespace
}  // namespace gpushm::core
