// SPDX-License-Identifier: Apache-2.0
// Exporter-bound memory: questions to the exporter, its replies, and clean-up.
#include <gtest/gtest.h>

#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using namespace testing_world;
using std::chrono::milliseconds;

constexpr std::uint32_t broker_uid = 42;
const peer alice{101, 1000, true};
const peer bob{201, 2000, true};
const peer carol{202, 2001, true};

constexpr session_id exporter = 1;
constexpr session_id importer = 2;
constexpr session_id other = 3;

const std::string not_replying =
    "the process that shares this memory does not answer (check whether it is stopped or "
    "overloaded)";
const std::string died =
    "the process that shared this memory in domain default has died (start it again; an open with "
    "a timeout waits for the name)";
const std::string died_at_a_stat =
    "the process that shared this memory in domain default has died (start it again)";
const std::string died_before_the_timeout =
    "the process that shared this memory in domain default has died; the name was not published "
    "within the timeout (start it again; if it is published later, give a longer timeout)";
const std::string no_name_within_the_timeout =
    "no such segment in domain default; the name was not published within the timeout (`gpushm ls` "
    "lists segments; if it is published later, give a longer timeout)";
const std::string no_name =
    "no such segment in domain default (`gpushm ls` lists segments; an open with a timeout waits "
    "for the name)";
const std::string changed =
    "its exporter has freed or replaced the memory without unshare (unshare before freeing, and "
    "share the new memory)";
const std::string not_shared =
    "its exporter no longer shares this memory (unshare before freeing, and share the new memory)";

reservation of_legacy_handle(std::string name) {
  reservation wanted;
  wanted.name = std::move(name);
  wanted.size_bytes = 1000;
  wanted.allocated_bytes = 4096;
  wanted.chunk_count = 0;
  wanted.device = {device_kind::gpu, "GPU-0", "0000:18:00.0", 0};
  wanted.backend = backend::cuda_ipc;
  wanted.offset_bytes = 3096;
  wanted.ticket.assign(200, std::byte{7});
  return wanted;
}

reservation of_pool(std::string name) {
  reservation wanted = of_legacy_handle(std::move(name));
  wanted.backend = backend::cuda_pool;
  wanted.chunk_count = 1;
  return wanted;
}

class exporter_bound_memory : public testing::TestWithParam<backend> {
 protected:
  explicit exporter_bound_memory(const limits& bounds = naming_limits)
      : domain_("default", broker_uid, bounds) {
    domain_.connect(exporter, alice);
    domain_.connect(importer, bob);
    domain_.connect(other, carol);
    domain_.subscribe(other, 9, "");
    empty_descriptors_ = domain_.descriptors();
  }

  static reservation wanted(const std::string& name) {
    return GetParam() == backend::cuda_ipc ? of_legacy_handle(name) : of_pool(name);
  }
  gpushm::generation reserve(const std::string& name, session_id session = exporter) {
    return domain_.reserve(session, wanted(name)).generation;
  }
  gpushm::generation share(const std::string& name, session_id session = exporter) {
    const auto created = reserve(name, session);
    if (GetParam() == backend::cuda_pool) {
      domain_.attach(session, created, 0, 1);
    }
    domain_.publish(session, created, {});
    return created;
  }
  std::uint64_t open(session_id session,
                     const std::string& name,
                     std::optional<time_point> deadline = std::nullopt,
                     std::uint64_t expected = 0) {
    domain_.open(session, {++request_, 0, name, expected, deadline, at_ms(now_ms_)});
    return request_;
  }
  /// The only question since the last call.
  question only_question() {
    EXPECT_EQ(seen_.questions().size(), 1U);
    const auto asked = seen_.questions().empty() ? question{} : seen_.questions().front();
    seen_.questions().clear();
    return asked;
  }
  /// The only reply since the last call.
  reply only_reply() {
    EXPECT_EQ(seen_.replies().size(), 1U);
    const auto got = seen_.replies().empty() ? reply{} : seen_.replies().front();
    seen_.replies().clear();
    return got;
  }
  void expect_failed(session_id session,
                     std::uint64_t request,
                     errc code,
                     const std::string& text) {
    const reply got = only_reply();
    EXPECT_EQ(got.session, session);
    EXPECT_EQ(got.request, request);
    EXPECT_EQ(got.generation, 0U);
    EXPECT_EQ(to_string(got.code), to_string(code));
    EXPECT_EQ(got.text, text);
  }
  void expect_failed_immediately(const std::string& name, errc code, const std::string& text) {
    const auto request = open(importer, name);
    EXPECT_TRUE(seen_.questions().empty());
    expect_failed(importer, request, code, text);
  }
  /// Opens; the exporter confirms that nothing has changed.
  void grant(session_id session, const std::string& name) {
    const auto request = open(session, name);
    const auto asked = only_question();
    EXPECT_TRUE(seen_.replies().empty()) << "not granted before the exporter has confirmed";
    domain_.confirmed(exporter, asked.confirmation, verdict::unchanged);
    const reply got = only_reply();
    EXPECT_EQ(got.session, session);
    EXPECT_EQ(got.request, request);
    EXPECT_EQ(got.generation, asked.generation) << got.text;
  }
  [[nodiscard]] bool holds(session_id session, gpushm::generation generation) const {
    try {
      static_cast<void>(domain_.held(session, generation));
      return true;
    } catch (const error&) {
      return false;
    }
  }
  /// The segment's state in its slot; nullopt if the slot is free.
  [[nodiscard]] std::optional<segment_state> state_of(gpushm::generation generation) const {
    for (const auto& [slot, entry] : seen_.slots()) {
      if (entry.generation == generation) {
        return entry.state;
      }
    }
    return std::nullopt;
  }
  [[nodiscard]] bool was_freed(gpushm::generation generation) const {
    return std::count(
               seen_.freed_generations().begin(), seen_.freed_generations().end(), generation) == 1;
  }
  /// Expects no segments and no waiting opens; sessions stay connected.
  void expect_no_segment_left() {
    EXPECT_EQ(domain_.segment_count(), 0U);
    EXPECT_EQ(domain_.waiting_count(), 0U);
    EXPECT_EQ(domain_.next_deadline(), std::nullopt);
    EXPECT_EQ(domain_.allocated_bytes(), 0U);
    EXPECT_EQ(domain_.descriptors(),
              domain_.session_count() * domain_.bounds().descriptors_per_session);
    EXPECT_TRUE(seen_.slots().empty());
    EXPECT_TRUE(seen_.questions().empty());
    EXPECT_TRUE(seen_.replies().empty());
  }
  void TearDown() override {
    if (HasFailure()) {
      return;
    }
    for (const session_id session : {exporter, importer, other}) {
      domain_.disconnect(session, true);
    }
    expect_no_segment_left();
    EXPECT_EQ(domain_.session_count(), 0U);
    EXPECT_EQ(domain_.descriptors(), 0U);
  }

