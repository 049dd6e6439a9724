// SPDX-License-Identifier: Apache-2.0
// Unit tests of core::domain: permissions, limits, leases and events.
#include <gtest/gtest.h>

#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;

constexpr std::uint32_t broker_uid = 42;
const peer alice{101, 1000, true};
const peer alice_too{102, 1000, true};
const peer bob{201, 2000, true};
const peer operator_{301, broker_uid, true};
const peer unknown_uid{0, 65534, false};
const peer unknown_uid_too{0, 65534, false};

class domain_test : public testing::Test {
 protected:
  explicit domain_test(const limits& bounds = naming_limits)
      : domain_("default", broker_uid, bounds) {
    domain_.connect(1, alice);
    domain_.connect(2, bob);
    domain_.connect(3, alice_too);
    domain_.connect(4, operator_);
    domain_.connect(5, unknown_uid);
    domain_.connect(6, unknown_uid_too);
  }

  gpushm::generation reserve(session_id session, const reservation& expected) {
    return domain_.reserve(session, expected).generation;
  }
  gpushm::generation make(session_id session,
                          const std::string& name,
                          lifetime kept = lifetime::leased) {
    const auto generation = reserve(session, host_segment(name, 4096, kept));
    domain_.attach(session, generation, 0, 1);
    domain_.publish(session, generation, {});
    return generation;
  }
  void open(session_id session,
            const std::string& name,
            std::optional<time_point> deadline = std::nullopt,
            std::uint64_t expected = 0) {
    domain_.open(session, {++request_, 0, name, expected, deadline});
  }
  [[nodiscard]] const reply& last() const { return seen_.replies().back(); }
  [[nodiscard]] bool holds(session_id session, gpushm::generation generation) const {
    try {
      static_cast<void>(domain_.held(session, generation));
      return true;
    } catch (const error&) {
      return false;
    }
  }
  void expect_nothing_left() {
    for (session_id session = 1; session <= 6; ++session) {
      domain_.disconnect(session, true);
    }
    EXPECT_EQ(domain_.segment_count(), 0U);
    EXPECT_EQ(domain_.session_count(), 0U);
    EXPECT_EQ(domain_.waiting_count(), 0U);
    EXPECT_EQ(domain_.allocated_bytes(), 0U);
    EXPECT_EQ(domain_.descriptors(), 0U);
    EXPECT_TRUE(seen_.slots().empty());
  }

  domain domain_;
  recorder seen_{domain_};
  std::uint64_t request_ = 0;
};

using domain_reserve = domain_test;
using domain_publish = domain_test;
using domain_open = domain_test;
using domain_release = domain_test;
using domain_remove = domain_test;
using domain_subscribe = domain_test;

// ---- reserve ----

TEST_F(domain_reserve, invalid_reservation_is_refused_without_effect) {
  struct {
    const char* what;
    void (*spoil)(reservation&);
    const char* text;
  } const cases[] = {
      {"name",
       [](reservation& r) { r.name.clear(); },
       "the segment's name is empty (a name is 1 to 255 bytes of UTF-8 without \"@\", control "
       "or invisible characters)"},
      {"size",
       [](reservation& r) { r.size_bytes = 0; },
       "the size is 0 bytes (give a size of at least 1 byte)"},
      {"allocated",
       [](reservation& r) { r.allocated_bytes = r.size_bytes - 1; },
       "the allocation is smaller than the segment (report this as a bug)"},
      {"chunks",
       [](reservation& r) { r.chunk_count = 0; },
       "the segment has no chunks (report this as a bug)"},
      {"backend",
       [](reservation& r) { r.backend = backend::cuda_vmm; },
       "backend and device do not match (report this as a bug)"},
      {"device",
       [](reservation& r) { r.device.kind = device_kind::gpu; },
       "backend and device do not match (report this as a bug)"},
      {"uuid",
       [](reservation& r) { r.device.uuid.assign(129, 'u'); },
       "the device's description is too long (report this as a bug)"},
      {"address",
       [](reservation& r) { r.device.pci_address.assign(129, 'p'); },
       "the device's description is too long (report this as a bug)"},
  };
  for (const auto& each : cases) {
    reservation wanted = host_segment("kv");
    each.spoil(wanted);
    errc code{};
    EXPECT_EQ(error_of([&] { domain_.reserve(1, wanted); }, &code), each.text) << each.what;
    EXPECT_EQ(code, errc::invalid_argument);
  }
  EXPECT_EQ(domain_.segment_count(), 0U);
  EXPECT_EQ(domain_.allocated_bytes(), 0U);
  EXPECT_TRUE(seen_.slots().empty());
}

TEST_F(domain_reserve, name_in_use_is_refused_with_its_use) {
  make(1, "kv");
  reserve(1, host_segment("w"));
  errc code{};
  EXPECT_EQ(error_of([&] { reserve(2, host_segment("kv")); }, &code),
            "a segment of this name exists in domain default (open it, remove it first, or choose "
            "another name)");
  EXPECT_EQ(code, errc::already_exists);
  EXPECT_EQ(
      error_of([&] { reserve(2, host_segment("w")); }),
      "a segment of this name is being created by pid 101 (open it, remove it first, or choose "
      "another name)");
  expect_nothing_left();
}

TEST_F(domain_reserve, unknown_session_is_refused) {
  EXPECT_EQ(error_of([&] { reserve(99, host_segment("kv")); }),
            "the session has sent no Hello (send Hello first)");
}

TEST_F(domain_reserve, generations_are_unique_and_slots_are_reused) {
  const auto first = make(1, "kv");
  const auto slot = domain_.stat(1, "kv").slot;
  domain_.release(1, first, 1);
  const auto second = make(1, "kv");
  EXPECT_GT(second, first);
  EXPECT_EQ(domain_.stat(1, "kv").slot, slot);
}

class domain_after_a_loss : public domain_test {
 protected:
  domain_after_a_loss() : domain_test({.names_changes = true, .first_generation = 100}) {}

