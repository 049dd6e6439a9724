// SPDX-License-Identifier: Apache-2.0
// The state tables of brokerd and its successors: each process writes one, which no other process
// can write, and clients go from one to the next.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/files/file.hpp"
#include "base/files/unique_fd.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"
#include "protocol/wire/state_table.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::segment_state;
using gpushm::base::unique_fd;
using gpushm_testing::eventually;
using gpushm_testing::raw_session;
namespace wire = gpushm::wire;

/// What a member sees of a table that it was given, and tries with it.
class member_table {
 public:
  explicit member_table(int file) : file_(::fcntl(file, F_DUPFD_CLOEXEC, 0)) {
    struct stat found {};
    EXPECT_EQ(::fstat(file_.get(), &found), 0);
    inode_ = found.st_ino;
    mapping_ =
        gpushm::base::map_file("test", file_.get(), static_cast<std::size_t>(found.st_size), false);
  }

  [[nodiscard]] const wire::state_table_header& header() const {
    return *static_cast<const wire::state_table_header*>(mapping_.get().address);
  }
  [[nodiscard]] std::uint32_t owner() const {
    return std::atomic_ref<const std::uint32_t>(header().owner_futex).load();
  }
  [[nodiscard]] ino_t inode() const { return inode_; }
  [[nodiscard]] std::vector<std::byte> bytes() const {
    const auto* const first = static_cast<const std::byte*>(mapping_.get().address);
    return {first, first + mapping_.get().size_bytes};
  }
  /// Slots with a segment.
  [[nodiscard]] std::int64_t used() const {
    const auto* const words = reinterpret_cast<const std::uint64_t*>(
        static_cast<const std::byte*>(mapping_.get().address) + wire::state_table_words_offset);
    return header().slots - std::count(words, words + header().slots, 0);
  }

  /// As root, also with the descriptor opened again.
  void expect_not_writable() const {
    const unique_fd again(
        ::open(("/proc/self/fd/" + std::to_string(file_.get())).c_str(), O_RDWR | O_CLOEXEC));
    const std::size_t size = mapping_.get().size_bytes;
    for (const int file : {file_.get(), again.get()}) {
      const std::uint64_t word = 1;
      EXPECT_EQ(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), MAP_FAILED);
      EXPECT_EQ(::pwrite(file, &word, sizeof word, wire::state_table_words_offset), -1);
      EXPECT_NE(::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4'096), 0);
      EXPECT_NE(::ftruncate(file, 0), 0);
    }
    EXPECT_NE(::mprotect(mapping_.get().address, size, PROT_READ | PROT_WRITE), 0);
  }

 private:
  unique_fd file_;
  ino_t inode_ = 0;
  gpushm::base::unique_mapping mapping_;
};

/// Tables of which this process has a descriptor.
std::size_t tables_of(pid_t process) {
  std::size_t result = 0;
  for (const auto& each :
       std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd")) {
    std::error_code closed_meanwhile;
    const auto target = std::filesystem::read_symlink(each.path(), closed_meanwhile).string();
    result += target.find("gpushm-state") != std::string::npos ? 1U : 0U;
  }
  return result;
}

/// Also if the connection ends during the request, because the pause was too long for it.
template <typename Request>
auto insist(Request&& request) {
  const auto deadline = gpushm_testing::deadline_after(20s);
  for (;;) {
    try {
      return request();
    } catch (const gpushm::error& why) {
      if (why.code() != gpushm::errc::broker_gone || gpushm_testing::clock::now() > deadline) {
        throw;
      }
    }
  }
}

class brokerd_tables : public testing::Test {
 protected:
  explicit brokerd_tables(const std::string& fence_delay_ms = "50")
      : broker_(
            std::in_place,
            run_dir_,
            std::vector<std::string>{"--domain", "default", "--fence-delay-ms", fence_delay_ms}) {}

