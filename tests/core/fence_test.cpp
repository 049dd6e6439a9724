// SPDX-License-Identifier: Apache-2.0
// Sessions that end without a goodbye, until their fence is reached.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;

class core_fence : public testing::Test {
 protected:
  static constexpr std::uint32_t owner = 42;

  core_fence() {
    for (session_id session = 1; session <= 5; ++session) {
      domain_.connect(session, {100 + static_cast<std::int32_t>(session), 1000, true});
    }
    domain_.connect(6, {106, owner, true});
    domain_.subscribe(5, 99, "");
    idle_descriptors_ = domain_.descriptors();
  }

  gpushm::generation make(session_id session,
                          const std::string& name,
                          lifetime kept = lifetime::leased) {
    const auto generation = domain_.reserve(session, host_segment(name, 4096, kept)).generation;
    domain_.attach(session, generation, 0, 1);
    domain_.publish(session, generation, {});
    return generation;
  }
  /// Exporter-bound memory.
  gpushm::generation share(session_id session, const std::string& name) {
    reservation wanted = host_segment(name);
    wanted.backend = backend::cuda_ipc;
    wanted.device = {device_kind::gpu, "GPU-0", "0000:00:00.0", 0};
    wanted.chunk_count = 0;
    wanted.ticket.resize(8);
    const auto generation = domain_.reserve(session, wanted).generation;
    domain_.publish(session, generation, {});
    return generation;
  }
  void open(session_id session,
            const std::string& name,
            std::optional<time_point> deadline = std::nullopt) {
    domain_.open(session, {++request_, 0, name, 0, deadline});
  }
  [[nodiscard]] std::vector<event_kind> events() {
    std::vector<event_kind> kinds;
    for (const notice& each : std::exchange(seen_.notices(), {})) {
      kinds.push_back(each.kind);
    }
    return kinds;
  }
  void work() {
    seen_.settle();
    while (domain_.work()) {
      seen_.settle();
    }
  }
  void expect_nothing_left() {
    for (session_id session = 1; session <= 9; ++session) {
      domain_.disconnect(session, true);
    }
    work();
    EXPECT_EQ(domain_.segment_count(), 0U);
    EXPECT_EQ(domain_.session_count(), 0U);
    EXPECT_EQ(domain_.ending_count(), 0U);
    EXPECT_EQ(domain_.waiting_count(), 0U);
    EXPECT_EQ(domain_.allocated_bytes(), 0U);
    EXPECT_EQ(domain_.descriptors(), 0U);
    EXPECT_EQ(domain_.budget().used(resource::memory_bytes), 0U);
    EXPECT_TRUE(seen_.slots().empty());
  }

  domain domain_{"default", owner, naming_limits};
  recorder seen_{domain_};
  std::uint64_t idle_descriptors_ = 0;
  std::uint64_t request_ = 0;
};

using kind = std::vector<event_kind>;

TEST_F(core_fence, memory_name_quota_and_events_wait_for_the_fence) {
  make(1, "kv");
  EXPECT_EQ(events(), kind{event_kind::published});
  EXPECT_TRUE(domain_.at(at_ms(10)).lose(1));
  EXPECT_TRUE(domain_.is_ending(1));
  EXPECT_EQ(events(), kind{});
  EXPECT_EQ(domain_.segment_count(), 1U);
  EXPECT_EQ(domain_.allocated_bytes(), 4096U);
  EXPECT_EQ(domain_.session_count(), 5U);
  EXPECT_EQ(domain_.ending_count(), 1U);
  EXPECT_EQ(domain_.descriptors(), idle_descriptors_ - 2 + 1);  // minus its sockets, plus a chunk
  const auto ending = domain_.ending_of(domain_.stat(2, "kv"));
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->count, 1U);
  EXPECT_EQ(ending->pid, 101);
  EXPECT_EQ(ending->since, at_ms(10));
  EXPECT_EQ(ending->waits_for, fence_wait::process);
  domain_.set_fence_wait(1, fence_wait::descendant);
  EXPECT_EQ(domain_.ending_of(domain_.stat(2, "kv"))->waits_for, fence_wait::descendant);

  domain_.disconnect(1, false);
  EXPECT_EQ(events(), (kind{event_kind::peer_died, event_kind::removed}));
  EXPECT_EQ(domain_.segment_count(), 0U);
  EXPECT_EQ(domain_.allocated_bytes(), 0U);
  EXPECT_EQ(seen_.freed_generations().size(), 1U);
  expect_nothing_left();
}