  gpushm::generation hand_back(session_id session,
                               const std::string& name,
                               gpushm::generation generation,
                               std::uint32_t creator_uid) {
    const auto& back = domain_.reserve(session,
                                       host_segment(name, 4096, lifetime::persistent),
                                       lost_segment{generation, creator_uid});
    EXPECT_EQ(back.creator.uid, creator_uid);
    domain_.attach(session, back.generation, 0, 1);
    domain_.publish(session, back.generation, {});
    return back.generation;
  }
};

TEST_F(domain_after_a_loss, segments_keep_their_generation_and_new_ones_have_later_ones) {
  EXPECT_EQ(hand_back(1, "w", 7, alice.uid), 7U);
  EXPECT_EQ(make(2, "v"), 100U);
  EXPECT_EQ(hand_back(1, "u", 9, alice.uid), 9U);
  EXPECT_EQ(make(2, "t"), 101U);
  errc code{};
  static_cast<void>(error_of([&] { hand_back(2, "v", 8, bob.uid); }, &code));
  EXPECT_EQ(code, errc::already_exists) << "its name is in use";
  open(2, "w");
  EXPECT_EQ(last().generation, 7U);
}

/// By another uid: its creator and the broker may remove it, and so may the connection, as long as
/// it lasts.
TEST_F(domain_after_a_loss, the_creator_of_a_segment_stays) {
  const auto by_bob = hand_back(2, "w", 7, alice.uid);
  EXPECT_THROW(domain_.remove(5, "w"), error);
  domain_.disconnect(2, true);
  EXPECT_EQ(domain_.stat(1, "w").generation, by_bob) << "it is persistent";
  EXPECT_EQ(domain_.stat(1, "w").creator.uid, alice.uid);
  domain_.connect(2, bob);
  EXPECT_THROW(domain_.remove(2, "w"), error);
  domain_.remove(3, "w");
  expect_nothing_left();
}

/// Also of who manages it.
TEST_F(domain_after_a_loss, the_payer_of_a_segment_stays_and_is_the_same_after_a_restart) {
  const principal pod{"pod a", true};
  domain_.connect(11, {401, alice.uid, true, pod});
  domain_.connect(12, {402, alice.uid, true, {"pod b", true}});
  const auto wanted = [](const std::string& name) {
    return host_segment(name, 4096, lifetime::persistent);
  };
  // By another process, once without and once with the principal of the creator.
  domain_.reserve(2, wanted("w"), lost_segment{7, alice.uid, false, {}});
  domain_.reserve(12, wanted("v"), lost_segment{8, alice.uid, false, pod});
  domain_.reserve(11, wanted("u"), lost_segment{9, alice.uid, true, {}});
  for (const gpushm::generation each : {7U, 8U, 9U}) {
    const session_id by = domain_.segment_of(each).creator_session;
    domain_.attach(by, each, 0, 1);
    domain_.publish(by, each, {});
  }
  EXPECT_EQ(domain_.segment_of(8).creator.principal, pod);
  EXPECT_EQ(domain_.segment_of(8).creator.pid, 0) << "it is another process";
  seen_.settle();
  saved_state saved = domain_.save();
  domain successor("default", broker_uid, domain_.bounds(), nullptr, saved);
  for (const gpushm::generation each : {7U, 8U, 9U}) {
    const auto& before = domain_.segment_of(each);
    const auto& after = successor.segment_of(each);
    EXPECT_EQ(after.held->who()->name(), before.held->who()->name());
    EXPECT_EQ(before.held->who()->name(), each == 7 ? "uid 1000" : "pod a");
  }
  domain_.disconnect(12, true);
  domain_.disconnect(11, true);
  domain_.connect(11, {401, alice.uid, true, pod});
  domain_.connect(12, {402, alice.uid, true, {"pod b", true}});
  EXPECT_THROW(domain_.remove(12, "v"), error);
  for (const char* name : {"v", "u"}) {
    domain_.remove(11, name);
  }
  domain_.remove(1, "w");
  domain_.disconnect(11, true);
  domain_.disconnect(12, true);
  expect_nothing_left();
}

TEST_F(domain_after_a_loss, what_is_not_handed_back_completely_ends_with_its_connection) {
  domain_.reserve(2, host_segment("w", 4096, lifetime::persistent), lost_segment{7, alice.uid});
  domain_.disconnect(2, false);
  domain_.connect(2, bob);
  EXPECT_EQ(hand_back(1, "w", 7, alice.uid), 7U);
  domain_.remove(1, "w");
  domain_.release(1, 7, 1);
  expect_nothing_left();
}

/// A number of one that has ended may still be in use: in what it has left, or in a packet.
TEST(domain_numbers, of_sessions_do_not_come_again_after_a_restart) {
  const auto next_of = [](const domain& domain) {
    return std::get<saved_numbers>(domain.saved({record_kind::numbers})).next_session;
  };
  domain first("default", broker_uid, {});
  EXPECT_EQ(next_of(first), 1U);
  first.connect(1, alice);
  first.connect(7, alice);
  first.disconnect(7, true);
  first.pending().clear();
  EXPECT_EQ(next_of(first), 8U);
  saved_state saved = first.save();
  domain second("default", broker_uid, {}, nullptr, saved);
  EXPECT_EQ(next_of(second), 8U);
  second.connect(8, alice);
  second.disconnect(8, true);
  EXPECT_EQ(next_of(second), 9U);
}

class domain_with_few_segments : public domain_test {
 protected:
  domain_with_few_segments() : domain_test({.max_segments = 2, .names_changes = true}) {}
};

