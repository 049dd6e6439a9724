// SPDX-License-Identifier: Apache-2.0
// Descriptors that clients attach and receive.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "broker/hub/closer.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "succession/recorder/state_table_file.hpp"
#include "sync/timeline_page.hpp"
#include "sync/timeline_page_file.hpp"
#include "sync/word.hpp"
#include "tests/broker/hub_world.hpp"

namespace gpushm::broker_detail {
namespace {

using namespace testing_world;

class hub_chunks : public hub_test {};

base::unique_fd opened_file(const char* path, int flags) {
  base::unique_fd fd(::open(path, flags | O_CLOEXEC));
  EXPECT_TRUE(fd) << path;
  return fd;
}

base::unique_fd read_only_memfd() {
  const auto whole = memfd(4096);
  return opened_file(("/proc/self/fd/" + std::to_string(whole.get())).c_str(), O_RDONLY);
}

base::unique_fd pipe_end() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[1]);
  return base::unique_fd(ends[0]);
}

TEST_F(hub_chunks, host_chunks_must_be_sealed_memfds_of_the_announced_size) {
  struct {
    const char* what;
    base::unique_fd (*make)();
  } const cases[] = {
      {"a pipe", [] { return pipe_end(); }},
      {"/dev/null", [] { return opened_file("/dev/null", O_RDWR); }},
      {"a directory", [] { return opened_file("/", O_RDONLY); }},
      {"a file", [] { return opened_file("/proc/self/exe", O_RDONLY); }},
      {"an unsealed memfd", [] { return memfd(4096, 0); }},
      {"a memfd without SHRINK", [] { return memfd(4096, F_SEAL_GROW | F_SEAL_SEAL); }},
      {"a memfd without GROW", [] { return memfd(4096, F_SEAL_SHRINK | F_SEAL_SEAL); }},
      {"a memfd without SEAL", [] { return memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW); }},
      {"a read-only memfd", [] { return read_only_memfd(); }},
      {"a smaller memfd", [] { return memfd(4095); }},
      {"a larger memfd", [] { return memfd(8192); }},
      {"an empty memfd", [] { return memfd(0); }},
      {"nothing", [] { return base::unique_fd(); }},
  };
  const auto session = greet();
  const auto created = reserve(session, "kv", 2);
  for (const auto& each : cases) {
    const std::size_t before = open_descriptors();
    EXPECT_EQ(
        failure(round_trip(session,
                           wire::attach{created, 0, {4096, 4096}},
                           descriptors(memfd(4096), each.make()))),
        "wrong_descriptor_kind: a host chunk is not a memfd of the announced size, sealed with "
        "SHRINK, GROW and SEAL (seal the memfd before it is attached)")
        << each.what;
    EXPECT_EQ(open_descriptors(), before) << each.what;
  }
  expect<wire::done>(round_trip(
      session, wire::attach{created, 0, {4096, 4096}}, descriptors(memfd(4096), memfd(4096))));
  expect<wire::done>(round_trip(session, wire::publish{created, {}}));
  expect_nothing_left();
}

TEST_F(hub_chunks, gpu_chunks_must_not_be_memfds) {
  const auto session = greet();
  wire::reserve wanted{"kv", 4096, 4096, {}, 1, backend::cuda_vmm, lifetime::leased};
  wanted.device.kind = device_kind::gpu;
  const auto created = expect<wire::reserved>(round_trip(session, wanted)).generation;
  EXPECT_EQ(
      failure(round_trip(session, wire::attach{created, 0, {4096}}, descriptors(memfd(4096)))),
      "wrong_descriptor_kind: a GPU chunk is not a descriptor of /dev/nvidiactl (attach the "
      "descriptor that cuMemExportToShareableHandle returned)");
  EXPECT_EQ(failure(round_trip(session,
                               wire::attach{created, 0, {4096}},
                               descriptors(opened_file("/dev/null", O_RDWR)))),
            "wrong_descriptor_kind: a GPU chunk is not a descriptor of /dev/nvidiactl (attach the "
            "descriptor that cuMemExportToShareableHandle returned)");
  expect_nothing_left();
}