  domain domain_;
  recorder seen_{domain_};
  std::uint64_t empty_descriptors_ = 0;
  std::uint64_t request_ = 0;
  int now_ms_ = 0;
};

std::string kind_name(const testing::TestParamInfo<backend>& info) {
  return info.param == backend::cuda_ipc ? "legacy_handle" : "pool";
}
INSTANTIATE_TEST_SUITE_P(kinds,
                         exporter_bound_memory,
                         testing::Values(backend::cuda_ipc, backend::cuda_pool),
                         kind_name);

// ---- reserve ----

TEST_P(exporter_bound_memory, invalid_reservation_is_refused) {
  const std::string ticket_text =
      "the ticket is missing, too long, or not for this kind of memory (report this as a bug)";
  const std::string chunks_text =
      "wrong number of chunks for this kind of memory (report this as a bug)";
  const struct {
    const char* what;
    void (*spoil)(reservation&);
    std::string text;
  } cases[] = {
      {"one chunk more", [](reservation& r) { ++r.chunk_count; }, chunks_text},
      {"many chunks", [](reservation& r) { r.chunk_count = 0xFFFF'FFFF; }, chunks_text},
      {"the other kind's number", [](reservation& r) { r.chunk_count ^= 1U; }, chunks_text},
      {"no ticket", [](reservation& r) { r.ticket.clear(); }, ticket_text},
      {"a ticket of 4,097 bytes", [](reservation& r) { r.ticket.resize(4097); }, ticket_text},
      {"persistent",
       [](reservation& r) { r.lifetime = lifetime::persistent; },
       "what is bound to its creator cannot be persistent (share it as leased, or create a "
       "persistent "
       "segment and copy)"},
      {"an offset that leaves a byte less",
       [](reservation& r) { ++r.offset_bytes; },
       "the segment extends past its allocation (report this as a bug)"},
      {"the largest offset",
       [](reservation& r) { r.offset_bytes = ~std::uint64_t{0}; },
       "the segment extends past its allocation (report this as a bug)"},
      {"less allocated than shared",
       [](reservation& r) { r.allocated_bytes = r.size_bytes - 1; },
       "the allocation is smaller than the segment (report this as a bug)"},
      {"0 bytes",
       [](reservation& r) { r.size_bytes = 0; },
       "the size is 0 bytes (give a size of at least 1 byte)"},
      {"on the host",
       [](reservation& r) { r.device = {}; },
       "backend and device do not match (report this as a bug)"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.what);
    reservation spoiled = wanted("kv");
    each.spoil(spoiled);
    errc code{};
    EXPECT_EQ(error_of([&] { domain_.reserve(exporter, spoiled); }, &code), each.text);
    EXPECT_EQ(to_string(code), to_string(errc::invalid_argument));
    expect_no_segment_left();
  }
  reservation longest = wanted("kv");
  longest.ticket.resize(4096);
  const auto& created = domain_.reserve(exporter, longest);
  EXPECT_EQ(created.ticket.size(), 4096U);
  EXPECT_EQ(created.offset_bytes, 3096U);
  EXPECT_EQ(state_of(created.generation), segment_state::live);
}

TEST_P(exporter_bound_memory, whole_allocation_at_offset_0_is_reserved) {
  reservation whole = wanted("kv");
  whole.offset_bytes = 0;
  whole.size_bytes = whole.allocated_bytes;
  EXPECT_EQ(domain_.reserve(exporter, whole).size_bytes, 4096U);
}

TEST(descriptor_memory, has_no_ticket_and_an_offset_within_its_chunks) {
  domain kept("default", broker_uid, {});
  recorder seen(kept);
  kept.connect(exporter, alice);
  reservation spoiled = host_segment("kv", 4096);
  spoiled.ticket.resize(1);
  EXPECT_EQ(
      error_of([&] { kept.reserve(exporter, spoiled); }),
      "the ticket is missing, too long, or not for this kind of memory (report this as a bug)");
  spoiled = host_segment("kv", 4096);
  spoiled.offset_bytes = 1;
  EXPECT_EQ(error_of([&] { kept.reserve(exporter, spoiled); }),
            "the segment extends past its allocation (report this as a bug)");
  EXPECT_EQ(kept.segment_count(), 0U);
  reservation good = host_segment("kv", 4096);
  good.size_bytes = 96;
  good.offset_bytes = 4000;
  const auto created = kept.reserve(exporter, good).generation;
  kept.attach(exporter, created, 0, 1);
  kept.publish(exporter, created, {});
  kept.connect(importer, bob);
  kept.open(importer, {1, 0, "kv", 0, std::nullopt, at_ms(0)});
  ASSERT_EQ(seen.replies().size(), 1U);
  EXPECT_EQ(seen.replies()[0].generation, created) << "no question needed";
  EXPECT_TRUE(seen.questions().empty());
}

TEST_P(exporter_bound_memory, chunks_are_charged_as_descriptors) {
  const auto created = share("kv");
  const std::uint64_t chunks = GetParam() == backend::cuda_pool ? 1 : 0;
  EXPECT_EQ(domain_.descriptors(), empty_descriptors_ + chunks);
  EXPECT_EQ(domain_.allocated_bytes(), 4096U);
  domain_.release(exporter, created, 1);
  expect_no_segment_left();
  EXPECT_EQ(domain_.descriptors(), empty_descriptors_);
}

TEST_P(exporter_bound_memory, attach_accepts_only_announced_chunks) {
  const auto created = reserve("kv");
  const bool pool = GetParam() == backend::cuda_pool;
  EXPECT_EQ(error_of([&] { domain_.attach(exporter, created, 0, 2); }),
            std::string("chunks 0 to 2 do not follow the 0 of ") + (pool ? "1" : "0") +
                " attached chunks (attach the announced chunks in order)");
  if (pool) {
    EXPECT_EQ(error_of([&] { domain_.publish(exporter, created, {}); }),
              "0 of 1 announced chunks are attached (attach all chunks before publishing)");
    domain_.attach(exporter, created, 0, 1);
  } else {
    EXPECT_EQ(error_of([&] { domain_.attach(exporter, created, 0, 1); }),
              "chunks 0 to 1 do not follow the 0 of 0 attached chunks (attach the announced chunks "
              "in order)");
  }
  domain_.publish(exporter, created, {});
}

// ---- open ----

TEST_P(exporter_bound_memory, every_open_asks_the_exporter) {
  const auto created = share("kv");
  std::uint64_t previous = 0;
  for (int i = 0; i < 3; ++i) {
    const auto request = open(importer, "kv");
    const auto asked = only_question();
    EXPECT_EQ(asked.exporter, exporter);
    EXPECT_EQ(asked.generation, created);
    EXPECT_GT(asked.confirmation, previous) << "never 0, never reused";
    previous = asked.confirmation;
    EXPECT_TRUE(seen_.replies().empty());
    EXPECT_EQ(holds(importer, created), i > 0);
    EXPECT_EQ(domain_.next_deadline(), at_ms(2'000));
    domain_.confirmed(exporter, asked.confirmation, verdict::unchanged);
    const reply got = only_reply();
    EXPECT_EQ(got.session, importer);
    EXPECT_EQ(got.request, request);
    EXPECT_EQ(got.generation, created);
    EXPECT_EQ(domain_.next_deadline(), std::nullopt);
  }
  EXPECT_TRUE(holds(importer, created));
  EXPECT_EQ(domain_.held(importer, created).leases.size(), 2U);
  EXPECT_EQ(domain_.held(importer, created).leases[1].count, 3U);
  EXPECT_TRUE(seen_.losses().empty());
  domain_.release(importer, created, 3);
  EXPECT_FALSE(holds(importer, created));
  EXPECT_EQ(state_of(created), segment_state::live);
}

TEST_P(exporter_bound_memory, open_by_the_exporter_asks_it_too) {
  const auto created = share("kv");
  grant(exporter, "kv");
  EXPECT_EQ(domain_.held(exporter, created).leases.size(), 1U);
}

TEST_P(exporter_bound_memory, size_mismatch_is_refused_after_confirmation) {
  const auto created = share("kv");
  const auto request = open(importer, "kv", std::nullopt, 999);
  domain_.confirmed(exporter, only_question().confirmation, verdict::unchanged);
  expect_failed(importer,
                request,
                errc::size_mismatch,
                "the segment has 1000 bytes, not the expected 999 (expect the size that `gpushm "
                "stat` shows)");
  EXPECT_FALSE(holds(importer, created));
  EXPECT_EQ(state_of(created), segment_state::live);
}

TEST_P(exporter_bound_memory, changed_memory_loses_its_name_and_holders_get_events) {
  for (const auto& [replied, text] :
       {std::pair{verdict::changed, changed}, std::pair{verdict::not_shared, not_shared}}) {
    SCOPED_TRACE(text);
    const auto created = share("kv");
    grant(other, "kv");
    seen_.notices().clear();
    seen_.losses().clear();
    const auto request = open(importer, "kv");
    const auto late_request = open(importer, "kv");
    ASSERT_EQ(seen_.questions().size(), 2U);
    const auto asked = seen_.questions();
    seen_.questions().clear();
    domain_.confirmed(exporter, asked[0].confirmation, replied);
    expect_failed(importer, request, errc::gone_or_replaced, text);
    EXPECT_EQ(state_of(created), segment_state::removed);
    EXPECT_FALSE(holds(importer, created));
    EXPECT_TRUE(holds(other, created)) << "an existing mapping stays";
    EXPECT_EQ(seen_.losses(), (std::vector<recorder::loss>{{exporter, created}, {other, created}}));
    ASSERT_EQ(seen_.notices().size(), 1U);
    EXPECT_EQ(seen_.notices()[0].kind, event_kind::removed);
    EXPECT_EQ(seen_.notices()[0].name, "kv");
    EXPECT_EQ(seen_.notices()[0].leases, 2U);
    EXPECT_EQ(seen_.notices()[0].peer_pid, 101);
    expect_failed_immediately("kv", errc::no_such_segment, no_name);

    // The second question is about a removed segment: every reply fails the open.
    domain_.confirmed(exporter, asked[1].confirmation, verdict::unchanged);
    expect_failed(importer, late_request, errc::no_such_segment, no_name);
    EXPECT_FALSE(holds(importer, created));
    const auto again = share("kv", other);  // the name is free, for others too

    domain_.release(other, again, 1);
    domain_.release(other, created, 1);
    EXPECT_EQ(state_of(created), segment_state::removed) << "the exporter still has a lease";
    domain_.release(exporter, created, 1);
    expect_no_segment_left();
    EXPECT_TRUE(was_freed(created));
  }
}

TEST_P(exporter_bound_memory, only_the_exporter_confirms_and_once) {
  const auto created = share("kv");
  const auto request = open(importer, "kv");
  const auto asked = only_question();
  for (const auto replied : {verdict::unchanged, verdict::changed, verdict::not_shared}) {
    domain_.confirmed(importer, asked.confirmation, replied);  // the importer may not confirm
    domain_.confirmed(other, asked.confirmation, replied);
    domain_.confirmed(77, asked.confirmation, replied);  // unknown session
    domain_.confirmed(exporter, 0, replied);
    domain_.confirmed(exporter, asked.confirmation + 1, replied);
    domain_.confirmed(exporter, ~std::uint64_t{0}, replied);
  }
  EXPECT_TRUE(seen_.replies().empty());
  EXPECT_FALSE(holds(importer, created));
  EXPECT_EQ(state_of(created), segment_state::live);
  domain_.confirmed(exporter, asked.confirmation, verdict::unchanged);
  EXPECT_EQ(only_reply().request, request);
  domain_.confirmed(exporter, asked.confirmation, verdict::changed);
  domain_.confirmed(exporter, asked.confirmation, verdict::unchanged);
  EXPECT_TRUE(seen_.replies().empty());
  EXPECT_EQ(state_of(created), segment_state::live) << "a repeated answer changes nothing";
  EXPECT_EQ(domain_.held(importer, created).leases[1].count, 1U);
}

TEST_P(exporter_bound_memory, open_without_a_reply_fails_at_the_deadline) {
  const auto created = share("kv");
  now_ms_ = 500;
  const auto first = open(importer, "kv");
  const auto asked = only_question();
  now_ms_ = 600;
  const auto second = open(other, "kv", at_ms(1'000'000));  // waits for the name, not for this
  const auto asked_too = only_question();
  EXPECT_EQ(domain_.next_deadline(), at_ms(2'500));
  domain_.at(at_ms(2'499)).tick();
  EXPECT_TRUE(seen_.replies().empty());
  domain_.at(at_ms(2'500)).tick();
  expect_failed(importer, first, errc::timed_out, not_replying);
  EXPECT_EQ(domain_.next_deadline(), at_ms(2'600));
  domain_.at(at_ms(10'000)).tick();
  expect_failed(other, second, errc::timed_out, not_replying);
  EXPECT_EQ(domain_.next_deadline(), std::nullopt);

  for (const auto replied : {verdict::changed, verdict::unchanged}) {  // too late
    domain_.confirmed(exporter, asked.confirmation, replied);
    domain_.confirmed(exporter, asked_too.confirmation, replied);
  }
  EXPECT_TRUE(seen_.replies().empty());
  EXPECT_FALSE(holds(importer, created));
  EXPECT_FALSE(holds(other, created));
  EXPECT_EQ(state_of(created), segment_state::live);
  now_ms_ = 10'000;
  grant(importer, "kv");
}

TEST_P(exporter_bound_memory, cancelled_open_is_not_granted) {
  const auto created = share("kv");
  const auto request = open(importer, "kv");
  const auto asked = only_question();
  EXPECT_TRUE(seen_.waits().contains({importer, request, 0}));
  EXPECT_TRUE(domain_.cancel(importer, request));
  EXPECT_FALSE(domain_.cancel(importer, request));
  EXPECT_EQ(domain_.next_deadline(), std::nullopt);
  domain_.confirmed(exporter, asked.confirmation, verdict::unchanged);
  EXPECT_TRUE(seen_.replies().empty());
  EXPECT_FALSE(holds(importer, created));
  seen_.waits().clear();
  grant(importer, "kv");
}

TEST_P(exporter_bound_memory, waiting_opens_ask_the_exporter_after_publish) {
  const auto request = open(importer, "kv", at_ms(50));
  const auto request_too = open(other, "kv", at_ms(60));
  EXPECT_EQ(domain_.waiting_count(), 2U);
  const auto created = share("kv");
  EXPECT_EQ(domain_.waiting_count(), 0U);
  EXPECT_TRUE(seen_.replies().empty()) << "the memory may have been freed since it was reserved";
  ASSERT_EQ(seen_.questions().size(), 2U);
  const auto asked = std::exchange(seen_.questions(), {});
  EXPECT_EQ(asked[0].exporter, exporter);
  EXPECT_EQ(asked[0].generation, created);
  EXPECT_EQ(domain_.next_deadline(), at_ms(2'050));
  domain_.confirmed(exporter, asked[0].confirmation, verdict::unchanged);
  const reply got = only_reply();
  EXPECT_EQ(got.request, request);
  EXPECT_EQ(got.generation, created);
  EXPECT_EQ(domain_.next_deadline(), at_ms(2'060));
  domain_.confirmed(exporter, asked[1].confirmation, verdict::changed);
  expect_failed(other, request_too, errc::gone_or_replaced, changed);
}

// ---- end of the exporter ----

TEST_P(exporter_bound_memory, death_of_the_exporter_frees_the_name) {
  const auto created = share("kv");
  grant(other, "kv");
  seen_.notices().clear();
  seen_.losses().clear();
  const auto asking = open(importer, "kv");
  static_cast<void>(only_question());
  domain_.disconnect(exporter, false);
  expect_failed(importer, asking, errc::peer_died, died);
  EXPECT_EQ(domain_.next_deadline(), std::nullopt);
  EXPECT_EQ(state_of(created), segment_state::exporter_gone);
  EXPECT_TRUE(holds(other, created));
  EXPECT_EQ(domain_.held(other, created).creator_session, 0U);
  EXPECT_EQ(seen_.losses(), (std::vector<recorder::loss>{{other, created}}));
  ASSERT_EQ(seen_.notices().size(), 2U);
  EXPECT_EQ(seen_.notices()[0].kind, event_kind::peer_died);
  EXPECT_EQ(seen_.notices()[0].peer_pid, 101);
  EXPECT_EQ(seen_.notices()[0].leases, 1U);
  EXPECT_EQ(seen_.notices()[1].kind, event_kind::removed);
  EXPECT_EQ(seen_.notices()[1].leases, 1U);

  expect_failed_immediately("kv", errc::peer_died, died);
  errc code{};
  EXPECT_EQ(error_of([&] { static_cast<void>(domain_.stat(importer, "kv")); }, &code),
            died_at_a_stat);
  EXPECT_EQ(to_string(code), to_string(errc::peer_died));
  EXPECT_EQ(error_of([&] { domain_.remove(importer, "kv"); }, &code), died_at_a_stat);
  expect_failed_immediately("kw", errc::no_such_segment, no_name);
  now_ms_ = 100;
  const auto waiting = open(importer, "kv", at_ms(200));
  EXPECT_TRUE(seen_.replies().empty()) << "it may be shared again";
  domain_.at(at_ms(200)).tick();
  expect_failed(importer, waiting, errc::peer_died, died_before_the_timeout);

  // The name is free immediately, while the old memory is still mapped.
  const auto again = reserve("kv", importer);
  EXPECT_NE(again, created);
  EXPECT_EQ(state_of(created), segment_state::exporter_gone);
  {
    const auto request = open(other, "kv");
    expect_failed(other,
                  request,
                  errc::no_such_segment,
                  "it is being created by pid 201, which has not published it yet, in domain "
                  "default (publish it there; an open with a timeout waits for the name)");
  }
  domain_.release(importer, again, 1);
  expect_failed_immediately("kv", errc::no_such_segment, no_name);
  EXPECT_TRUE(holds(other, created));
  domain_.release(other, created, 1);
  expect_no_segment_left();
  EXPECT_TRUE(was_freed(created));
  EXPECT_TRUE(was_freed(again));
}

TEST_P(exporter_bound_memory, death_of_the_exporter_frees_unleased_memory) {
  const auto created = share("kv");
  domain_.disconnect(exporter, false);
  EXPECT_EQ(state_of(created), std::nullopt);
  expect_no_segment_left();
  EXPECT_TRUE(was_freed(created));
  expect_failed_immediately("kv", errc::peer_died, died);
  domain_.connect(exporter, alice);
  const auto again = share("kv");
  grant(importer, "kv");
  EXPECT_TRUE(holds(importer, again));
}

TEST_P(exporter_bound_memory, unpublished_memory_leaves_no_trace_after_a_death) {
  reserve("kv");
  domain_.disconnect(exporter, false);
  expect_no_segment_left();
  expect_failed_immediately("kv", errc::no_such_segment, no_name);
  EXPECT_TRUE(seen_.notices().empty());
}

TEST_P(exporter_bound_memory, goodbye_of_the_exporter_removes_it) {
  const auto created = share("kv");
  grant(other, "kv");
  seen_.notices().clear();
  seen_.losses().clear();
  const auto asking = open(importer, "kv");
  static_cast<void>(only_question());
  domain_.disconnect(exporter, true);
  expect_failed(importer, asking, errc::no_such_segment, no_name);
  EXPECT_EQ(state_of(created), segment_state::removed);
  EXPECT_EQ(seen_.losses(), (std::vector<recorder::loss>{{other, created}}));
  ASSERT_EQ(seen_.notices().size(), 1U);
  EXPECT_EQ(seen_.notices()[0].kind, event_kind::removed);
  expect_failed_immediately("kv", errc::no_such_segment, no_name);
  EXPECT_TRUE(holds(other, created));
  domain_.release(other, created, 1);
  expect_no_segment_left();
}

TEST_P(exporter_bound_memory, end_of_the_exporters_lease_removes_it) {
  const auto created = share("kv");
  grant(importer, "kv");
  grant(exporter, "kv");
  seen_.notices().clear();
  seen_.losses().clear();
  domain_.release(exporter, created, 1);
  EXPECT_EQ(state_of(created), segment_state::live) << "it was granted twice";
  domain_.release(exporter, created, 1);
  EXPECT_EQ(state_of(created), segment_state::removed);
  EXPECT_EQ(seen_.losses(), (std::vector<recorder::loss>{{importer, created}}));
  ASSERT_EQ(seen_.notices().size(), 1U);
  EXPECT_EQ(seen_.notices()[0].kind, event_kind::removed);
  EXPECT_EQ(seen_.notices()[0].peer_pid, 101);
  expect_failed_immediately("kv", errc::no_such_segment, no_name);

  // Its later messages no longer affect the segment.
  seen_.notices().clear();
  seen_.losses().clear();
  const auto again = share("kv");
  domain_.disconnect(exporter, false);
  EXPECT_EQ(state_of(created), segment_state::removed);
  EXPECT_EQ(state_of(again), std::nullopt);
  EXPECT_TRUE(seen_.losses().empty());
  domain_.release(importer, created, 1);
  expect_no_segment_left();
}

TEST_P(exporter_bound_memory, death_does_not_affect_other_exporters) {
  share("kv");
  const auto others = share("other", other);
  const auto request = open(importer, "other");
  const auto asked = only_question();
  EXPECT_EQ(asked.exporter, other);
  domain_.disconnect(exporter, false);
  EXPECT_TRUE(seen_.replies().empty());
  EXPECT_EQ(state_of(others), segment_state::live);
  EXPECT_EQ(domain_.next_deadline(), at_ms(2'000));
  domain_.confirmed(other, asked.confirmation, verdict::unchanged);
  const reply got = only_reply();
  EXPECT_EQ(got.request, request);
  EXPECT_EQ(got.generation, others);
}

// ---- pending confirmations ----

TEST_P(exporter_bound_memory, not_granted_to_an_importer_that_left) {
  for (const bool clean : {true, false}) {
    const auto created = share("kv");
    static_cast<void>(open(importer, "kv"));
    const auto asked = only_question();
    const auto request = open(other, "kv");
    const auto asked_too = only_question();
    domain_.disconnect(importer, clean);
    EXPECT_EQ(domain_.next_deadline(), at_ms(2'000)) << "the other one still waits";
    domain_.confirmed(exporter, asked.confirmation, verdict::unchanged);
    domain_.confirmed(exporter, asked.confirmation, verdict::changed);
    EXPECT_TRUE(seen_.replies().empty());
    EXPECT_EQ(state_of(created), segment_state::live);
    domain_.confirmed(exporter, asked_too.confirmation, verdict::unchanged);
    EXPECT_EQ(only_reply().request, request);
    EXPECT_EQ(domain_.held(exporter, created).leases.size(), 2U);
    domain_.release(other, created, 1);
    domain_.release(exporter, created, 1);
    expect_no_segment_left();
    domain_.connect(importer, bob);
  }
}

TEST_P(exporter_bound_memory, not_granted_after_removal) {
  for (const bool held : {true, false}) {
    SCOPED_TRACE(held);
    const auto created = share("kv");
    const auto request = open(importer, "kv");
    const auto asked = only_question();
    domain_.remove(exporter, "kv");
    if (!held) {
      domain_.release(exporter, created, 1);
      EXPECT_TRUE(was_freed(created));
    }
    EXPECT_TRUE(seen_.replies().empty()) << "it ends with the exporter's reply or the deadline";
    domain_.confirmed(exporter, asked.confirmation, verdict::unchanged);
    expect_failed(importer, request, errc::no_such_segment, no_name);
    EXPECT_FALSE(holds(importer, created));
    domain_.release(exporter, created, 1);
    expect_no_segment_left();
  }
  const auto created = share("kv");
  const auto request = open(importer, "kv");
  static_cast<void>(only_question());
  domain_.remove(exporter, "kv", created);
  domain_.release(exporter, created, 1);
  domain_.at(at_ms(2'000)).tick();
  expect_failed(importer, request, errc::timed_out, not_replying);
  expect_no_segment_left();
}

TEST_P(exporter_bound_memory, reused_name_is_opened_again) {
  const auto created = share("kv");
  const auto request = open(importer, "kv");
  const auto asked = only_question();
  domain_.remove(exporter, "kv");
  const auto again = share("kv");
  domain_.confirmed(exporter, asked.confirmation, verdict::unchanged);
  EXPECT_TRUE(seen_.replies().empty());
  const auto asked_again = only_question();
  EXPECT_EQ(asked_again.generation, again);
  EXPECT_EQ(domain_.next_deadline(), at_ms(2'000)) << "the second question gets no more time";
  domain_.confirmed(exporter, asked.confirmation, verdict::changed);
  EXPECT_EQ(state_of(again), segment_state::live);
  domain_.confirmed(exporter, asked_again.confirmation, verdict::unchanged);
  const reply got = only_reply();
  EXPECT_EQ(got.request, request);
  EXPECT_EQ(got.generation, again);
  EXPECT_FALSE(holds(importer, created));
}

TEST_P(exporter_bound_memory, removed_memory_is_waited_for_until_the_deadline) {
  share("kv");
  const auto request = open(importer, "kv", at_ms(300));
  const auto asked = only_question();
  domain_.remove(exporter, "kv");
  domain_.confirmed(exporter, asked.confirmation, verdict::unchanged);
  EXPECT_TRUE(seen_.replies().empty());
  EXPECT_EQ(domain_.waiting_count(), 1U);
  EXPECT_EQ(domain_.next_deadline(), at_ms(300));
  domain_.at(at_ms(300)).tick();
  expect_failed(importer, request, errc::no_such_segment, no_name_within_the_timeout);
}

// ---- remove ----

TEST_P(exporter_bound_memory, remove_by_generation_needs_the_current_one) {
  const auto old = share("kv");
  domain_.remove(exporter, "kv", old);
  EXPECT_EQ(state_of(old), segment_state::removed);
  const auto created = share("kv");
  errc code{};
  for (const gpushm::generation wrong : {old, created + 1, ~gpushm::generation{0}}) {
    EXPECT_EQ(error_of([&] { domain_.remove(exporter, "kv", wrong); }, &code),
              "another segment has this name now: generation " + std::to_string(created) +
                  " (the generation that was meant has been removed; `gpushm ls` shows the one "
                  "that has the name)");
    EXPECT_EQ(to_string(code), to_string(errc::gone_or_replaced));
    EXPECT_EQ(state_of(created), segment_state::live);
  }
  EXPECT_EQ(
      error_of([&] { domain_.remove(importer, "kv", created); }, &code),
      "only its creator's connection, its uid in the same pod or container, or the broker's uid "
      "may remove a segment (ask uid 1000 to remove it)");
  EXPECT_EQ(to_string(code), to_string(errc::permission_denied));
  domain_.remove(exporter, "kv", created);
  EXPECT_EQ(state_of(created), segment_state::removed);
  domain_.release(exporter, old, 1);
  domain_.release(exporter, created, 1);
  expect_no_segment_left();
}

// ---- bounds ----

class bounded_sharing : public exporter_bound_memory {
 protected:
  bounded_sharing()
      : exporter_bound_memory({.max_segments = 8,
                               .quota_bytes = 8192,
                               .max_descriptors = 15,
                               .max_pending_opens = 3,
                               .confirm_timeout = milliseconds(70),
                               .max_dead_names = 2}) {}
  void die() {
    domain_.disconnect(exporter, false);
    domain_.connect(exporter, alice);
  }
};
INSTANTIATE_TEST_SUITE_P(kinds,
                         bounded_sharing,
                         testing::Values(backend::cuda_ipc, backend::cuda_pool),
                         kind_name);

TEST_P(bounded_sharing, newest_dead_names_are_remembered) {
  for (const char* name : {"a", "b", "c"}) {
    share(name);
    die();
  }
  expect_failed_immediately("a", errc::no_such_segment, no_name);
  expect_failed_immediately("b", errc::peer_died, died);
  expect_failed_immediately("c", errc::peer_died, died);
}

TEST_P(bounded_sharing, reshared_name_is_as_recent_as_its_last_death) {
  for (const char* name : {"a", "b", "a", "c"}) {
    share(name);
    die();
  }
  expect_failed_immediately("b", errc::no_such_segment, no_name);
  expect_failed_immediately("a", errc::peer_died, died);
  expect_failed_immediately("c", errc::peer_died, died);
}

TEST_P(bounded_sharing, confirmations_are_limited_per_connection) {
  share("kv");
  std::vector<std::uint64_t> asked;
  for (int i = 0; i < 3; ++i) {
    static_cast<void>(open(importer, "kv"));
    asked.push_back(only_question().confirmation);
  }
  const auto request = open(importer, "kv");
  EXPECT_TRUE(seen_.questions().empty());
  expect_failed(importer,
                request,
                errc::too_many_requests,
                "3 opens of this connection wait for exporters, the limit (open fewer segments at "
                "once)");
  static_cast<void>(open(other, "kv"));  // others have a separate limit
  static_cast<void>(only_question());
  domain_.confirmed(exporter, asked[1], verdict::unchanged);
  EXPECT_NE(only_reply().generation, 0U);
  static_cast<void>(open(importer, "kv"));
  static_cast<void>(only_question());
  domain_.at(at_ms(70)).tick();
  EXPECT_EQ(std::exchange(seen_.replies(), {}).size(), 4U);
  for (int i = 0; i < 3; ++i) {
    now_ms_ = 70;
    static_cast<void>(open(importer, "kv"));
    static_cast<void>(only_question());
  }
  die();
  ASSERT_EQ(seen_.replies().size(), 3U);
  for (const reply& each : std::exchange(seen_.replies(), {})) {
    EXPECT_EQ(to_string(each.code), to_string(errc::peer_died));
    EXPECT_EQ(each.text, died);
  }
  share("kv");
  static_cast<void>(open(importer, "kv"));
  domain_.confirmed(exporter, only_question().confirmation, verdict::unchanged);
  EXPECT_NE(only_reply().generation, 0U) << "the count was reset";
}

TEST_P(bounded_sharing, quota_is_charged_until_the_last_lease_ends) {
  const auto first = share("a");
  share("b");
  errc code{};
  EXPECT_EQ(error_of([&] { reserve("c"); }, &code),
            "no room for 4 KiB more segment memory of GPU-0: 8 KiB of 8 KiB are in use in this "
            "domain (remove segments that are not used, or raise the broker's quota)");
  EXPECT_EQ(to_string(code), to_string(errc::quota_exceeded));
  grant(importer, "a");
  die();
  EXPECT_EQ(domain_.allocated_bytes(), 4096U) << "a is mapped";
  EXPECT_EQ(state_of(first), segment_state::exporter_gone);
  domain_.release(importer, first, 1);
  expect_no_segment_left();
}

}  // namespace
}  // namespace gpushm::core