TEST_F(domain_with_few_segments, reserve_beyond_the_limit_is_refused) {
  const auto first = make(1, "a");
  make(1, "b");
  errc code{};
  EXPECT_EQ(error_of([&] { reserve(2, host_segment("c")); }, &code),
            "no room for 1 more segments: 2 of 2 are in use in this domain (remove segments that "
            "are not used, or "
            "serve with a larger --max-segments)");
  EXPECT_EQ(code, errc::too_many_segments);
  // Removed but still leased: it keeps its slot.
  domain_.remove(1, "a");
  EXPECT_EQ(domain_.segment_count(), 2U);
  EXPECT_THROW(reserve(2, host_segment("c")), error);
  domain_.release(1, first, 1);
  reserve(2, host_segment("c"));
  expect_nothing_left();
}

class domain_with_quotas : public domain_test {
 protected:
  domain_with_quotas() : domain_test({.quota_bytes = 10'000, .quota_bytes_per_principal = 4'096}) {}
};

TEST_F(domain_with_quotas, connections_of_one_uid_share_its_quota) {
  const auto first = reserve(1, host_segment("a", 4'000));
  errc code{};
  EXPECT_EQ(error_of([&] { reserve(3, host_segment("b", 97)); }, &code),
            "97 B do not fit into the quota of uid 1000: 3.91 KiB of 4 KiB are in use (remove "
            "segments that are not used, or raise the broker's quota)");
  EXPECT_EQ(code, errc::quota_exceeded);
  reserve(3, host_segment("b", 96));
  domain_.release(1, first, 1);
  reserve(3, host_segment("c", 4'000));
  expect_nothing_left();
}

TEST_F(domain_with_quotas, unknown_uids_share_one_account) {
  reserve(5, host_segment("a", 4'000));
  EXPECT_EQ(error_of([&] { reserve(6, host_segment("b", 4'000)); }),
            "3.91 KiB do not fit into the quota of processes with an unknown uid: 3.91 KiB of 4 "
            "KiB are in use (remove segments that are not used, or raise the broker's quota)");
  reserve(2, host_segment("b", 4'000));  // uid 2000 is known
  expect_nothing_left();
}

TEST_F(domain_with_quotas, quota_of_the_domain_applies_to_all) {
  reserve(1, host_segment("a", 4'096));
  reserve(2, host_segment("b", 4'096));
  EXPECT_EQ(error_of([&] { reserve(5, host_segment("c", 4'096)); }),
            "no room for 4 KiB more segment memory: 8 KiB of 9.77 KiB are in use in this domain "
            "(remove segments "
            "that are not used, or raise the broker's quota)");
  EXPECT_EQ(error_of([&] { reserve(5, host_segment("c", UINT64_MAX)); }),
            "the segment is larger than an address space (256 TiB) (create a smaller one)");
  expect_nothing_left();
}

TEST_F(domain_with_quotas, host_segments_use_up_no_quota_of_a_gpu) {
  const auto on_gpu = [](std::string name, std::string uuid) {
    reservation wanted = host_segment(std::move(name), 4'096);
    wanted.backend = backend::cuda_vmm;
    wanted.device = {device_kind::gpu, std::move(uuid), "0000:18:00.0", 0};
    return wanted;
  };
  reserve(1, host_segment("a", 4'096));
  const auto first = reserve(1, on_gpu("b", "GPU-0"));
  reserve(1, on_gpu("c", "GPU-1"));
  EXPECT_EQ(error_of([&] { reserve(3, on_gpu("d", "GPU-0")); }),
            "4 KiB of GPU-0 do not fit into the quota of uid 1000: 4 KiB of 4 KiB are in use "
            "(remove segments that are not used, or raise the broker's quota)");
  EXPECT_EQ(domain_.allocated_bytes(), 3U * 4'096);
  domain_.release(1, first, 1);
  reserve(3, on_gpu("d", "GPU-0"));
  expect_nothing_left();
}

TEST_F(domain_with_quotas, quotas_change_while_it_serves) {
  reserve(1, host_segment("a", 4'096));
  domain_.set_quotas({.uids = {{alice.uid, {.host_bytes = 1'000}}}});
  EXPECT_EQ(error_of([&] { reserve(3, host_segment("b", 1)); }),
            "1 B do not fit into the quota of uid 1000 in all pods and containers of this domain: "
            "4 KiB of 1000 B are in use (remove segments that are not used, or raise the broker's "
            "quota)");
  reserve(2, host_segment("b", 100'000));
  domain_.set_quotas({});
  reserve(3, host_segment("c", 100'000));
  expect_nothing_left();
}

TEST_F(domain_with_quotas, removed_memory_is_charged_until_its_last_lease_ends) {
  const auto first = make(1, "a", lifetime::persistent);
  open(2, "a");
  domain_.remove(1, "a");
  domain_.release(1, first, 1);
  EXPECT_EQ(domain_.allocated_bytes(), 4'096U);
  EXPECT_THROW(reserve(1, host_segment("b", 4'096)), error);
  domain_.release(2, first, 1);
  EXPECT_EQ(domain_.allocated_bytes(), 0U);
  reserve(1, host_segment("b", 4'096));
}

// Sizes are only claimed: an overflowing sum would corrupt the accounts.
TEST_F(domain_reserve, sum_of_claims_cannot_overflow_without_a_quota) {
  // Each size is bounded, so that the sum cannot overflow.
  const auto most = std::uint64_t{1} << 48U;
  EXPECT_THROW(reserve(1, host_segment("a", most + 1)), error);
  const auto first = reserve(1, host_segment("a", most));
  const auto second = reserve(2, host_segment("b", most));
  domain_.release(1, first, 1);
  domain_.release(2, second, 1);
  expect_nothing_left();
}

class domain_with_few_descriptors : public domain_test {
 protected:
  // Two for each of six connections, and ten for segments.
  domain_with_few_descriptors()
      : domain_test({.max_descriptors = 22, .descriptors_per_session = 2, .names_changes = true}) {}
};

TEST_F(domain_with_few_descriptors, each_chunk_is_charged_a_descriptor) {
  reserve(1, host_segment("a", 4096, lifetime::leased, 6));
  EXPECT_EQ(domain_.descriptors(), 18U);
  errc code{};
  EXPECT_EQ(error_of([&] { reserve(1, host_segment("b", 4096, lifetime::leased, 5)); }, &code),
            "no room for 5 more descriptors: 18 of 22 are in use in this domain (use fewer, larger "
            "chunks, remove "
            "segments, or raise the broker's open file limit)");
  EXPECT_EQ(code, errc::too_many_descriptors);
  EXPECT_EQ(error_of([&] { reserve(1, host_segment("b", 4096, lifetime::leased, UINT32_MAX)); }),
            "no room for 4294967295 more descriptors: 18 of 22 are in use in this domain (use "
            "fewer, larger "
            "chunks, remove segments, or raise the broker's open file limit)");
  reserve(1, host_segment("b", 4096, lifetime::leased, 4));
  EXPECT_EQ(error_of([&] { domain_.connect(7, alice); }, &code),
            "no room for 2 more descriptors: 22 of 22 are in use in this domain (use fewer, larger "
            "chunks, remove "
            "segments, or raise the broker's open file limit)");
  EXPECT_EQ(code, errc::too_many_descriptors);
  EXPECT_EQ(domain_.session_count(), 6U);
  expect_nothing_left();
}

// ---- attach and publish ----

TEST_F(domain_publish, chunks_must_be_complete_and_in_order) {
  const auto created = reserve(1, host_segment("kv", 4096, lifetime::leased, 3));
  errc code{};
  EXPECT_EQ(error_of([&] { domain_.publish(1, created, {}); }, &code),
            "0 of 3 announced chunks are attached (attach all chunks before publishing)");
  EXPECT_EQ(code, errc::wrong_descriptor_count);
  domain_.attach(1, created, 0, 2);
  EXPECT_EQ(error_of([&] { domain_.attach(1, created, 0, 1); }, &code),
            "chunks 0 to 1 do not follow the 2 of 3 attached chunks (attach the announced chunks "
            "in order)");
  EXPECT_EQ(code, errc::wrong_descriptor_count);
  EXPECT_EQ(error_of([&] { domain_.attach(1, created, 2, 2); }),
            "chunks 2 to 4 do not follow the 2 of 3 attached chunks (attach the announced chunks "
            "in order)");
  EXPECT_THROW(domain_.attach(1, created, 2, 0), error);
  EXPECT_THROW(domain_.attach(1, created, 3, 1), error);
  EXPECT_THROW(domain_.attach(1, created, 2, SIZE_MAX), error);
  domain_.attach(1, created, 2, 1);
  EXPECT_THROW(domain_.attach(1, created, 3, 1), error);
  domain_.publish(1, created, {});
  EXPECT_EQ(error_of([&] { domain_.publish(1, created, {}); }, &code),
            "the segment is already published (publish once)");
  EXPECT_EQ(code, errc::already_published);
}

TEST_F(domain_publish, permissions_of_attach_and_publish) {
  const auto created = reserve(1, host_segment("kv"));
  for (const session_id other : {2U, 3U, 4U, 5U}) {
    errc code{};
    EXPECT_EQ(
        error_of([&] { domain_.attach(other, created, 0, 1); }, &code),
        "only the connection that reserved a segment may attach its chunks (create it on this "
        "connection)");
    EXPECT_EQ(code, errc::permission_denied);
  }
  domain_.attach(1, created, 0, 1);
  for (const session_id stranger : {2U, 5U, 99U}) {
    errc code{};
    EXPECT_EQ(
        error_of([&] { domain_.publish(stranger, created, {}); }, &code),
        "only its creator's connection, its uid in the same pod or container, or the broker's uid "
        "may publish a segment (publish it where it was created)");
    EXPECT_EQ(code, errc::permission_denied);
  }
  domain_.publish(3, created, {});  // the same uid
  const auto other = reserve(1, host_segment("other"));
  domain_.attach(1, other, 0, 1);
  domain_.publish(4, other, {});  // the broker's uid
}

TEST_F(domain_publish, segment_of_unknown_uid_is_limited_to_creator_and_broker) {
  const auto created = reserve(5, host_segment("kv"));
  domain_.attach(5, created, 0, 1);
  EXPECT_THROW(domain_.publish(6, created, {}), error);
  domain_.publish(4, created, {});
  EXPECT_THROW(domain_.remove(6, "kv"), error);
  domain_.remove(5, "kv");
}

TEST_F(domain_publish, unknown_generation_is_stale) {
  for (const gpushm::generation generation : {std::uint64_t{0}, std::uint64_t{1}, UINT64_MAX}) {
    errc code{};
    const std::string text =
        "generation " + std::to_string(generation) +
        " is gone, or does not belong to this connection (open the segment again by name)";
    EXPECT_EQ(error_of([&] { domain_.publish(1, generation, {}); }, &code), text);
    EXPECT_EQ(code, errc::stale_generation);
    EXPECT_EQ(error_of([&] { domain_.attach(1, generation, 0, 1); }), text);
    EXPECT_EQ(error_of([&] { static_cast<void>(domain_.held(1, generation)); }), text);
  }
}

TEST_F(domain_publish, metadata_is_limited_to_64_kib) {
  const auto created = reserve(1, host_segment("kv"));
  domain_.attach(1, created, 0, 1);
  const std::vector<std::byte> most(max_metadata_bytes + 1, std::byte{5});
  errc code{};
  EXPECT_EQ(error_of([&] { domain_.publish(1, created, most); }, &code),
            "the metadata has 65537 bytes, the limit is 65536 (put large tables into the segment "
            "itself)");
  EXPECT_EQ(code, errc::message_too_large);
  domain_.publish(1, created, std::span(most).first(max_metadata_bytes));
  EXPECT_EQ(domain_.stat(2, "kv").metadata->bytes.size(), max_metadata_bytes);
}

TEST_F(domain_publish, publish_after_remove_is_refused) {
  const auto created = reserve(1, host_segment("kv"));
  domain_.attach(1, created, 0, 1);
  open(2, "kv", at_ms(10));
  domain_.subscribe(2, 77, "");
  domain_.remove(1, "kv");
  errc code{};
  EXPECT_EQ(error_of([&] { domain_.publish(1, created, {}); }, &code),
            "the segment was removed before it was published (create it again)");
  EXPECT_EQ(code, errc::segment_removed);
  EXPECT_TRUE(seen_.replies().empty());
  EXPECT_TRUE(seen_.notices().empty()) << "no event for an unpublished segment";
  const auto next = make(3, "kv");
  ASSERT_EQ(seen_.replies().size(), 1U);
  EXPECT_EQ(last().generation, next);
}

// ---- open ----

TEST_F(domain_open, unknown_name_fails_without_hints) {
  make(1, "w/llama2");
  reserve(1, host_segment("secret"));
  open(2, "w/llama");
  EXPECT_EQ(last().code, errc::no_such_segment);
  EXPECT_EQ(last().text,
            "no such segment in domain default (`gpushm ls` lists segments; an open with a timeout "
            "waits for the name)");
  const std::string plain =
      "no such segment in domain default (`gpushm ls` lists segments; an open with a timeout waits "
      "for the name)";
  open(2, "something else");
  EXPECT_EQ(last().text, plain);
  open(2, "secre");
  EXPECT_EQ(last().text, plain) << "unpublished names are not disclosed";
  // Who has the whole name learns what `reserve` would say: a publish that was forgotten looks like
  // a wrong name.
  const std::string unpublished = std::string("it is being created by pid ") +
                                  std::to_string(domain_.stat(1, "secret").creator.pid) +
                                  ", which has not published it yet, in domain default (publish it "
                                  "there";
  for (const session_id each : {session_id{1}, session_id{2}}) {
    open(each, "secret");
    EXPECT_EQ(last().code, errc::no_such_segment);
    EXPECT_EQ(last().text, unpublished + "; an open with a timeout waits for the name)");
  }
  EXPECT_EQ(error_of([&] { static_cast<void>(domain_.stat(2, "secret")); }), unpublished + ")");
  EXPECT_EQ(error_of([&] { static_cast<void>(domain_.stat(2, "w/llama3")); }),
            "no such segment in domain default (`gpushm ls` lists segments)");
  EXPECT_EQ(error_of([&] { domain_.remove(2, "w/lama2"); }),
            "no such segment in domain default (`gpushm ls` lists segments)");
}

TEST_F(domain_open, invalid_name_fails_despite_a_timeout) {
  for (const std::string& name : {std::string(), std::string(256, 'n'), std::string("\xff")}) {
    open(2, name, at_ms(10));
    EXPECT_EQ(last().code, errc::invalid_argument);
  }
  EXPECT_EQ(domain_.waiting_count(), 0U);
}

TEST_F(domain_open, size_mismatch_fails_without_a_lease) {
  const auto created = make(1, "kv");
  open(2, "kv", std::nullopt, 4097);
  EXPECT_EQ(last().code, errc::size_mismatch);
  EXPECT_EQ(last().text,
            "the segment has 4096 bytes, not the expected 4097 (expect the size that `gpushm stat` "
            "shows)");
  EXPECT_FALSE(holds(2, created));
  open(2, "kv", std::nullopt, 4096);
  EXPECT_EQ(last().generation, created);
  EXPECT_TRUE(holds(2, created));
}

TEST_F(domain_open, waiting_opens_get_replies_in_order) {
  open(2, "kv", at_ms(50));
  open(3, "kv", at_ms(20));
  open(2, "other", at_ms(40));
  open(5, "kv", at_ms(30), 1);
  EXPECT_EQ(domain_.waiting_count(), 4U);
  EXPECT_EQ(domain_.next_deadline(), at_ms(20));
  domain_.at(at_ms(19)).tick();
  const auto created = make(1, "kv");
  ASSERT_EQ(seen_.replies().size(), 3U);
  EXPECT_EQ(seen_.replies()[0].session, 2U);
  EXPECT_EQ(seen_.replies()[0].generation, created);
  EXPECT_EQ(seen_.replies()[1].session, 3U);
  EXPECT_EQ(seen_.replies()[1].generation, created);
  EXPECT_EQ(seen_.replies()[2].session, 5U);
  EXPECT_EQ(seen_.replies()[2].code, errc::size_mismatch);
  EXPECT_EQ(domain_.next_deadline(), at_ms(40));
  domain_.at(at_ms(39)).tick();
  EXPECT_EQ(domain_.waiting_count(), 1U);
  domain_.at(at_ms(40)).tick();
  EXPECT_EQ(domain_.waiting_count(), 0U);
  EXPECT_EQ(last().code, errc::no_such_segment);
  EXPECT_EQ(last().text,
            "no such segment in domain default; the name was not published within the timeout "
            "(`gpushm ls` lists segments; if it is published later, give a longer timeout)");
  EXPECT_EQ(domain_.next_deadline(), std::nullopt);
}

TEST_F(domain_open, waiting_open_is_reported_immediately) {
  open(2, "kv", at_ms(10));
  EXPECT_EQ(seen_.waits().size(), 1U);
  EXPECT_TRUE(seen_.waits().contains({2, request_, 0}));
  make(1, "kv");
  EXPECT_TRUE(seen_.waits().empty());
  open(2, "kv", at_ms(10));  // answered immediately
  EXPECT_TRUE(seen_.waits().empty());
  EXPECT_EQ(seen_.replies().size(), 2U);
}

TEST_F(domain_open, cancelled_open_gets_no_reply) {
  for (std::uint32_t index = 0; index < 3; ++index) {
    domain_.open(2, {7, index, "kv" + std::to_string(index), 0, at_ms(10)});
  }
  domain_.open(2, {8, 0, "kv0", 0, at_ms(10)});
  domain_.open(3, {7, 0, "kv0", 0, at_ms(10)});
  const auto first = make(1, "kv1");
  EXPECT_EQ(last().generation, first);
  EXPECT_TRUE(domain_.cancel(2, 7));
  EXPECT_EQ(domain_.waiting_count(), 2U);
  EXPECT_FALSE(domain_.cancel(2, 7)) << "nothing waits any longer";
  EXPECT_FALSE(domain_.cancel(2, 9)) << "never requested";
  EXPECT_FALSE(domain_.cancel(77, 7)) << "no such session";
  make(1, "kv0");
  make(1, "kv2");
  ASSERT_EQ(seen_.replies().size(), 3U);
  EXPECT_EQ(seen_.replies()[1].request, 8U);
  EXPECT_EQ(last().session, 3U);
  EXPECT_FALSE(domain_.cancel(2, 8)) << "already answered";
  domain_.release(2, first, 1);
  domain_.release(2, seen_.replies()[1].generation, 1);
  domain_.release(3, last().generation, 1);
  expect_nothing_left();
}

TEST_F(domain_open, open_of_an_ended_session_gets_no_reply) {
  open(2, "kv", at_ms(10));
  open(3, "kv", at_ms(10));
  domain_.disconnect(2, false);
  EXPECT_EQ(domain_.waiting_count(), 1U);
  make(1, "kv");
  ASSERT_EQ(seen_.replies().size(), 1U);
  EXPECT_EQ(last().session, 3U);
  expect_nothing_left();
}

TEST_F(domain_open, open_of_a_reserved_name_waits_for_publish) {
  const auto created = reserve(1, host_segment("kv"));
  domain_.attach(1, created, 0, 1);
  open(2, "kv");
  EXPECT_EQ(last().code, errc::no_such_segment);
  open(2, "kv", at_ms(10));
  EXPECT_EQ(seen_.replies().size(), 1U);
  domain_.publish(1, created, {});
  EXPECT_EQ(last().generation, created);
}

TEST_F(domain_open, open_of_a_removed_name_waits_for_the_next_segment) {
  make(1, "kv");
  domain_.remove(1, "kv");
  open(2, "kv", at_ms(10));
  EXPECT_TRUE(seen_.replies().empty());
  const auto next = make(3, "kv");
  EXPECT_EQ(last().generation, next);
}

class domain_with_few_waiting_opens : public domain_test {
 protected:
  domain_with_few_waiting_opens() : domain_test({.max_pending_opens = 2, .names_changes = true}) {}
};

TEST_F(domain_with_few_waiting_opens, open_beyond_the_limit_fails_immediately) {
  open(2, "a", at_ms(10));
  open(2, "a", at_ms(10));
  EXPECT_TRUE(seen_.replies().empty());
  open(2, "b", at_ms(10));
  EXPECT_EQ(last().code, errc::too_many_requests);
  EXPECT_EQ(last().text,
            "2 opens of this connection wait for their names, the limit (wait for fewer names at "
            "once)");
  open(3, "b", at_ms(10));
  EXPECT_EQ(seen_.replies().size(), 1U) << "other connections have separate limits";
  domain_.at(at_ms(10)).tick();
  open(2, "b", at_ms(20));
  EXPECT_EQ(domain_.waiting_count(), 1U);
}

// ---- leases ----

TEST_F(domain_release, lease_ends_when_every_reply_is_released) {
  const auto created = make(1, "kv");
  open(2, "kv");
  open(2, "kv");
  open(2, "kv");
  EXPECT_EQ(domain_.stat(2, "kv").leases.size(), 2U) << "one per connection";
  domain_.release(2, created, 2);
  EXPECT_TRUE(holds(2, created));
  domain_.release(2, created, 0);
  EXPECT_TRUE(holds(2, created));
  domain_.release(2, created, 1);
  EXPECT_FALSE(holds(2, created));
  EXPECT_TRUE(holds(1, created));
  domain_.release(2, created, 1);  // nothing to end
  domain_.release(99, created, 1);
  domain_.release(2, 12345, 1);
  EXPECT_EQ(domain_.stat(2, "kv").leases.size(), 1U);
  domain_.release(1, created, UINT32_MAX);
  EXPECT_EQ(domain_.segment_count(), 0U);
  expect_nothing_left();
}

TEST_F(domain_release, last_lease_frees_only_leased_segments) {
  const auto leased = make(1, "leased");
  const auto persistent = make(1, "persistent", lifetime::persistent);
  open(2, "leased");
  domain_.release(1, leased, 1);
  domain_.release(1, persistent, 1);
  EXPECT_EQ(domain_.stat(3, "leased").leases.size(), 1U);
  domain_.release(2, leased, 1);
  EXPECT_THROW(static_cast<void>(domain_.stat(3, "leased")), error);
  EXPECT_EQ(seen_.freed_generations(), (std::vector<gpushm::generation>{leased}));
  EXPECT_TRUE(domain_.stat(3, "persistent").leases.empty());
  open(2, "persistent");
  EXPECT_EQ(last().generation, persistent);
  domain_.remove(1, "persistent");
  EXPECT_EQ(domain_.segment_count(), 1U) << "still leased";
  domain_.release(2, persistent, 1);
  expect_nothing_left();
}

TEST_F(domain_release, unpublished_segment_is_freed_for_any_lifetime) {
  domain_.release(1, reserve(1, host_segment("a")), 1);
  domain_.release(1, reserve(1, host_segment("b", 4096, lifetime::persistent)), 1);
  EXPECT_EQ(domain_.segment_count(), 0U);
  reserve(1, host_segment("c", 4096, lifetime::persistent));
  domain_.disconnect(1, false);
  EXPECT_EQ(domain_.segment_count(), 0U);
  expect_nothing_left();
}

TEST_F(domain_release, slot_reflects_the_segment_state) {
  const auto created = make(1, "kv");
  const std::uint32_t slot = domain_.stat(1, "kv").slot;
  EXPECT_EQ(seen_.slots().at(slot).state, segment_state::live);
  open(2, "kv");
  domain_.disconnect(1, false);
  EXPECT_EQ(seen_.slots().at(slot).state, segment_state::exporter_gone);
  domain_.remove(3, "kv");  // the same uid as the creator
  EXPECT_EQ(seen_.slots().at(slot).state, segment_state::removed);
  domain_.release(2, created, 1);
  EXPECT_EQ(seen_.slots().count(slot), 0U);
}

TEST_F(domain_release, goodbye_of_the_creator_is_not_a_death) {
  make(1, "kv", lifetime::persistent);
  const std::uint32_t slot = domain_.stat(1, "kv").slot;
  domain_.disconnect(1, true);
  EXPECT_EQ(seen_.slots().at(slot).state, segment_state::live);
}

// ---- remove ----

TEST_F(domain_remove, creator_its_uid_and_the_broker_may_remove) {
  for (const session_id able : {1U, 3U, 4U}) {
    make(1, "kv");
    errc code{};
    for (const session_id unable : {2U, 5U}) {
      EXPECT_EQ(error_of([&] { domain_.remove(unable, "kv"); }, &code),
                "only its creator's connection, its uid in the same pod or container, or the "
                "broker's uid may remove a segment (ask uid 1000 to remove it)");
      EXPECT_EQ(code, errc::permission_denied);
    }
    domain_.remove(able, "kv");
    EXPECT_THROW(static_cast<void>(domain_.stat(1, "kv")), error);
  }
  expect_nothing_left();
}

/// Many containers run as uid 0.
TEST_F(domain_remove, another_pod_of_that_uid_may_not_manage) {
  const auto in = [](std::int32_t pid, std::uint32_t uid, const char* pod, bool vouched = true) {
    return peer{pid, uid, true, {pod, vouched}};
  };
  domain_.connect(11, in(401, 0, "pod a"));
  domain_.connect(12, in(402, 0, "pod b"));
  domain_.connect(13, in(403, 0, "pod a"));
  domain_.connect(14, in(404, 1, "pod a"));
  domain_.connect(15, in(405, 0, "process 405", false));
  const auto created = reserve(11, host_segment("kv", 4096, lifetime::persistent));
  domain_.attach(11, created, 0, 1);
  errc code{};
  for (const session_id stranger : {12U, 14U, 15U}) {
    static_cast<void>(error_of([&] { domain_.publish(stranger, created, {}); }, &code));
    EXPECT_EQ(code, errc::permission_denied) << stranger;
  }
  domain_.publish(13, created, {});
  domain_.disconnect(11, true);
  for (const session_id stranger : {12U, 14U, 15U}) {
    EXPECT_EQ(error_of([&] { domain_.remove(stranger, "kv"); }, &code),
              "only its creator's connection, its uid in the same pod or container, or the "
              "broker's uid may remove a segment (ask uid 0 in pod a to remove it)");
    EXPECT_EQ(code, errc::permission_denied) << stranger;
  }
  domain_.remove(13, "kv");
  // A creator that is not vouched for: only the uid is known.
  domain_.release(15, make(15, "kv", lifetime::persistent), 1);
  EXPECT_THROW(domain_.remove(14, "kv"), error);
  domain_.remove(12, "kv");
  for (session_id session = 11; session <= 15; ++session) {
    domain_.disconnect(session, true);
  }
  expect_nothing_left();
}

/// Root of a container can take any uid, also the broker's.
TEST_F(domain_remove, foreign_peer_of_the_brokers_uid_may_not_manage) {
  domain_.connect(11, {401, broker_uid, true, {"uid 42", true}, true});
  domain_.connect(12, {402, broker_uid, true, {"uid 42", true}});
  domain_.release(1, make(1, "kv", lifetime::persistent), 1);
  domain_.release(12, make(12, "the operator's", lifetime::persistent), 1);
  domain_.release(11, make(11, "its own", lifetime::persistent), 1);
  for (const char* const name : {"kv", "the operator's"}) {
    errc code{};
    static_cast<void>(error_of([&] { domain_.remove(11, name); }, &code));
    EXPECT_EQ(code, errc::permission_denied) << name;
    domain_.remove(12, name);
  }
  domain_.remove(11, "its own");
  EXPECT_FALSE(domain_.is_operator(11));
  EXPECT_TRUE(domain_.is_operator(12));
  domain_.disconnect(11, true);
  domain_.disconnect(12, true);
  expect_nothing_left();
}

TEST_F(domain_remove, unpublished_segment_is_removed_by_its_creator_only) {
  reserve(1, host_segment("kv"));
  errc code{};
  for (const session_id other : {2U, 3U, 4U}) {
    error_of([&] { domain_.remove(other, "kv"); }, &code);
    EXPECT_EQ(code, errc::no_such_segment);
  }
  domain_.remove(1, "kv");
  reserve(2, host_segment("kv"));
  expect_nothing_left();
}

TEST_F(domain_remove, second_remove_fails) {
  make(1, "kv");
  domain_.remove(1, "kv");
  EXPECT_THROW(domain_.remove(1, "kv"), error);
  EXPECT_THROW(domain_.remove(1, ""), error);
}

TEST_F(domain_remove, segment_of_dead_unknown_uid_is_removed_by_the_broker) {
  make(5, "kv", lifetime::persistent);
  domain_.disconnect(5, false);
  EXPECT_THROW(domain_.remove(6, "kv"), error);
  domain_.remove(4, "kv");
  expect_nothing_left();
}

// ---- list ----

TEST_F(domain_remove, list_shows_only_visible_segments) {
  make(1, "a/1");
  make(1, "a/2");
  reserve(1, host_segment("a/3"));
  make(1, "b/1");
  const auto names = [&](session_id session, std::string_view prefix, std::string_view after) {
    std::string text;
    domain_.list(session, prefix, after, [&](const segment& segment) {
      text += segment.name + ' ';
      return true;
    });
    return text;
  };
  EXPECT_EQ(names(1, "", ""), "a/1 a/2 a/3 b/1 ");
  EXPECT_EQ(names(2, "", ""), "a/1 a/2 b/1 ");
  EXPECT_EQ(names(2, "a/", ""), "a/1 a/2 ");
  EXPECT_EQ(names(2, "a/", "a/1"), "a/2 ");
  EXPECT_EQ(names(2, "a/", "a/10"), "a/2 ");
  EXPECT_EQ(names(2, "a/", "z"), "");
  EXPECT_EQ(names(2, "b", "a/2"), "b/1 ");
  EXPECT_EQ(names(2, "c", ""), "");
  domain_.remove(1, "a/1");
  EXPECT_EQ(names(2, "", ""), "a/2 b/1 ");
}

// ---- events ----

TEST_F(domain_subscribe, events_of_a_segment_come_in_order) {
  domain_.subscribe(4, 70, "w/");
  const auto created = make(1, "w/llama", lifetime::persistent);
  make(1, "kv");
  open(2, "w/llama");
  open(2, "w/llama");
  open(3, "w/llama");
  domain_.release(2, created, 2);
  domain_.disconnect(3, false);
  domain_.remove(4, "w/llama");
  struct {
    event_kind kind;
    std::uint32_t leases;
    std::int32_t pid;
  } const expected[] = {
      {event_kind::published, 1, 101},
      {event_kind::opened, 2, 201},
      {event_kind::opened, 3, 102},
      {event_kind::peer_died, 1, 102},
      {event_kind::released, 1, 102},
      {event_kind::removed, 1, 301},
  };
  ASSERT_EQ(seen_.notices().size(), std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    const notice& received = seen_.notices()[i];
    EXPECT_EQ(received.session, 4U);
    EXPECT_EQ(received.subscription, 70U);
    EXPECT_EQ(received.name, "w/llama");
    EXPECT_EQ(received.generation, created);
    EXPECT_EQ(received.kind, expected[i].kind) << i;
    EXPECT_EQ(received.leases, expected[i].leases) << i;
    EXPECT_EQ(received.peer_pid, expected[i].pid) << i;
  }
}

// A producer that exits with its last consumer must not exit after a consumer that could not map.
TEST_F(domain_subscribe, failed_imports_cause_no_released_event) {
  const auto created = make(1, "w", lifetime::persistent);
  domain_.subscribe(4, 70, "");
  const auto releases = [&] {
    return std::count_if(
        seen_.notices().begin(), seen_.notices().end(), [](const notice& received) {
          return received.kind == event_kind::released;
        });
  };
  open(2, "w");
  domain_.release(2, created, 1, true);
  EXPECT_EQ(releases(), 0);
  // A session that used it ends before one that did not.
  open(2, "w");
  open(3, "w");
  domain_.release(2, created, 1);
  EXPECT_EQ(releases(), 0);
  domain_.release(3, created, 1, true);
  EXPECT_EQ(releases(), 1);
  open(3, "w");
  domain_.release(3, created, 1, true);
  EXPECT_EQ(releases(), 1) << "the earlier use has been reported";
  // Parts of one lease: one of them was used.
  open(2, "w");
  open(2, "w");
  domain_.release(2, created, 1);
  domain_.release(2, created, 1, true);
  EXPECT_EQ(releases(), 2);
}

TEST_F(domain_subscribe, open_of_another_generation_causes_no_event) {
  const auto created = make(1, "w", lifetime::persistent);
  domain_.subscribe(4, 70, "");
  open_request wanted{9, 0, "w", 0, std::nullopt, at_ms(0), created + 1};
  domain_.open(2, wanted);
  ASSERT_EQ(seen_.replies().size(), 1U);
  EXPECT_EQ(seen_.replies().back().code, errc::gone_or_replaced);
  EXPECT_TRUE(seen_.notices().empty());
  wanted.generation = created;
  domain_.open(2, wanted);
  EXPECT_EQ(seen_.replies().back().generation, created);
}

TEST_F(domain_subscribe, unpublished_segments_cause_no_events) {
  domain_.subscribe(4, 70, "");
  reserve(1, host_segment("a"));
  domain_.release(1, reserve(1, host_segment("b")), 1);
  reserve(1, host_segment("c"));
  domain_.remove(1, "c");
  domain_.disconnect(1, false);
  EXPECT_TRUE(seen_.notices().empty());
}

TEST_F(domain_subscribe, subscription_ends_with_unsubscribe_or_the_session) {
  domain_.subscribe(2, 1, "");
  domain_.subscribe(2, 2, "");
  domain_.subscribe(3, 1, "");
  domain_.unsubscribe(2, 1);
  domain_.unsubscribe(2, 99);
  domain_.disconnect(3, true);
  make(1, "kv");
  ASSERT_EQ(seen_.notices().size(), 1U);
  EXPECT_EQ(seen_.notices()[0].session, 2U);
  EXPECT_EQ(seen_.notices()[0].subscription, 2U);
}

TEST_F(domain_subscribe, subscriptions_are_limited) {
  errc code{};
  domain_.subscribe(2, 1, std::string(255, 'p'));
  EXPECT_EQ(error_of([&] { domain_.subscribe(2, 1, ""); }, &code),
            "the request id is already used by a subscription (use a new request id, and a prefix "
            "of at most 255 bytes)");
  EXPECT_EQ(code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { domain_.subscribe(2, 2, std::string(256, 'p')); }),
            "the prefix is too long (use a new request id, and a prefix of at most 255 bytes)");
  for (std::uint64_t id = 2; id <= domain_.bounds().max_subscriptions; ++id) {
    domain_.subscribe(2, id, "");
  }
  EXPECT_EQ(error_of([&] { domain_.subscribe(2, 1000, ""); }, &code),
            "64 subscriptions on this connection, the limit (subscribe once, to a shorter prefix)");
  EXPECT_EQ(code, errc::too_many_requests);
  domain_.unsubscribe(2, 5);
  domain_.subscribe(2, 1000, "");
}

}  // namespace
}  // namespace gpushm::core
