// SPDX-License-Identifier: Apache-2.0
// Timeline pages, as the broker makes, gives, keeps and ends them (docs/adr/0032).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "base/process/signals.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/wire/messages.hpp"
#include "sync/cpu_wait.hpp"
#include "sync/timeline_page.hpp"
#include "sync/timeline_page_file.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::errc;
using gpushm::base::unique_fd;
using gpushm::sync::wait_result;
using gpushm_testing::body_of;
using gpushm_testing::eventually;
using gpushm_testing::failure_of;
using gpushm_testing::raw_session;
namespace sync = gpushm::sync;
namespace wire = gpushm::wire;

wire::reserve page_offer(const std::string& name) {
  wire::reserve result;
  result.name = name;
  result.size_bytes = sync::timeline_page_bytes;
  result.allocated_bytes = sync::timeline_page_bytes;
  result.chunk_count = 1;
  result.backend = gpushm::backend::signals;
  return result;
}

/// A page, mapped as its descriptor allows.
class mapped_page {
 public:
  mapped_page(int file, int protection)
      : address_(::mmap(nullptr, sync::timeline_page_bytes, protection, MAP_SHARED, file, 0)) {}
  mapped_page(const mapped_page&) = delete;
  mapped_page& operator=(const mapped_page&) = delete;
  ~mapped_page() {
    if (is_mapped()) {
      ::munmap(address_, sync::timeline_page_bytes);
    }
  }
  [[nodiscard]] bool is_mapped() const { return address_ != MAP_FAILED; }
  [[nodiscard]] void* bytes() const { return address_; }
  [[nodiscard]] sync::timeline_page& page() const {
    return *static_cast<sync::timeline_page*>(address_);
  }

 private:
  void* address_;
};

std::uint64_t allocated_bytes(int file) {
  struct stat info {};
  EXPECT_EQ(::fstat(file, &info), 0);
  return static_cast<std::uint64_t>(info.st_blocks) * 512;
}

/// As its signaler has it.
struct own_page {
  wire::reserve offer;
  unique_fd file;
  std::unique_ptr<mapped_page> memory;
};

class timeline_pages : public testing::Test {
 protected:
  void start() {
    broker_.emplace(run_dir_,
                    std::vector<std::string>{"--domain", "default", "--fence-delay-ms", "50"});
    static_cast<void>(gpushm_testing::patient_client(socket_));
  }
  [[nodiscard]] raw_session greeted() const { return raw_session::greeted(socket_); }

  own_page make(raw_session& session, const std::string& name) {
    own_page result;
    result.offer = page_offer(name);
    auto reply = session.request(result.offer);
    const auto* const reserved = body_of<wire::reserved>(reply);
    EXPECT_TRUE(reserved != nullptr && reply.descriptors.size() == 1);
    result.offer.generation = reserved->generation;
    result.offer.receipt = reserved->receipt;
    result.file = std::move(reply.descriptors.at(0));
    sync::fill_timeline_page(result.file.get(), sync::timeline_page_bytes);
    result.memory = std::make_unique<mapped_page>(result.file.get(), PROT_READ | PROT_WRITE);
    EXPECT_TRUE(result.memory->is_mapped());
    EXPECT_TRUE(body_of<wire::done>(session.request(wire::publish{reserved->generation, {}})));
    return result;
  }
  /// As a reader has it. Sets `receipt`, if it is not null.
  unique_fd open(raw_session& session,
                 const std::string& name,
                 std::optional<wire::receipt>* receipt = nullptr) {
    auto reply = session.request(wire::open{name});
    const auto* const opened = body_of<wire::opened>(reply);
    EXPECT_TRUE(opened != nullptr && reply.descriptors.size() == 1);
    if (receipt != nullptr) {
      *receipt = opened->receipt;
    }
    return std::move(reply.descriptors.at(0));
  }
  void lose() {
    broker_.reset();  // kills its process group
    start();
  }
  /// The answer to an offer of this page, with this file.
  static std::optional<errc> attach(raw_session& session, const own_page& page, int file) {
    const std::array<int, 1> files{file};
    return failure_of(session.request(
        wire::attach{page.offer.generation, 0, {sync::timeline_page_bytes}}, files));
  }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  std::optional<gpushm_testing::brokerd> broker_;
};