TEST_F(hub_chunks, attach_needs_the_announced_number_and_order) {
  const auto session = greet();
  const auto created = reserve(session, "kv", 3);
  EXPECT_EQ(failure(round_trip(
                session, wire::attach{created, 0, {4096, 4096}}, descriptors(memfd(4096)))),
            "wrong_descriptor_count: 1 descriptors received with a message that announces 2 (send "
            "exactly the announced descriptors)");
  EXPECT_EQ(failure(round_trip(session, wire::attach{created, 0, {4096}}, {})),
            "wrong_descriptor_count: 0 descriptors received with a message that announces 1 (send "
            "exactly the announced descriptors)");
  EXPECT_EQ(
      failure(round_trip(session, wire::attach{created, 1, {4096}}, descriptors(memfd(4096)))),
      "wrong_descriptor_count: chunks 1 to 2 do not follow the 0 of 3 attached chunks "
      "(attach the announced chunks in order)");
  expect<wire::done>(
      round_trip(session, wire::attach{created, 0, {4096}}, descriptors(memfd(4096))));
  EXPECT_EQ(
      failure(round_trip(session, wire::publish{created, {}})),
      "wrong_descriptor_count: 1 of 3 announced chunks are attached (attach all chunks before "
      "publishing)");
  EXPECT_EQ(failure(round_trip(session,
                               wire::attach{created, 1, {4096, 4096, 4096}},
                               descriptors(memfd(4096), memfd(4096), memfd(4096)))),
            "wrong_descriptor_count: chunks 1 to 4 do not follow the 1 of 3 attached chunks "
            "(attach the announced chunks in order)");
  EXPECT_EQ(
      failure(round_trip(greet(), wire::attach{created, 1, {4096}}, descriptors(memfd(4096)))),
      "permission_denied: only the connection that reserved a segment may attach its chunks "
      "(create it on this connection)");
  expect_nothing_left();
}

TEST_F(hub_chunks, chunk_sizes_must_add_up_to_the_reserved_bytes) {
  const auto session = greet();
  const std::string text =
      "size_mismatch: the chunks' sizes do not add up to the reserved bytes (attach chunks that "
      "add up to the reserved bytes)";
  const auto created = reserve(session, "kv", 2);
  EXPECT_EQ(
      failure(round_trip(
          session, wire::attach{created, 0, {4096, 8192}}, descriptors(memfd(4096), memfd(8192)))),
      text);
  EXPECT_EQ(
      failure(round_trip(
          session, wire::attach{created, 0, {4096, 2048}}, descriptors(memfd(4096), memfd(2048)))),
      text);
  EXPECT_EQ(failure(round_trip(
                session, wire::attach{created, 0, {8192, 0}}, descriptors(memfd(8192), memfd(0)))),
            text);
  expect<wire::done>(
      round_trip(session, wire::attach{created, 0, {4096}}, descriptors(memfd(4096))));
  EXPECT_EQ(
      failure(round_trip(session, wire::attach{created, 1, {2048}}, descriptors(memfd(2048)))),
      text);
  expect<wire::done>(
      round_trip(session, wire::attach{created, 1, {4096}}, descriptors(memfd(4096))));
  expect<wire::done>(round_trip(session, wire::publish{created, {}}));
  const auto found = expect<wire::opened>(round_trip(greet(), wire::open{"kv", 0, 0}));
  EXPECT_EQ(found.chunk_bytes, (std::vector<std::uint64_t>{4096, 4096}));
  expect_nothing_left();
}

// Openers map chunks back to back: a name that nobody can open would be published.
TEST_F(hub_chunks, only_the_last_host_chunk_ends_within_a_page) {
  const auto session = greet();
  const auto created = reserve(session, "kv", 2, lifetime::leased, 4500);
  const std::string text =
      "size_mismatch: a host chunk that another one follows is not a multiple of the page size, so "
      "that chunks cannot be mapped back to back (attach whole pages; only the last chunk can end "
      "within one)";
  EXPECT_EQ(
      failure(round_trip(
          session, wire::attach{created, 0, {4500, 4500}}, descriptors(memfd(4500), memfd(4500)))),
      text);
  EXPECT_EQ(
      failure(round_trip(session, wire::attach{created, 0, {4500}}, descriptors(memfd(4500)))),
      text);
  expect<wire::done>(
      round_trip(session, wire::attach{created, 0, {4096}}, descriptors(memfd(4096))));
  expect<wire::done>(
      round_trip(session, wire::attach{created, 1, {4904}}, descriptors(memfd(4904))));
  expect<wire::done>(round_trip(session, wire::publish{created, {}}));
  expect_nothing_left();
}