TEST_F(core_fence, session_without_leases_ends_immediately) {
  EXPECT_FALSE(domain_.at(at_ms(0)).lose(2));
  EXPECT_FALSE(domain_.is_ending(2));
  EXPECT_EQ(domain_.session_count(), 5U);
  EXPECT_FALSE(domain_.at(at_ms(0)).lose(2));   // second call
  EXPECT_FALSE(domain_.at(at_ms(0)).lose(77));  // unknown session
  expect_nothing_left();
}

TEST_F(core_fence, lost_session_gets_no_events_or_replies) {
  make(1, "kv");
  open(1, "later", at_ms(1'000));
  domain_.subscribe(1, 7, "");
  EXPECT_TRUE(domain_.at(at_ms(0)).lose(1));
  EXPECT_EQ(domain_.waiting_count(), 0U);
  seen_.notices().clear();
  make(2, "later");
  EXPECT_TRUE(std::all_of(seen_.notices().begin(), seen_.notices().end(), [](const notice& each) {
    return each.session == 5;
  }));
  EXPECT_TRUE(seen_.replies().empty());
  expect_nothing_left();
}

TEST_F(core_fence, open_of_memory_of_a_lost_session_waits_or_fails) {
  const auto generation = make(1, "kv", lifetime::persistent);
  domain_.at(at_ms(0)).lose(1);
  open(2, "kv");
  ASSERT_EQ(seen_.replies().size(), 1U);
  EXPECT_EQ(seen_.replies()[0].code, errc::writer_ending);
  EXPECT_EQ(
      seen_.replies()[0].text,
      "process 101, the last to hold it, disconnected without a goodbye and may still write to it "
      "(open it with a timeout: the wait ends tens of milliseconds after the process has exited; "
      "`gpushm stat` shows what it waits for, `gpushm release --unfenced` ends the wait)");
  open(2, "kv", at_ms(100));
  open(3, "kv", at_ms(2'000));
  EXPECT_EQ(seen_.replies().size(), 1U);
  domain_.at(at_ms(100)).tick();
  ASSERT_EQ(seen_.replies().size(), 2U);
  EXPECT_EQ(seen_.replies()[1].code, errc::writer_ending);
  domain_.disconnect(1, false);
  work();
  ASSERT_EQ(seen_.replies().size(), 3U);
  EXPECT_EQ(seen_.replies()[2].session, 3U);
  EXPECT_EQ(seen_.replies()[2].generation, generation);
  domain_.remove(6, "kv");
  expect_nothing_left();
}

TEST_F(core_fence, waiting_open_gets_the_next_segment_of_the_name) {
  make(1, "kv");
  domain_.at(at_ms(0)).lose(1);
  open(2, "kv", at_ms(1'000));
  domain_.disconnect(1, false);
  work();
  EXPECT_TRUE(seen_.replies().empty());
  const auto next = make(3, "kv");
  work();
  ASSERT_EQ(seen_.replies().size(), 1U);
  EXPECT_EQ(seen_.replies()[0].generation, next);
  expect_nothing_left();
}

TEST_F(core_fence, open_does_not_wait_if_another_session_has_a_lease) {
  const auto generation = make(1, "kv");
  open(2, "kv");
  domain_.at(at_ms(0)).lose(1);
  open(3, "kv");
  ASSERT_EQ(seen_.replies().size(), 2U);
  EXPECT_EQ(seen_.replies()[1].generation, generation);
  expect_nothing_left();
}

TEST_F(core_fence, names_become_free_at_the_fence) {
  make(1, "leased");
  domain_.reserve(1, host_segment("reserved"));
  make(1, "persistent", lifetime::persistent);
  domain_.at(at_ms(0)).lose(1);
  for (const char* name : {"leased", "reserved"}) {
    errc code{};
    error_of([&] { domain_.reserve(2, host_segment(name)); }, &code);
    EXPECT_EQ(code, errc::writer_ending) << name;
  }
  errc code{};
  error_of([&] { domain_.reserve(2, host_segment("persistent")); }, &code);
  EXPECT_EQ(code, errc::already_exists);
  domain_.disconnect(1, false);
  work();
  make(2, "leased");
  make(2, "reserved");
  domain_.remove(6, "persistent");
  expect_nothing_left();
}

TEST_F(core_fence, removal_frees_the_name_immediately) {
  make(1, "kv");
  domain_.at(at_ms(0)).lose(1);
  domain_.remove(2, "kv");  // of the same uid
  EXPECT_EQ(domain_.segment_count(), 1U);
  EXPECT_TRUE(seen_.freed_generations().empty());
  make(3, "kv");
  domain_.disconnect(1, false);
  EXPECT_EQ(seen_.freed_generations().size(), 1U);
  expect_nothing_left();
}

TEST_F(core_fence, released_event_waits_for_the_fence_of_the_last_consumer) {
  make(1, "kv");
  open(2, "kv");
  static_cast<void>(events());
  domain_.at(at_ms(0)).lose(2);
  EXPECT_EQ(events(), kind{});
  domain_.disconnect(2, false);
  EXPECT_EQ(events(), (kind{event_kind::peer_died, event_kind::released}));
  expect_nothing_left();
}

TEST_F(core_fence, open_of_exporter_bound_memory_fails_at_the_fence) {
  share(1, "kv");
  open(2, "kv");  // question not answered
  ASSERT_EQ(seen_.questions().size(), 1U);
  domain_.at(at_ms(0)).lose(1);
  open(3, "kv", at_ms(5'000));  // no exporter is left to confirm
  EXPECT_EQ(seen_.questions().size(), 1U);
  EXPECT_TRUE(seen_.replies().empty());
  domain_.disconnect(1, false);
  work();
  ASSERT_EQ(seen_.replies().size(), 1U);
  EXPECT_EQ(seen_.replies()[0].session, 2U);
  EXPECT_EQ(seen_.replies()[0].code, errc::peer_died);
  domain_.at(at_ms(5'000)).tick();
  ASSERT_EQ(seen_.replies().size(), 2U);
  EXPECT_EQ(seen_.replies()[1].code, errc::peer_died);
  expect_nothing_left();
}

// ---- unfence ----

TEST_F(core_fence, unfence_ends_leases_and_reports_it) {
  make(1, "kv", lifetime::persistent);
  const auto other = make(1, "other");
  domain_.at(at_ms(0)).lose(1);
  static_cast<void>(events());
  open(2, "kv", at_ms(1'000));
  domain_.unfence(6, "kv");
  work();
  EXPECT_EQ(events(), (kind{event_kind::unfenced, event_kind::opened}));
  ASSERT_EQ(seen_.replies().size(), 1U);
  EXPECT_NE(seen_.replies()[0].generation, 0U);
  EXPECT_TRUE(domain_.is_ending(1));  // for the other one
  EXPECT_TRUE(domain_.ending_of(domain_.stat(2, "other")));
  EXPECT_FALSE(domain_.ending_of(domain_.stat(2, "kv")));
  domain_.unfence(6, "other");
  EXPECT_FALSE(domain_.is_ending(1));
  EXPECT_EQ(events(), (kind{event_kind::unfenced, event_kind::removed}));
  EXPECT_EQ(seen_.freed_generations(), std::vector<gpushm::generation>{other});
  domain_.disconnect(1, false);  // the fence is reached later
  EXPECT_EQ(events(), kind{});
  domain_.remove(6, "kv");
  expect_nothing_left();
}

TEST_F(core_fence, unfence_is_refused_without_waiting_leases_or_permission) {
  make(1, "kv");
  errc code{};
  error_of([&] { domain_.unfence(6, "kv"); }, &code);
  EXPECT_EQ(code, errc::invalid_argument);
  error_of([&] { domain_.unfence(6, "none"); }, &code);
  EXPECT_EQ(code, errc::no_such_segment);
  domain_.at(at_ms(0)).lose(1);
  domain_.connect(7, {107, 2000, true});
  error_of([&] { domain_.unfence(7, "kv"); }, &code);
  EXPECT_EQ(code, errc::permission_denied);
  EXPECT_TRUE(domain_.is_ending(1));
  expect_nothing_left();
}

/// Others may still write: only the operator ends their leases.
TEST_F(core_fence, unfence_ends_leases_of_the_own_principal_only) {
  const auto in = [](std::int32_t pid, const char* pod) { return peer{pid, 0, true, {pod, true}}; };
  for (const session_id mine : {11U, 12U, 13U}) {
    domain_.connect(mine, in(200 + static_cast<std::int32_t>(mine), "pod a"));
  }
  domain_.connect(21, in(221, "pod b"));
  domain_.connect(22, in(222, "pod b"));
  const auto kv = make(11, "kv", lifetime::persistent);
  open(12, "kv");
  open(21, "kv");
  seen_.settle();
  for (const session_id each : {11U, 12U, 21U}) {
    EXPECT_TRUE(domain_.at(at_ms(0)).lose(each));
  }
  errc code{};
  static_cast<void>(error_of([&] { domain_.unfence(22, "kv"); }, &code));
  EXPECT_EQ(code, errc::permission_denied) << "its own lease, but a segment of others";
  EXPECT_EQ(domain_.ending_of(domain_.segment_of(kv))->count, 3U);
  domain_.unfence(13, "kv");
  seen_.settle();
  EXPECT_EQ(domain_.ending_of(domain_.segment_of(kv))->count, 1U);
  EXPECT_TRUE(domain_.is_ending(21));
  static_cast<void>(error_of([&] { domain_.unfence(13, "kv"); }, &code));
  EXPECT_EQ(code, errc::permission_denied);
  EXPECT_TRUE(domain_.is_ending(21));
  domain_.unfence(6, "kv");
  EXPECT_FALSE(domain_.is_ending(21));
  seen_.settle();
  domain_.remove(13, "kv");
  for (const session_id each : {11U, 12U, 13U, 21U, 22U}) {
    domain_.disconnect(each, true);
  }
  work();
  expect_nothing_left();
}

// ---- resume ----

TEST_F(core_fence, resumed_session_keeps_what_it_reports) {
  const auto kept = make(1, "kept");
  make(1, "dropped");
  const auto others = make(2, "others");
  open(1, "others");
  open(1, "others");
  domain_.at(at_ms(0)).lose(1);
  static_cast<void>(events());
  domain_.connect(7, {101, 1000, true});
  EXPECT_TRUE(domain_.resume(1, 7));
  seen_.settle();
  EXPECT_FALSE(domain_.is_ending(1));
  EXPECT_EQ(domain_.ending_count(), 0U);
  domain_.keep(7, std::vector<std::uint64_t>{kept}, std::vector<std::uint64_t>{1}, true);
  seen_.settle();
  domain_.keep(7, std::vector<std::uint64_t>{others}, std::vector<std::uint64_t>{1}, false);
  work();
  EXPECT_EQ(events(), kind{event_kind::removed});  // the lease not kept
  EXPECT_EQ(domain_.segment_count(), 2U);
  EXPECT_EQ(domain_.held(7, kept).creator_session, 7U);
  domain_.release(7, others, 1);  // its only reply
  EXPECT_EQ(events(), kind{event_kind::released});
  domain_.remove(7, "kept");  // it is its creator
  domain_.disconnect(7, true);
  work();
  EXPECT_EQ(domain_.segment_count(), 1U);
  expect_nothing_left();
}

TEST_F(core_fence, open_after_keep_survives_the_release_of_unkept_leases) {
  const auto others = make(2, "others");
  open(1, "others");
  domain_.at(at_ms(0)).lose(1);
  domain_.connect(7, {101, 1000, true});
  EXPECT_TRUE(domain_.resume(1, 7));
  domain_.keep(7, {}, {}, false);
  open(7, "others");  // before the work is done
  work();
  EXPECT_EQ(domain_.held(7, others).generation, others);
  domain_.release(7, others, 1);
  EXPECT_THROW(static_cast<void>(domain_.held(7, others)), error);
  expect_nothing_left();
}

TEST_F(core_fence, resume_needs_the_same_principal_and_works_once) {
  make(1, "kv");
  domain_.at(at_ms(0)).lose(1);
  domain_.connect(7, {107, 2000, true});
  EXPECT_FALSE(domain_.resume(1, 7));
  EXPECT_FALSE(domain_.resume(2, 7));  // not ending
  EXPECT_FALSE(domain_.resume(77, 7));
  domain_.connect(8, {101, 1000, true});
  EXPECT_TRUE(domain_.resume(1, 8));
  domain_.connect(9, {101, 1000, true});
  EXPECT_FALSE(domain_.resume(1, 9));
  errc code{};
  error_of([&] { domain_.keep(9, {}, {}, false); }, &code);
  EXPECT_EQ(code, errc::invalid_argument);
  domain_.disconnect(1, false);  // the fence of the old connection
  EXPECT_EQ(domain_.segment_count(), 1U);
  expect_nothing_left();
}

TEST_F(core_fence, resumed_exporter_gets_questions_again) {
  const auto generation = share(1, "kv");
  open(2, "kv");
  domain_.at(at_ms(0)).lose(1);
  domain_.connect(7, {101, 1000, true});
  EXPECT_TRUE(domain_.resume(1, 7));
  EXPECT_EQ(seen_.questions().size(), 1U);
  domain_.keep(7, std::vector<std::uint64_t>{generation}, std::vector<std::uint64_t>{1}, false);
  ASSERT_EQ(seen_.questions().size(), 2U);
  EXPECT_EQ(seen_.questions()[1].exporter, 7U);
  domain_.confirmed(7, seen_.questions()[1].confirmation, verdict::unchanged);
  ASSERT_EQ(seen_.replies().size(), 1U);
  EXPECT_EQ(seen_.replies()[0].generation, generation);
  expect_nothing_left();
}

}  // namespace
}  // namespace gpushm::core
