// SPDX-License-Identifier: Apache-2.0
// gpushm-brokerd and its keeper in a memory cgroup, as in a container, with default settings:
// members of two domains fill what they may occupy, change it, and the broker is killed while it is
// full. The kernel kills nothing, and there is room left. GPUSHM_CONTAINER_MIB: the cgroup's limit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text/size_text.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/wire/messages.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/environment.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/spawn.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/memory_group.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::body_of;
using gpushm_testing::eventually;
using gpushm_testing::memory_group;
using gpushm_testing::raw_session;

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20U;

/// The page cache of a file is charged to the cgroup that reads it first.
void read_program(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 65'536> piece{};
  while (file.read(piece.data(), piece.size())) {
  }
}

/// A member that has as many segments with the largest metadata as it may.
class hoarder {
 public:
  explicit hoarder(const std::string& socket) : session_(raw_session::greeted(socket)) {}

  /// Returns false if it is refused.
  bool add() {
    gpushm::wire::reserve wanted;
    wanted.name = "m/" + std::to_string(++number_);
    wanted.size_bytes = 8;
    wanted.allocated_bytes = 8;
    wanted.backend = gpushm::backend::cuda_ipc;
    wanted.device.kind = gpushm::device_kind::gpu;
    wanted.device.uuid = "GPU-1";
    wanted.device.pci_address = "0000:01:00.0";
    wanted.device.minor = 0;
    wanted.ticket = {std::byte{1}};
    const auto reserved = ask(wanted);
    const auto* const created = body_of<gpushm::wire::reserved>(reserved);
    if (created == nullptr) {
      why_ = cause_of(reserved);
      return false;
    }
    const auto published = ask(gpushm::wire::publish{
        created->generation, std::vector<std::byte>(gpushm::max_metadata_bytes, std::byte{'m'})});
    if (body_of<gpushm::wire::done>(published) != nullptr) {
      held_.push_back(created->generation);
      return true;
    }
    why_ = cause_of(published);
    session_.send_as(0, gpushm::wire::release{created->generation, 1});
    return false;
  }
  void remove_last() {
    session_.send_as(0, gpushm::wire::release{held_.back(), 1});
    held_.pop_back();
  }
  [[nodiscard]] std::size_t count() const { return held_.size(); }
  /// Why the last one was refused.
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  gpushm_testing::raw_reply ask(gpushm::wire::body request) {
    session_.send(std::move(request));
    return session_.receive(60s);
  }
  [[nodiscard]] static std::string cause_of(const gpushm_testing::raw_reply& reply) {
    const auto* const failed = body_of<gpushm::wire::failure>(reply);
    return failed == nullptr ? "no reply" : failed->cause;
  }

  raw_session session_;
  std::vector<gpushm::generation> held_;
  std::string why_;
  std::uint64_t number_ = 0;
};

class container_memory : public testing::Test {
 protected:
  void SetUp() override {
    if (gpushm_testing::timeout_factor > 1) {
      GTEST_SKIP() << "instrumented programs use more memory than the container has";
    }
    std::string why_not;
    auto made = memory_group::make(limit_bytes_, why_not);
    if (!made) {
      GTEST_SKIP() << why_not;
    }
    group_.emplace(std::move(*made));
    for (const char* const each : {"gpushm-keeper", "gpushm-brokerd"}) {
      read_program(gpushm_testing::own_program(each));
    }
    gpushm_testing::make_run_directory(run_dir_);
    auto command =
        gpushm_testing::brokerd_command(run_dir_, {"--domain", "default", "--domain", "other"});
    const std::vector<std::string> wait{"/bin/sh", "-c", R"(read go; exec "$0" "$@")"};
    command.argv.insert(command.argv.begin(), wait.begin(), wait.end());
    keeper_.emplace(gpushm_testing::child::start(command));
    if (!group_->add(keeper_->pid())) {
      GTEST_SKIP() << "a process cannot be moved into the cgroup";
    }
    keeper_->write("go\n");
    ASSERT_TRUE(eventually([&] { return can_connect(); }, 60s));
  }
  void TearDown() override {
    if (HasFailure() && keeper_) {
      std::printf("%s\n", keeper_->output().all_output().c_str());
    }
    if (keeper_) {
      keeper_->kill(SIGKILL);
      static_cast<void>(keeper_->wait_exit(20s));
    }
  }
  [[nodiscard]] bool can_connect() const {
    return std::all_of(sockets_.begin(), sockets_.end(), [](const std::string& each) {
      try {
        static_cast<void>(gpushm::client::connect({.socket_path = each}));
        return true;
      } catch (const gpushm::error&) {
        return false;
      }
    });
  }