TEST_F(hub_chunks, chunks_are_closed_if_the_creator_dies_before_publish) {
  const std::size_t before = open_descriptors();
  const auto session = greet();
  const auto reader = greet();
  const auto created = reserve(session, "kv", 3, lifetime::persistent);
  expect<wire::done>(round_trip(
      session, wire::attach{created, 0, {4096, 4096}}, descriptors(memfd(4096), memfd(4096))));
  take(session);
  EXPECT_EQ(open_descriptors(), before + 2);
  hub_.hang_up(session);
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(hub_.domain().segment_count(), 0U);
  reserve(reader, "kv");
  expect_nothing_left();
}

TEST_F(hub_chunks, chunks_stay_open_while_a_packet_carries_them) {
  const auto creator = greet();
  make(creator, "kv");
  const auto reader = greet();
  auto replies = round_trip(reader, wire::open{"kv", 0, 0});
  expect<wire::opened>(replies);
  hub_.hang_up(creator);
  hub_.hang_up(reader);
  EXPECT_EQ(hub_.domain().segment_count(), 0U);
  ASSERT_EQ(replies[0].descriptors.size(), 1U);
  const int chunk = replies[0].descriptors[0];
  EXPECT_NE(::fcntl(chunk, F_GETFD), -1);
  replies.clear();
  EXPECT_EQ(::fcntl(chunk, F_GETFD), -1);
  expect_nothing_left();
}

TEST_F(hub_chunks, chunks_are_fetched_in_batches) {
  constexpr std::uint32_t count = 600;
  const auto creator = greet();
  const auto created = reserve(creator, "kv", count, lifetime::leased, 6144);
  // Different sizes identify the chunks; the total is the same.
  const auto size_of = [](std::uint32_t i) { return std::uint64_t{i % 2 == 0 ? 4096U : 8192U}; };
  for (std::uint32_t first = 0; first < count; first += 253) {
    wire::attach batch{created, first, {}};
    std::vector<base::unique_fd> fds;
    for (std::uint32_t i = first; i < std::min(count, first + 253); ++i) {
      batch.chunk_bytes.push_back(size_of(i));
      fds.push_back(memfd(size_of(i)));
    }
    expect<wire::done>(round_trip(creator, batch, std::move(fds)));
  }
  expect<wire::done>(round_trip(creator, wire::publish{created, {}}));

  const auto reader = greet();
  auto replies = round_trip(reader, wire::open{"kv", 0, 0});
  auto sizes = expect<wire::opened>(replies).chunk_bytes;
  EXPECT_EQ(sizes.size(), 253U);
  std::vector<int> fds = replies[0].descriptors;
  while (sizes.size() < count) {
    const auto more =
        round_trip(reader, wire::fetch_chunks{created, static_cast<std::uint32_t>(sizes.size())});
    const auto batch = expect<wire::chunks>(more);
    ASSERT_FALSE(batch.chunk_bytes.empty());
    EXPECT_EQ(batch.generation, created);
    EXPECT_EQ(batch.first_chunk, sizes.size());
    EXPECT_EQ(batch.chunk_bytes.size(), more[0].descriptors.size());
    sizes.insert(sizes.end(), batch.chunk_bytes.begin(), batch.chunk_bytes.end());
    fds.insert(fds.end(), more[0].descriptors.begin(), more[0].descriptors.end());
  }
  ASSERT_EQ(sizes.size(), count);
  for (std::uint32_t i = 0; i < count; ++i) {
    struct stat info {};
    ASSERT_EQ(::fstat(fds[i], &info), 0);
    EXPECT_EQ(sizes[i], size_of(i));
    EXPECT_EQ(static_cast<std::uint64_t>(info.st_size), size_of(i));
  }
  replies.clear();  // closes their descriptors
  EXPECT_EQ(failure(round_trip(reader, wire::fetch_chunks{created, count})),
            "invalid_argument: the segment has only 600 chunks (request chunks that exist)");
  EXPECT_EQ(failure(round_trip(greet(), wire::fetch_chunks{created, 0})),
            "stale_generation: generation 1 is gone, or does not belong to this connection (open "
            "the segment again by name)");
  expect_nothing_left();
}