TEST_F(timeline_pages, only_their_process_can_write_them) {
  start();
  auto signaler = greeted();
  const own_page own = make(signaler, "page");
  auto reader = greeted();
  const unique_fd file = open(reader, "page");
  EXPECT_FALSE(mapped_page(file.get(), PROT_READ | PROT_WRITE).is_mapped());
  EXPECT_EQ(::ftruncate(file.get(), 0), -1);
  EXPECT_EQ(::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4'096), -1);
  const mapped_page seen(file.get(), PROT_READ);
  ASSERT_TRUE(seen.is_mapped());
  sync::timeline_writer writer(own.memory->page(), 5);
  writer.reset(0);
  EXPECT_EQ(writer.signal(7), sync::signal_result::done);
  EXPECT_EQ(sync::wait({seen.page(), 5}, 7, {}), wait_result::reached);
  // Neither can be made smaller, which would kill their readers.
  EXPECT_EQ(::ftruncate(own.file.get(), 0), -1);
  if (::geteuid() != 0) {
    return;
  }
  const pid_t other = ::fork();
  if (other == 0) {
    const std::string path = "/proc/self/fd/" + std::to_string(file.get());
    const bool is_member =
        ::setresgid(12'345, 12'345, 12'345) == 0 && ::setresuid(12'345, 12'345, 12'345) == 0;
    ::_exit(is_member && ::open(path.c_str(), O_RDWR | O_CLOEXEC) == -1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0) << "a member of another uid has opened it for writing";
}

TEST_F(timeline_pages, end_with_their_process) {
  start();
  for (const bool goodbye : {false, true}) {
    auto signaler = greeted();
    const own_page own = make(signaler, "page");
    auto reader = greeted();
    const unique_fd file = open(reader, "page");
    const mapped_page seen(file.get(), PROT_READ);
    for (std::uint32_t i = 0; i != sync::words_per_page; ++i) {
      sync::timeline_writer writer(own.memory->page(), i);
      if (i % 2 == 0) {  // the others are not marked as in use
        writer.reset(0);
      }
      writer.signal(i + 1);
    }
    sync::timeline_writer(own.memory->page(), 9).close(sync::word_kind::moved);
    std::vector<std::jthread> waiters;
    std::atomic<std::size_t> ended{0};
    for (std::uint32_t i = 0; i != 16; ++i) {
      waiters.emplace_back([&, i] {
        const auto result =
            sync::wait({seen.page(), i}, 1'000, std::chrono::steady_clock::now() + 20s);
        ended += result == (i == 9 ? wait_result::moved : wait_result::ended) ? 1U : 0U;
      });
    }
    if (goodbye) {
      signaler.send(wire::bye{});
    }
    signaler.hang_up();
    waiters.clear();
    EXPECT_EQ(ended, 16U);
    for (std::uint32_t i = 0; i != sync::words_per_page; ++i) {
      const auto found = sync::timeline_reader(seen.page(), i).read();
      EXPECT_EQ(found.value(), i + 1) << "its last value";
      EXPECT_EQ(found.kind(), i == 9 ? sync::word_kind::moved : sync::word_kind::ended);
    }
    reader.send(wire::bye{});
    // The first byte is stored before the others.
    EXPECT_TRUE(eventually(
        [&] { return sync::timeline_reader(seen.page(), 1).read().word == sync::ended_word; },
        10s));
    reader.hang_up();
    auto next = greeted();
    EXPECT_TRUE(eventually(
        [&] { return failure_of(next.request(wire::stat{"page"})) == errc::no_such_segment; },
        10s));
  }
}

/// The broker has no mapping that a hole could hurt.
TEST_F(timeline_pages, end_although_their_process_has_punched_holes) {
  start();
  auto signaler = greeted();
  const own_page own = make(signaler, "page");
  auto reader = greeted();
  const unique_fd file = open(reader, "page");
  ASSERT_EQ(::fallocate(own.file.get(),
                        FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        0,
                        static_cast<off_t>(sync::timeline_page_bytes)),
            0);
  const mapped_page seen(file.get(), PROT_READ);
  signaler.hang_up();
  EXPECT_EQ(sync::wait({seen.page(), 3}, 1, std::chrono::steady_clock::now() + 20s),
            wait_result::ended);
  EXPECT_TRUE(body_of<wire::listing>(greeted().request(wire::list{}))) << "the broker has ended";
}

/// A member pays for its pages also when the broker has forgotten them.
TEST_F(timeline_pages, have_no_memory_of_the_broker) {
  start();
  auto signaler = greeted();
  wire::reserve offer = page_offer("page");
  offer.size_bytes = offer.allocated_bytes = sync::max_timeline_page_bytes;
  auto reply = signaler.request(offer);
  const auto* const reserved = body_of<wire::reserved>(reply);
  ASSERT_TRUE(reserved != nullptr && reply.descriptors.size() == 1);
  const unique_fd file = std::move(reply.descriptors.at(0));
  EXPECT_EQ(allocated_bytes(file.get()), 0U);
  ASSERT_TRUE(body_of<wire::done>(signaler.request(wire::publish{reserved->generation, {}})));
  auto reader = greeted();
  const unique_fd seen = open(reader, "page");
  signaler.hang_up();
  EXPECT_TRUE(eventually(
      [&] {
        auto found = greeted().request(wire::stat{"page"});
        return !body_of<wire::listing>(found)->segments.at(0).creator_alive;
      },
      20s));
  EXPECT_LE(allocated_bytes(seen.get()), sync::ended_bytes) << "the ends of its words";

  auto client = gpushm_testing::patient_client(socket_);
  const auto timeline = gpushm::timeline::create(client, "t");
  const auto pages = client.list("~signals-");
  ASSERT_EQ(pages.size(), 1U);
  const unique_fd filled = open(reader, pages.front().name);
  EXPECT_EQ(allocated_bytes(filled.get()), sync::timeline_page_bytes) << "by the library";
}

TEST_F(timeline_pages, are_ended_by_a_successor) {
  start();
  auto signaler = greeted();
  const own_page own = make(signaler, "page");
  auto second = greeted();
  const own_page other = make(second, "other");
  auto reader = greeted();
  const unique_fd file = open(reader, "page");
  const mapped_page seen(file.get(), PROT_READ);
  const unique_fd other_file = open(reader, "other");
  const mapped_page other_seen(other_file.get(), PROT_READ);
  sync::timeline_writer writer(own.memory->page(), 0);
  writer.signal(4);
  ASSERT_TRUE(broker_->kill());
  writer.signal(5);
  EXPECT_EQ(sync::wait({seen.page(), 0}, 5, {}), wait_result::reached);
  // Also one that dies while there is no broker.
  const pid_t broker = broker_->pid();
  gpushm::base::signal_process(broker, SIGSTOP);
  second.hang_up();
  gpushm::base::signal_process(broker, SIGKILL);
  EXPECT_EQ(sync::wait({other_seen.page(), 1}, 1, std::chrono::steady_clock::now() + 20s),
            wait_result::ended);
  EXPECT_EQ(sync::try_wait({seen.page(), 0}, 6), wait_result::timed_out) << "it is alive";
  auto late = greeted();
  const unique_fd again = open(late, "page");
  EXPECT_FALSE(mapped_page(again.get(), PROT_READ | PROT_WRITE).is_mapped());
  signaler.hang_up();
  EXPECT_EQ(sync::wait({seen.page(), 0}, 6, std::chrono::steady_clock::now() + 20s),
            wait_result::ended);
}

TEST_F(timeline_pages, are_handed_back_after_a_loss) {
  start();
  auto signaler = greeted();
  const own_page own = make(signaler, "page");
  const own_page another = make(signaler, "another");
  sync::timeline_writer writer(own.memory->page(), 2);
  writer.signal(11);
  lose();
  auto again = greeted();
  auto reply = again.request(own.offer);
  ASSERT_TRUE(body_of<wire::reserved>(reply));
  EXPECT_TRUE(reply.descriptors.empty()) << "another page";
  const unique_fd forged = gpushm_testing::make_chunk(sync::timeline_page_bytes);
  EXPECT_EQ(attach(again, own, forged.get()), errc::wrong_descriptor_kind)
      << "not made by a broker";
  EXPECT_EQ(attach(again, own, another.file.get()), errc::wrong_descriptor_kind)
      << "its readers have the first one";
  ASSERT_EQ(attach(again, own, own.file.get()), std::nullopt);
  ASSERT_TRUE(body_of<wire::done>(again.request(wire::publish{own.offer.generation, {}})));
  auto reader = greeted();
  const unique_fd file = open(reader, "page");
  EXPECT_FALSE(mapped_page(file.get(), PROT_READ | PROT_WRITE).is_mapped());
  const mapped_page seen(file.get(), PROT_READ);
  EXPECT_EQ(sync::try_wait({seen.page(), 2}, 11), wait_result::reached);
  again.hang_up();
  EXPECT_EQ(sync::wait({seen.page(), 2}, 12, std::chrono::steady_clock::now() + 20s),
            wait_result::ended);
}

/// A reader hands it back, when its signaler has had the time to do so. It cannot end another one.
TEST_F(timeline_pages, end_if_their_signaler_does_not_come_back) {
  start();
  auto signaler = greeted();
  const own_page own = make(signaler, "page");
  const own_page other = make(signaler, "other");
  sync::timeline_writer(own.memory->page(), 2).signal(11);
  sync::timeline_writer(other.memory->page(), 2).signal(12);
  auto reader = greeted();
  wire::reserve offer = own.offer;
  offer.creator_uid = ::geteuid();
  const unique_fd file = open(reader, "page", &offer.receipt);
  const unique_fd other_file = open(reader, "other");
  const own_page mine = make(reader, "mine");  // it signals, too
  const mapped_page seen(file.get(), PROT_READ);
  lose();
  auto back = greeted();
  EXPECT_EQ(failure_of(back.request(offer)), errc::permission_denied) << "its signaler may come";
  EXPECT_EQ(sync::try_wait({seen.page(), 2}, 12), wait_result::timed_out);
  ASSERT_TRUE(body_of<wire::reserved>(back.request(other.offer)));
  ASSERT_EQ(attach(back, other, other.file.get()), std::nullopt);

  auto returns = greeted();
  ASSERT_TRUE(
      eventually([&] { return body_of<wire::reserved>(returns.request(offer)) != nullptr; }, 30s));
  EXPECT_EQ(attach(returns, own, other_file.get()), errc::wrong_descriptor_kind)
      << "the page of a process that lives";
  const unique_fd forged = gpushm_testing::make_chunk(sync::timeline_page_bytes);
  EXPECT_EQ(attach(returns, own, forged.get()), errc::wrong_descriptor_kind);
  // Another page in its place, with the same bytes, would be signaled by the reader.
  std::memcpy(mine.memory->bytes(), own.memory->bytes(), sync::timeline_page_bytes);
  const std::string path = "/proc/self/fd/" + std::to_string(mine.file.get());
  const unique_fd for_reading(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(for_reading);
  for (const int replacement : {mine.file.get(), for_reading.get()}) {
    EXPECT_EQ(attach(returns, own, replacement), errc::wrong_descriptor_kind);
  }
  EXPECT_EQ(attach(returns, own, own.file.get()), errc::wrong_descriptor_kind)
      << "a reader was given none that is open for writing";
  EXPECT_EQ(sync::try_wait({other.memory->page(), 2}, 13), wait_result::timed_out);
  EXPECT_EQ(sync::try_wait({seen.page(), 2}, 12), wait_result::timed_out);

  ASSERT_EQ(attach(returns, own, file.get()), std::nullopt);
  EXPECT_EQ(sync::try_wait({seen.page(), 2}, 12), wait_result::ended);
  EXPECT_EQ(sync::timeline_reader(seen.page(), 2).read().value(), 11U);
  EXPECT_EQ(sync::timeline_writer(own.memory->page(), 2).signal(12), sync::signal_result::closed);
  ASSERT_TRUE(body_of<wire::done>(returns.request(wire::publish{own.offer.generation, {}})));
  EXPECT_EQ(failure_of(back.request(own.offer)), errc::already_exists) << "too late";
  auto third = greeted();
  const unique_fd again = open(third, "page");
  EXPECT_FALSE(mapped_page(again.get(), PROT_READ | PROT_WRITE).is_mapped());
}

TEST_F(timeline_pages, leave_nothing) {
  start();
  static_cast<void>(greeted());
  const auto files = [&] {
    return gpushm_testing::total(gpushm_testing::count_descriptors(broker_->pid()));
  };
  ASSERT_TRUE(eventually([&] { return greeted().request(wire::list{}).message.has_value(); }, 20s));
  const std::size_t before = files();
  for (int round = 0; round != 100; ++round) {
    auto session = greeted();
    for (int i = 0; i != 3; ++i) {
      make(session, "page" + std::to_string(3 * round + i));
    }
    session.send(wire::bye{});
    session.hang_up();
  }
  EXPECT_TRUE(eventually([&] { return files() <= before; }, 10s))
      << files() << " descriptors, before " << before;
}

TEST_F(timeline_pages, have_sizes_within_limits) {
  start();
  auto session = greeted();
  wire::reserve wanted = page_offer("page");
  for (const std::uint64_t bytes :
       {4'096UL, sync::timeline_page_bytes + 1, sync::max_timeline_page_bytes + 4'096}) {
    wanted.size_bytes = wanted.allocated_bytes = bytes;
    EXPECT_EQ(failure_of(session.request(wanted)), errc::size_mismatch) << bytes;
  }
  wanted.size_bytes = wanted.allocated_bytes = sync::max_timeline_page_bytes;
  {
    auto other = greeted();
    EXPECT_EQ(other.request(wanted).descriptors.size(), 1U);
  }
  wanted = page_offer("other");
  wanted.lifetime = gpushm::lifetime::persistent;
  EXPECT_EQ(failure_of(session.request(wanted)), errc::invalid_argument);
  wanted = page_offer("other");
  wanted.chunk_count = 2;
  EXPECT_EQ(failure_of(session.request(wanted)), errc::invalid_argument);
  const own_page own = make(session, "third");
  const std::array<int, 1> more{own.file.get()};
  EXPECT_EQ(failure_of(session.request(
                wire::attach{own.offer.generation, 1, {sync::timeline_page_bytes}}, more)),
            errc::wrong_descriptor_count);
}

// ---- names of timelines ----

wire::reserve timeline_offer(const std::string& name) {
  wire::reserve result;
  result.name = name;
  result.size_bytes = 8;
  result.allocated_bytes = 8;
  result.backend = gpushm::backend::timeline;
  result.ticket = {std::byte{1}, std::byte{2}};
  return result;
}

TEST_F(timeline_pages, names_of_timelines_end_with_their_creator) {
  start();
  auto creator = greeted();
  const auto reply = creator.request(timeline_offer("t"));
  const auto* const reserved = body_of<wire::reserved>(reply);
  ASSERT_NE(reserved, nullptr);
  ASSERT_TRUE(body_of<wire::done>(creator.request(wire::publish{reserved->generation, {}})));
  auto reader = greeted();
  const auto got = reader.request(wire::open{"t"});
  const auto* const opened = body_of<wire::opened>(got);
  ASSERT_NE(opened, nullptr) << "no question to its creator";
  EXPECT_EQ(opened->ticket, timeline_offer("t").ticket);
  EXPECT_TRUE(got.descriptors.empty());
  creator.hang_up();
  auto next = greeted();
  EXPECT_TRUE(eventually(
      [&] { return body_of<wire::reserved>(next.request(timeline_offer("t"))) != nullptr; }, 10s))
      << "its reader keeps the name";
}

TEST_F(timeline_pages, clients_of_earlier_versions_do_not_see_them) {
  start();
  auto creator = greeted();
  make(creator, "page");
  const auto reply = creator.request(timeline_offer("t"));
  ASSERT_TRUE(body_of<wire::done>(
      creator.request(wire::publish{body_of<wire::reserved>(reply)->generation, {}})));
  raw_session old(socket_);
  wire::hello hello;
  hello.takes_tables = true;
  old.greet(hello);
  EXPECT_TRUE(body_of<wire::listing>(old.request(wire::list{}))->segments.empty());
  EXPECT_EQ(failure_of(old.request(wire::stat{"t"})), errc::no_such_segment);
  EXPECT_EQ(failure_of(old.request(wire::open{"t"})), errc::no_such_segment);
  EXPECT_EQ(failure_of(old.request(wire::open{"page"})), errc::no_such_segment);
  EXPECT_TRUE(body_of<wire::subscribed>(old.request(wire::subscribe{}))->segments.empty());
  // Also after it was continued.
  ASSERT_TRUE(broker_->kill());
  EXPECT_TRUE(body_of<wire::listing>(old.request(wire::list{}))->segments.empty());
  EXPECT_EQ(body_of<wire::listing>(creator.request(wire::list{}))->segments.size(), 2U);
}

}  // namespace
