// SPDX-License-Identifier: Apache-2.0
// The state table of brokerd as a member can write it that is root, or has the broker's uid.
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
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "base/file.hpp"
#include "base/unique_fd.hpp"
#include "gpushm/gpushm.hpp"
#include "testing/brokerd/brokerd.hpp"
#include "testing/process/deadline.hpp"
#include "testing/process/temp_dir.hpp"
#include "testing/raw_session/raw_session.hpp"
#include "wire/state_table.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm::segment_state;
using gpushm_testing::eventually;
namespace wire = gpushm::wire;

class brokerd_with_written_table : public testing::Test {
 protected:
  [[nodiscard]] gpushm::client connect() const {
    return gpushm::client::connect({.socket_path = socket_, .timeout = 20s});
  }
  static gpushm::segment create(gpushm::client& with, const std::string& name) {
    gpushm::segment created = with.create(
        name, {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
    created.publish();
    return created;
  }

  /// Also if its connection ends during the request.
  [[nodiscard]] static bool has_one_lease(gpushm::client& by, const std::string& name) {
    const auto found = [&] {
      try {
        return by.stat(name).leases == 1;
      } catch (const gpushm::error& why) {
        EXPECT_EQ(why.code(), gpushm::errc::broker_gone);
        return false;
      }
    };
    return eventually(found, 20s);
  }

  [[nodiscard]] static gpushm::base::unique_mapping map_for_writing(int table) {
    const gpushm::base::unique_fd file(
        ::open(("/proc/self/fd/" + std::to_string(table)).c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_TRUE(file);
    struct stat found {};
    EXPECT_EQ(::fstat(file.get(), &found), 0);
    return gpushm::base::map_file(
        "test", file.get(), static_cast<std::size_t>(found.st_size), true);
  }
  [[nodiscard]] std::uint32_t owner() const {
    return std::atomic_ref<std::uint32_t>(header_->owner_futex).load();
  }

  /// Lets a segment have each state, and expects them after each of `writes` and the death of a
  /// broker.
  void expect_states_after(const std::vector<std::function<void()>>& writes);

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  std::optional<gpushm_testing::brokerd> broker_{
      std::in_place,
      run_dir_,
      std::vector<std::string>{"--domain", "default", "--fence-delay-ms", "50"}};
  gpushm_testing::raw_session member_ = gpushm_testing::raw_session::greeted(socket_);
  gpushm::base::unique_mapping table_ = map_for_writing(member_.state_table());
  std::byte* const bytes_ = static_cast<std::byte*>(table_.get().address);
  wire::state_table_header* const header_ = reinterpret_cast<wire::state_table_header*>(bytes_);
};

void brokerd_with_written_table::expect_states_after(
    const std::vector<std::function<void()>>& writes) {
  gpushm::client creator = connect();
  gpushm::client reader = connect();
  const gpushm::segment live = create(creator, "live");
  const gpushm::segment removed = create(creator, "removed");
  auto dies = gpushm_testing::raw_session::greeted(socket_);
  ASSERT_NE(gpushm_testing::publish_segment(dies, gpushm_testing::reserve_pages("orphan", 1)), 0U);
  const gpushm::segment orphan = reader.open("orphan");
  dies.hang_up();
  creator.remove("removed");
  ASSERT_TRUE(eventually([&] { return orphan.state() == segment_state::exporter_gone; }, 20s));

  for (std::size_t i = 0; i != writes.size(); ++i) {
    SCOPED_TRACE(i);
    const wire::state_table_header before = *header_;
    writes[i]();
    ASSERT_TRUE(broker_->kill());
    EXPECT_EQ(connect().list().size(), 2U + i);  // a new member: the header is whole
    // On a busy machine the pause may have been too long for these clients: they connect again.
    EXPECT_TRUE(has_one_lease(creator, "live"));
    EXPECT_TRUE(eventually([&] { return live.state() == segment_state::live; }, 20s));
    EXPECT_TRUE(eventually([&] { return removed.state() == segment_state::removed; }, 20s));
    EXPECT_TRUE(eventually([&] { return orphan.state() == segment_state::exporter_gone; }, 20s));
    static_cast<void>(create(creator, "new" + std::to_string(i)));
    EXPECT_NE(owner(), before.owner_futex);
    wire::state_table_header now = *header_;
    now.owner_futex = before.owner_futex;
    EXPECT_EQ(std::memcmp(&now, &before, sizeof(now)), 0);
    EXPECT_TRUE(std::all_of(bytes_ + sizeof(now),
                            bytes_ + wire::state_table_words_offset,
                            [](std::byte each) { return each == std::byte{0}; }));
    // Segments and nothing else have words: `live`, `orphan`, `removed`, and new ones.
    const auto* const words =
        reinterpret_cast<const std::uint64_t*>(bytes_ + wire::state_table_words_offset);
    EXPECT_EQ(before.slots - std::count(words, words + before.slots, 0), 4 + i);
  }
}

TEST_F(brokerd_with_written_table, is_continued_with_what_the_journal_says) {
  expect_states_after({
      [&] {
        const std::uint32_t slots = header_->slots;
        // Not the owner's word: readers would take the broker for dead. The next one does that.
        std::memset(bytes_, 0xA5, offsetof(wire::state_table_header, owner_futex));
        std::memset(
            &header_->owner_rest,
            0xA5,
            wire::state_table_words_offset - offsetof(wire::state_table_header, owner_rest));
        std::mt19937_64 random(1);
        for (int i = 0; i != 2'000; ++i) {
          const std::uint64_t word = random();
          std::memcpy(bytes_ + wire::state_table_words_offset + random() % slots * 8, &word, 8);
        }
      },
      // A thread that lives: a broker that waited for it would never serve.
      [&] { header_->owner_futex = static_cast<std::uint32_t>(::getpid()); },
  });
  // Readers still see the end of that broker.
  gpushm::client reader = connect();
  const gpushm::segment opened = reader.open("live");
  broker_.reset();
  EXPECT_TRUE(eventually([&] { return opened.state() == segment_state::broker_gone; }, 20s));
}

/// The keeper's copies of state tables.
std::size_t tables_of(pid_t keeper) {
  std::size_t result = 0;
  for (const auto& each :
       std::filesystem::directory_iterator("/proc/" + std::to_string(keeper) + "/fd")) {
    std::error_code closed_meanwhile;
    const auto target = std::filesystem::read_symlink(each.path(), closed_meanwhile).string();
    result += target.find("gpushm-state") != std::string::npos ? 1U : 0U;
  }
  return result;
}

TEST_F(brokerd_with_written_table, is_replaced_when_a_member_has_given_it_away) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to change the owner of a file";
  }
  gpushm::client creator = connect();
  const gpushm::segment kept = create(creator, "kept");
  const auto leased = creator.create("leased", {.size_bytes = 4'096, .device = "host"});
  ASSERT_EQ(::fchown(member_.state_table(), 12'345, 12'345), 0);
  ASSERT_TRUE(broker_->kill());
  EXPECT_EQ(connect().list().size(), 1U);
  EXPECT_TRUE(has_one_lease(creator, "kept"));
  EXPECT_TRUE(eventually([&] { return kept.state() == segment_state::live; }, 20s));
  EXPECT_TRUE(eventually([&] { return leased.state() == segment_state::live; }, 20s));
  const auto session = gpushm_testing::raw_session::greeted(socket_);
  struct stat found {};
  ASSERT_EQ(::fstat(session.state_table(), &found), 0);
  EXPECT_EQ(found.st_uid, gpushm_testing::brokerd_uid());
  EXPECT_EQ(found.st_mode & 07777U, 0600U);
  EXPECT_TRUE(eventually([&] { return tables_of(broker_->keeper().pid()) == 1; }, 20s));

  // The next one continues with that.
  ASSERT_TRUE(broker_->kill());
  EXPECT_EQ(connect().list().size(), 1U);
  struct stat again {};
  const auto later = gpushm_testing::raw_session::greeted(socket_);
  ASSERT_EQ(::fstat(later.state_table(), &again), 0);
  EXPECT_EQ(again.st_ino, found.st_ino);
  EXPECT_TRUE(eventually([&] { return leased.state() == segment_state::live; }, 20s));
}

}  // namespace