TEST_F(hub_chunks, reservation_has_no_chunks_and_a_live_slot) {
  const auto session = greet();
  const auto replies = round_trip(session, wire::reserve{"kv", 4096, 4096, {}, 1, {}, {}});
  const auto created = expect<wire::reserved>(replies);
  EXPECT_TRUE(replies[0].descriptors.empty());
  EXPECT_EQ(slots_.at(created.slot), std::make_pair(created.generation, segment_state::live));
  expect_nothing_left();
}

/// A hub that closes files in another thread, as a server's does.
TEST_F(hub_chunks, a_timeline_page_costs_the_same_after_a_restart) {
  const auto creator = greet();
  wire::reserve wanted;
  wanted.name = "page";
  wanted.size_bytes = wanted.allocated_bytes = sync::max_timeline_page_bytes;
  wanted.chunk_count = 1;
  wanted.backend = backend::signals;
  const auto page = expect<wire::reserved>(round_trip(creator, wanted)).generation;
  expect<wire::done>(round_trip(creator, wire::publish{page, {}}));
  make(creator, "memory", lifetime::persistent);
  const core::domain& before = hub_.domain();
  core::saved_state saved = before.save();
  const core::domain after("default", broker_uid, before.bounds(), nullptr, saved);
  for (std::size_t i = 0; i != core::resource_count; ++i) {
    const auto what = static_cast<core::resource>(i);
    EXPECT_EQ(after.budget().used(what), before.budget().used(what)) << "resource " << i;
  }
  EXPECT_LT(before.budget().used(core::resource::memory_bytes), sync::max_timeline_page_bytes)
      << "it is the member's memory";
  round_trip(creator, wire::remove{"memory"});
  expect_nothing_left();
}

/// Signaler and reader of timeline pages.
class hub_pages : public hub_test {
 protected:
  explicit hub_pages(const core::limits& bounds = {}) : hub_test(bounds) {}