  const std::uint64_t limit_bytes_ =
      gpushm_testing::number_from_environment("GPUSHM_CONTAINER_MIB", std::uint64_t{128}) *
      mebibyte;
  std::optional<memory_group> group_;
  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::array<std::string, 2> sockets_{run_dir_ + "/d/default/socket",
                                            run_dir_ + "/d/other/socket"};
  std::optional<gpushm_testing::child> keeper_;
};

TEST_F(container_memory, is_enough_for_what_members_may_occupy_and_change) {
  std::vector<hoarder> members;
  for (const std::string& socket : sockets_) {
    members.emplace_back(socket);
  }
  std::size_t added = 1;
  while (added != 0) {
    added = 0;
    for (hoarder& each : members) {
      added += each.add() ? 1U : 0U;
    }
  }
  std::vector<std::size_t> counts;
  std::size_t total = 0;
  for (const hoarder& each : members) {
    ASSERT_GT(each.count(), 0U) << each.why();
    EXPECT_NE(each.why().find("no room for"), std::string::npos) << each.why();
    counts.push_back(each.count());
    total += each.count();
  }
  // Half of the limit has each byte twice, in journal and heap; a part stays free for others.
  EXPECT_GE(total * gpushm::max_metadata_bytes, limit_bytes_ / 6);
  constexpr std::size_t changed = 16;
  const std::size_t changes = limit_bytes_ / gpushm::max_metadata_bytes / 16;
  for (int kills = 0; kills < 3; ++kills) {
    for (std::size_t i = 0; i < changes; i += changed) {
      for (std::size_t at = 0; at < members.size(); ++at) {
        hoarder& member = members[at];
        for (std::size_t each = 0; each < changed; ++each) {
          member.remove_last();
        }
        while (member.count() < counts[at] && member.add()) {
        }
        ASSERT_EQ(member.count(), counts[at]) << member.why();
      }
    }
    ASSERT_TRUE(gpushm_testing::kill_program_kept_by(keeper_->pid()));
    ASSERT_TRUE(eventually([&] { return can_connect(); }, 60s));
    for (std::size_t at = 0; at < members.size(); ++at) {
      EXPECT_EQ(gpushm::client::connect({.socket_path = sockets_[at]}).list().size(), counts[at]);
    }
  }
  EXPECT_EQ(group_->kills(), 0U);
  const std::uint64_t peak = group_->peak_bytes();
  std::printf(
      "%zu segments, %llu MiB at most\n", total, static_cast<unsigned long long>(peak / mebibyte));
  EXPECT_LE(peak, limit_bytes_ / 10 * 9);
}

/// The kernel's reason for a SIGKILL is in no other log that a pod has.
TEST_F(container_memory, is_in_the_log_of_a_broker_that_was_killed) {
  ASSERT_TRUE(gpushm_testing::kill_program_kept_by(keeper_->pid()));
  const std::string line =
      keeper_->wait_for_line("the program was killed", 60s, gpushm_testing::stream::err);
  EXPECT_NE(line.find(" of " + gpushm::base::size_text(limit_bytes_) + " now, 0 kills for lack"),
            std::string::npos)
      << line;
}

}  // namespace