  [[nodiscard]] gpushm::client connect() const { return gpushm_testing::patient_client(socket_); }
  static gpushm::segment create(gpushm::client& client, const std::string& name) {
    gpushm::segment created = client.create(
        name, {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
    created.publish();
    return created;
  }
  /// The table of a member that connects now.
  [[nodiscard]] member_table table() const {
    return member_table(raw_session::greeted(socket_).state_table());
  }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  std::optional<gpushm_testing::brokerd> broker_;
};

/// The table of the successor, which comes on the other lane than answers.
member_table next_table(raw_session& session, const member_table& before) {
  EXPECT_TRUE(eventually(
      [&] {
        static_cast<void>(session.receive(100ms));
        return member_table(session.state_table()).inode() != before.inode();
      },
      20s));
  return member_table(session.state_table());
}

TEST_F(brokerd_tables, are_written_by_their_broker_only_and_show_the_same_states) {
  gpushm::client creator = connect();
  gpushm::client reader = connect();
  const gpushm::segment live = create(creator, "live");
  const gpushm::segment removed = create(creator, "removed");
  auto orphans = raw_session::greeted(socket_);
  ASSERT_NE(gpushm_testing::publish_segment(orphans, gpushm_testing::reserve_pages("orphan", 1)),
            0U);
  const gpushm::segment orphan = reader.open("orphan");
  orphans.hang_up();
  creator.remove("removed");
  ASSERT_TRUE(eventually([&] { return orphan.state() == segment_state::exporter_gone; }, 20s));

  auto member = raw_session::greeted(socket_);
  for (int i = 0; i != 3; ++i) {
    SCOPED_TRACE(i);
    const member_table before(member.state_table());
    before.expect_not_writable();
    ASSERT_TRUE(broker_->kill());
    static_cast<void>(insist([&] { return creator.stat("live"); }));
    const std::vector<std::byte> left = before.bytes();
    EXPECT_EQ(before.owner(), FUTEX_OWNER_DIED);
    before.expect_not_writable();

    // To a member that was connected, and to a new one.
    const member_table now = next_table(member, before);
    EXPECT_EQ(table().inode(), now.inode());
    now.expect_not_writable();
    EXPECT_EQ(now.used(), before.used());
    wire::state_table_header expected = before.header();
    expected.owner_futex = now.owner();
    EXPECT_EQ(std::memcmp(&now.header(), &expected, sizeof(expected)), 0);

    EXPECT_TRUE(eventually([&] { return live.state() == segment_state::live; }, 20s));
    EXPECT_TRUE(eventually([&] { return removed.state() == segment_state::removed; }, 20s));
    EXPECT_TRUE(eventually([&] { return orphan.state() == segment_state::exporter_gone; }, 20s));
    static_cast<void>(
        insist([&] { return create(creator, "new" + std::to_string(i)).generation(); }));
    EXPECT_EQ(now.used(), before.used() + 1);
    EXPECT_EQ(before.bytes(), left) << "written after the end of its broker";
    EXPECT_EQ(tables_of(broker_->keeper().pid()), 0U);
  }

  // Readers see the end of the domain.
  const member_table final_table(member.state_table());
  broker_.reset();
  EXPECT_TRUE(eventually([&] { return live.state() == segment_state::broker_gone; }, 20s));
  final_table.expect_not_writable();
}

/// By name and from the cache, at every moment of the replacement.
TEST_F(brokerd_tables, never_show_a_segment_that_a_successor_has_removed) {
  gpushm::client owner = connect();
  gpushm::client user = connect();
  static_cast<void>(create(owner, "w"));
  for (int i = 0; i != 5; ++i) {
    const auto hits = [&] { return user.cache_stats().hits; };
    const std::uint64_t before = hits();
    EXPECT_TRUE(eventually(
        [&] {
          static_cast<void>(insist([&] { return user.open("w").generation(); }));
          return hits() != before;
        },
        20s))
        << "not cached";
    ASSERT_TRUE(broker_->kill());
    try {
      insist([&] {
        owner.remove("w");
        return 0;
      });
    } catch (const gpushm::error& why) {  // repeated although it had been done
      EXPECT_EQ(why.code(), gpushm::errc::no_such_segment);
    }
    EXPECT_EQ(insist([&] { return user.try_open("w").has_value(); }), false);
    const gpushm::generation next = insist([&] {
      try {
        return create(owner, "w").generation();
      } catch (const gpushm::error& why) {
        if (why.code() != gpushm::errc::already_exists) {
          throw;
        }
        return owner.stat("w").generation;
      }
    });
    EXPECT_EQ(insist([&] { return user.open("w").generation(); }), next);
  }
}

/// A client that is stopped, or reads events late, is not dropped because of them.
TEST_F(brokerd_tables, are_sent_to_a_client_that_has_not_read_the_one_before) {
  const auto late = raw_session::greeted(socket_);
  std::vector<ino_t> expected;
  for (int i = 0; i != 3; ++i) {
    ASSERT_TRUE(broker_->kill());
    expected.push_back(table().inode());
  }
  std::vector<std::byte> buffer(wire::max_packet_bytes);
  std::vector<ino_t> sent;
  for (;;) {
    const auto got = gpushm::transport::receive_packet(late.events(), buffer);
    if (got.status != gpushm::transport::receive_status::packet) {
      EXPECT_EQ(got.status, gpushm::transport::receive_status::would_block);
      break;
    }
    const auto message = wire::decode(got.packet);
    ASSERT_TRUE(message && std::holds_alternative<wire::continued>(message->body));
    ASSERT_EQ(got.descriptors.size(), 1U);
    sent.push_back(member_table(got.descriptors.front().get()).inode());
  }
  EXPECT_EQ(sent, expected);
}

class brokerd_with_late_fence : public brokerd_tables {
 protected:
  brokerd_with_late_fence() : brokerd_tables("60000") {}
};

/// It would use what the dead broker's table says.
TEST_F(brokerd_with_late_fence, ends_connections_that_cannot_follow_and_keeps_their_leases) {
  wire::hello hello;
  hello.known_kinds = wire::known_kinds;
  raw_session earlier(socket_);
  const auto greeted = earlier.request(hello);
  const auto* const welcome = gpushm_testing::body_of<wire::welcome>(greeted);
  ASSERT_NE(welcome, nullptr);
  const gpushm::generation held =
      gpushm_testing::publish_segment(earlier, gpushm_testing::reserve_pages("kept", 1));
  ASSERT_NE(held, 0U);
  auto bystander = raw_session::greeted(socket_);
  ASSERT_TRUE(broker_->kill());

  EXPECT_TRUE(earlier.closed_within(20s));
  EXPECT_NE(bystander.request(wire::list{}).message, std::nullopt) << "not dropped";
  raw_session again(socket_);
  hello.resume = welcome->token;
  const auto resumed = again.request(hello);
  const auto* const successor = gpushm_testing::body_of<wire::welcome>(resumed);
  ASSERT_NE(successor, nullptr);
  EXPECT_TRUE(successor->resumed) << "its leases are released";
  static_cast<void>(again.request(wire::keep{{held}, {1}, false}));
  const auto found = again.request(wire::stat{"kept"});
  const auto* const listing = gpushm_testing::body_of<wire::listing>(found);
  ASSERT_NE(listing, nullptr);
  EXPECT_EQ(listing->segments.at(0).leases, 1U);
}

}  // namespace