  core::session_id greet_reader() {
    const auto session = accept({201, 2000, true});
    wire::hello hello;
    hello.known_kinds = wire::known_kinds;
    expect<wire::welcome>(round_trip(session, std::move(hello)));
    return session;
  }
  /// Of the largest size, with so much memory of this process, in place of the member. A copy of
  /// the descriptor stays open.
  gpushm::generation make_page(core::session_id creator, std::uint64_t filled) {
    wire::reserve wanted;
    wanted.name = "page";
    wanted.size_bytes = wanted.allocated_bytes = sync::max_timeline_page_bytes;
    wanted.chunk_count = 1;
    wanted.backend = backend::signals;
    const auto reply = round_trip(creator, wanted);
    const auto page = expect<wire::reserved>(reply).generation;
    file_ = base::unique_fd(::fcntl(reply.at(0).descriptors.at(0), F_DUPFD_CLOEXEC, 0));
    EXPECT_EQ(allocated_bytes(), 0U);
    if (filled != 0) {
      sync::fill_timeline_page(file_.get(), filled);
    }
    expect<wire::done>(round_trip(creator, wire::publish{page, {}}));
    return page;
  }
  [[nodiscard]] std::uint64_t allocated_bytes() const {
    struct stat info {};
    EXPECT_EQ(::fstat(file_.get(), &info), 0);
    return static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  [[nodiscard]] std::uint64_t first_word() const {
    std::uint64_t result = 0;
    EXPECT_EQ(::pread(file_.get(), &result, sizeof result, 0), static_cast<ssize_t>(sizeof result));
    return result;
  }
  [[nodiscard]] std::uint64_t charged() const {
    return hub_.domain().budget().used(core::resource::memory_bytes);
  }

  base::unique_fd file_;
};

/// The broker writes the ends of words whose memory the member has not filled. It cannot see how
/// long that is kept.
TEST_F(hub_pages, ends_in_holes_stay_charged) {
  const auto reader = greet_reader();
  const std::uint64_t before = charged();
  for (const std::uint64_t filled : {sync::max_timeline_page_bytes, std::size_t{4'096}}) {
    const auto creator = greet();
    const auto page = make_page(creator, filled);
    expect<wire::opened>(round_trip(reader, wire::open{"page"}));
    hub_.hang_up(creator);
    EXPECT_EQ(first_word(), sync::ended_word);
    EXPECT_EQ(allocated_bytes(), std::max<std::uint64_t>(filled, sync::ended_bytes));
    round_trip(reader, wire::release{page, 1});
    EXPECT_EQ(charged(), before + (filled == 4'096 ? sync::ended_bytes : 0));
    EXPECT_EQ(hub_.domain().segment_count(), 0U);
  }
  file_.reset();
  expect_nothing_left();
  EXPECT_EQ(charged(), sync::ended_bytes);
}

class hub_pages_without_memory : public hub_pages {
 protected:
  hub_pages_without_memory() : hub_pages({.max_memory_bytes = 256'000}) {}
};

TEST_F(hub_pages_without_memory, ends_in_holes_are_left_out) {
  const auto reader = greet_reader();
  const auto creator = greet();
  const auto page = make_page(creator, 0);
  const std::uint32_t used = sync::in_use;
  const auto flag = static_cast<off_t>(offsetof(sync::timeline_page, flags));
  ASSERT_EQ(::pwrite(file_.get(), &used, sizeof used, flag), static_cast<ssize_t>(sizeof used));
  const std::uint64_t filled = allocated_bytes();
  expect<wire::opened>(round_trip(reader, wire::open{"page"}));
  core::charges charges = hub_.new_charges(*hub_.find(creator));
  charges.charge(core::resource::memory_bytes, 1'000'000);
  hub_.hang_up(creator);
  charges.reset();
  EXPECT_EQ(first_word(), 0U);
  EXPECT_EQ(allocated_bytes(), filled);
  round_trip(reader, wire::release{page, 1});
  file_.reset();
  expect_nothing_left();
  EXPECT_EQ(charged(), 0U);
}

TEST(hub_with_closer, closes_what_is_not_handled_without_another_request) {
  recorded_outbox out;
  hub::config options;
  options.closer = std::make_shared<closer>();
  hub at(
      options,
      out,
      [](void*, std::uint32_t, gpushm::generation, std::optional<segment_state>) {},
      nullptr);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const base::unique_fd reader(ends[0]);
  std::vector<succession::kept_fd> files;
  files.emplace_back(base::guarded_fd(base::unique_fd(ends[1])));
  at.discard(std::move(files));
  EXPECT_TRUE(transport::wait_readable(reader.get(), std::chrono::seconds(10)));  // end of file
}

TEST(state_table_file, only_the_creator_can_write) {
  const gpushm::epoch epoch{4, 5, 6};
  succession::state_table_file table(8, epoch, false);
  const std::size_t bytes = wire::state_table_bytes(8);
  EXPECT_EQ(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, table.descriptor(), 0),
            MAP_FAILED);
  EXPECT_EQ(::pwrite(table.descriptor(), &bytes, 1, 0), -1);
  EXPECT_EQ(::ftruncate(table.descriptor(), 0), -1);
  const auto mapping = base::map_file("test", table.descriptor(), bytes, false);
  const wire::state_table_view view(mapping.get().address, bytes, epoch);
  ASSERT_TRUE(view);
  EXPECT_FALSE(view.broker_alive());
  table.lock();
  EXPECT_TRUE(view.broker_alive());
  table.set(7, 99, segment_state::live);
  EXPECT_EQ(view.state(7, 99), segment_state::live);
  table.set(7, 99, segment_state::exporter_gone);
  EXPECT_EQ(view.state(7, 99), segment_state::exporter_gone);
  table.set(7, 99, segment_state::removed);
  EXPECT_EQ(view.state(7, 99), segment_state::removed);
  table.set(7, 99, std::nullopt);
  table.set(7, 100, segment_state::live);
  EXPECT_EQ(view.state(7, 99), segment_state::removed);
  EXPECT_EQ(view.state(7, 100), segment_state::live);
  table.unlock();
  EXPECT_FALSE(view.broker_alive());
}

}  // namespace
}  // namespace gpushm::broker_detail
