// SPDX-License-Identifier: Apache-2.0
// What a node's broker finds again by itself: its domains, its sockets, and the locks of a
// predecessor that is dying.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "base/process/signals.hpp"
#include "domains/protocol/private_socket.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/wire/messages.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/full_queue.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace {

using namespace std::chrono_literals;
using gpushm_testing::eventually;

class node_broker : public testing::Test {
 protected:
  void TearDown() override {
    if (HasFailure() && broker_) {
      std::printf("%s\n", broker_->keeper().output().all_output().c_str());
    }
  }
  [[nodiscard]] std::string socket_of(const std::string& domain) const {
    return run_dir_ + "/d/" + domain + "/socket";
  }
  [[nodiscard]] gpushm::client connect(const std::string& domain) const {
    return gpushm_testing::patient_client(socket_of(domain));
  }
  static gpushm::segment make(gpushm::client& client, const std::string& name) {
    gpushm::segment result = client.create(
        name, {.size_bytes = 4096, .device = "host", .lifetime = gpushm::lifetime::persistent});
    result.publish();
    return result;
  }
  [[nodiscard]] bool has(const std::string& domain,
                         const std::string& name,
                         gpushm::generation generation) const {
    return eventually(
        [&] {
          try {
            const auto readings = connect(domain).list(name);
            return readings.size() == 1 && readings.front().generation == generation &&
                   readings.front().published;
          } catch (const gpushm::error&) {
            return false;
          }
        },
        20s);
  }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  std::optional<gpushm_testing::brokerd> broker_;
};

/// Without the node's agent, which has asked for it.
TEST_F(node_broker, opens_its_domains_again_after_a_loss) {
  broker_.emplace(run_dir_);
  const gpushm::domains::private_socket agent(run_dir_);
  for (const char* domain : {"claim-a", "claim-b"}) {
    EXPECT_EQ(agent.open(domain, 20s), run_dir_ + "/d/" + domain);
  }
  gpushm::client member = connect("claim-a");
  const gpushm::segment kept = make(member, "kept");
  agent.close("claim-b", 20s);
  broker_.reset();  // and its keeper
  broker_.emplace(run_dir_);
  EXPECT_TRUE(has("claim-a", "kept", kept.generation())) << "handed back";
  EXPECT_FALSE(std::filesystem::exists(run_dir_ + "/d/claim-b"));
  const auto readings = agent.read(20s);
  ASSERT_EQ(readings.size(), 1U);
  EXPECT_TRUE(readings.front().serving);
  agent.close("claim-a", 20s);
  broker_.reset();
  broker_.emplace(run_dir_);
  EXPECT_TRUE(agent.read(20s).empty());
}

/// Over all processes and keepers of the run directory.
TEST_F(node_broker, counts_starts_and_takeovers) {
  int keepers = 0;
  const auto for_keeper = [&] {
    return std::vector<std::string>{"--socket",
                                    run_dir_ + "/keeper/notify-" + std::to_string(keepers++),
                                    "--takeover",
                                    run_dir_ + "/keeper/takeover"};
  };
  const gpushm::domains::private_socket agent(run_dir_);
  const auto has_counted =
      [&](std::uint64_t starts, std::uint64_t takeovers, std::uint64_t failed) {
        gpushm::domains::broker_facts got;
        const bool result = eventually(
            [&] {
              try {
                got = agent.read_broker(20s);
              } catch (const gpushm::error&) {  // between two processes
                return false;
              }
              return got.starts == starts && got.takeovers == takeovers &&
                     got.failed_takeovers == failed;
            },
            60s);
        EXPECT_TRUE(result) << got.starts << " " << got.takeovers << " " << got.failed_takeovers;
        EXPECT_FALSE(got.version.empty());
        return got.started_ns;
      };
  broker_.emplace(run_dir_, std::vector<std::string>{}, 0, for_keeper());
  const std::uint64_t first = has_counted(1, 0, 0);
  EXPECT_TRUE(broker_->kill());
  EXPECT_GT(has_counted(2, 0, 0), first);

  gpushm_testing::brokerd next(run_dir_, {}, 0, for_keeper());
  has_counted(3, 1, 0);
  EXPECT_EQ(broker_->keeper().wait_exit(60s), gpushm_testing::exited(0));
  auto wrong = gpushm_testing::child::start(
      gpushm_testing::brokerd_command(run_dir_, {"--no-such-option"}, for_keeper()));
  EXPECT_EQ(wrong.wait_exit(60s), gpushm_testing::exited(2));
  has_counted(4, 1, 1);
  EXPECT_TRUE(next.kill());
  has_counted(5, 1, 1);

  next.keeper().kill(SIGTERM);
  static_cast<void>(next.keeper().wait_exit(60s));
  broker_.emplace(run_dir_);
  has_counted(6, 1, 1);
}

TEST_F(node_broker, binds_its_socket_again_and_so_does_a_successor) {
  broker_.emplace(run_dir_, std::vector<std::string>{"--domain", "default"});
  gpushm::client member = connect("default");
  const gpushm::segment kept = make(member, "kept");
  const gpushm::epoch epoch = member.broker().epoch;
  std::filesystem::remove_all(run_dir_ + "/d/default");
  EXPECT_TRUE(has("default", "kept", kept.generation()));
  EXPECT_TRUE(broker_->kill());
  EXPECT_TRUE(has("default", "kept", kept.generation()));
  std::filesystem::remove(socket_of("default"));
  EXPECT_TRUE(broker_->kill());
  EXPECT_TRUE(has("default", "kept", kept.generation()));
  EXPECT_EQ(connect("default").broker().epoch, epoch);
  EXPECT_EQ(member.list("kept").size(), 1U);
}

/// What members use is charged as before, and the quotas apply, without a restart and after one.
TEST_F(node_broker, quotas_and_usage_are_the_same_after_its_death) {
  broker_.emplace(run_dir_, std::vector<std::string>{"--domain", "default"});
  gpushm::client member = connect("default");
  const gpushm::segment kept = make(member, "kept");
  const std::string rules = directory_ / "quotas";
  std::ofstream(rules) << "domain default host=8KiB\nprincipal gpu=1GiB\n";
  const auto quotas = [&](const std::vector<std::string>& more) {
    std::vector<std::string> argv{
        gpushm_testing::own_program("gpushm"), "quotas", "--run-dir", run_dir_};
    argv.insert(argv.end(), more.begin(), more.end());
    return gpushm_testing::run_program({.argv = argv});
  };
  const auto set = quotas({"--set", rules});
  EXPECT_TRUE(set.status.success()) << set.err;
  EXPECT_NE(set.out.find("host_bytes"), std::string::npos) << set.out;
  EXPECT_NE(set.out.find(" 8 KiB\n"), std::string::npos) << set.out;
  EXPECT_NE(set.out.find("domain default host=8KiB\nprincipal gpu=1GiB\n"), std::string::npos);
  const gpushm::domains::private_socket agent(run_dir_);
  const auto rows = [&] {
    std::vector<std::string> result;
    for (const gpushm::domains::usage& each : agent.read_usage("default", 20s).all) {
      if (each.resource == "host_bytes" || each.resource == "segments") {
        result.push_back(each.level + " " + each.name + " " + each.resource + " " +
                         std::to_string(each.used) + " " + std::to_string(each.limit));
      }
    }
    return result;
  };
  const auto before = rows();
  EXPECT_GE(before.size(), 6U);
  EXPECT_TRUE(broker_->kill());
  EXPECT_TRUE(has("default", "kept", kept.generation()));
  EXPECT_EQ(rows(), before);
  const gpushm::segment second = make(member, "second");
  try {
    static_cast<void>(make(member, "third"));
    ADD_FAILURE() << "the quota does not apply";
  } catch (const gpushm::error& why) {
    EXPECT_EQ(why.code(), gpushm::errc::quota_exceeded);
    EXPECT_NE(std::string(why.what()).find("8 KiB of 8 KiB are in use in this domain"),
              std::string::npos)
        << why.what();
  }
}

std::uint64_t used_host_bytes(const gpushm::domains::private_socket& agent) {
  std::uint64_t result = 0;
  for (const gpushm::domains::usage& each : agent.read_usage("default", 20s).all) {
    result += each.level == "domain" && each.resource == "host_bytes" ? each.used : 0;
  }
  return result;
}

/// The keeper has a copy: it is not free before that is closed. A creator waits for it, also while
/// the broker is replaced.
TEST_F(node_broker, charges_what_is_removed_until_its_keeper_has_closed_it) {
  broker_.emplace(run_dir_,
                  std::vector<std::string>{"--domain", "default", "--quota-bytes", "4096"});
  gpushm::client member = connect("default");
  const gpushm::domains::private_socket agent(run_dir_);
  const auto used = [&] { return used_host_bytes(agent); };
  const auto freeing = [&] { return agent.read(20s).at(0).freeing_bytes; };
  const auto signal_keeper = [&](int number) {
    broker_->keeper().kill(number);
    gpushm::base::signal_process(gpushm_testing::worker_of_keeper(broker_->keeper().pid()), number);
  };
  /// Under load, the keeper can take longer than a creator waits.
  const auto create = [&](const std::string& name) {
    return std::async(std::launch::async, [&, name] {
      return eventually(
          [&] {
            try {
              static_cast<void>(make(member, name));
              return true;
            } catch (const gpushm::error& why) {
              EXPECT_EQ(why.code(), gpushm::errc::quota_exceeded) << why.what();
              return false;
            }
          },
          60s);
    });
  };
  static_cast<void>(make(member, "first"));
  signal_keeper(SIGSTOP);
  EXPECT_EQ(freeing(), 0U);
  member.remove("first");
  EXPECT_EQ(used(), 4096U);
  EXPECT_EQ(freeing(), 4096U);
  const auto shown = gpushm_testing::run_program(
      {.argv = {gpushm_testing::own_program("gpushm"), "quotas", "--run-dir", run_dir_}});
  EXPECT_NE(shown.out.find("freeing_bytes"), std::string::npos) << shown.out << shown.err;
  auto second = create("second");
  EXPECT_EQ(used(), 4096U);
  signal_keeper(SIGCONT);
  EXPECT_TRUE(second.get());
  EXPECT_EQ(used(), 4096U);
  EXPECT_EQ(freeing(), 0U);
  signal_keeper(SIGSTOP);
  // The keeper gets no removal: its successor's broker has to close what is freed.
  ASSERT_EQ(gpushm_testing::fill_queue_of(run_dir_ + "/keeper/notify"), EAGAIN);
  member.remove("second");
  auto third = create("third");
  gpushm::base::signal_process(broker_->pid(), SIGKILL);
  signal_keeper(SIGCONT);
  EXPECT_TRUE(third.get());
  EXPECT_TRUE(eventually([&] { return used() == 4096; }, 60s));
  member.remove("third");
  EXPECT_TRUE(eventually([&] { return used() == 0; }, 60s));
  EXPECT_TRUE(eventually([&] { return freeing() == 0; }, 60s));
}

/// Replies that their reader does not take keep the memory of a segment that has ended, also after
/// the broker's death.
TEST_F(node_broker, charges_what_is_removed_while_unread_replies_have_it) {
  using gpushm_testing::raw_session;
  namespace wire = gpushm::wire;
  broker_.emplace(run_dir_,
                  std::vector<std::string>{"--domain", "default", "--quota-bytes", "4096"});
  gpushm::client member = connect("default");
  const gpushm::domains::private_socket agent(run_dir_);
  const auto used = [&] { return used_host_bytes(agent); };
  constexpr std::uint32_t opens = 12;  // of more bytes than its socket has room for
  std::optional<raw_session> reader(raw_session::greeted(socket_of("default")));
  raw_session maker = raw_session::greeted(socket_of("default"));
  const auto generation = gpushm_testing::publish_segment(
      maker, gpushm_testing::reserve_pages("held", 1), gpushm::max_metadata_bytes);
  ASSERT_NE(generation, 0U);
  for (std::uint32_t i = 0; i != opens; ++i) {
    ASSERT_TRUE(reader->send(wire::open{"held"}));
  }
  const auto leases = [&] {
    const auto readings = member.list("held");
    return readings.empty() ? 0 : readings.front().leases;
  };
  ASSERT_TRUE(eventually([&] { return leases() == 2; }, 60s));
  ASSERT_TRUE(reader->send(wire::release{generation, opens}));
  ASSERT_TRUE(maker.send(wire::release{generation, 1}));
  ASSERT_TRUE(eventually([&] { return leases() == 0; }, 60s));
  EXPECT_EQ(used(), 4096U) << "packets that are not sent";
  ASSERT_TRUE(broker_->kill());
  static_cast<void>(connect("default"));  // waits for it
  EXPECT_EQ(used(), 4096U);
  EXPECT_THROW(static_cast<void>(make(member, "next")), gpushm::error);
  reader.reset();
  EXPECT_TRUE(eventually([&] { return used() == 0; }, 60s));
  static_cast<void>(make(member, "next"));
}

/// A process that was killed can have them for a while.
TEST_F(node_broker, waits_for_the_socket_and_the_lock_of_a_dying_predecessor) {
  gpushm_testing::make_run_directory(run_dir_);
  auto command = gpushm_testing::brokerd_command(run_dir_, {"--domain", "default"});
  std::filesystem::create_directory(run_dir_ + "/locks");
  std::filesystem::permissions(run_dir_ + "/locks", std::filesystem::perms::owner_all);
  ASSERT_EQ(::chown((run_dir_ + "/locks").c_str(), gpushm_testing::brokerd_uid(), 0), 0);
  const std::string lock_path = run_dir_ + "/locks/brokerd.lock";
  gpushm::base::unique_fd lock(
      ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
  ASSERT_EQ(::chown(lock_path.c_str(), gpushm_testing::brokerd_uid(), 0), 0);
  ASSERT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);

  const std::string notify = *(std::find(command.argv.begin(), command.argv.end(), "--socket") + 1);
  std::filesystem::create_directory(std::filesystem::path(notify).parent_path());
  ASSERT_EQ(
      ::chown(
          std::filesystem::path(notify).parent_path().c_str(), gpushm_testing::brokerd_uid(), 0),
      0);
  gpushm::base::unique_fd last(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(notify.size(), sizeof address.sun_path);
  std::memcpy(&address.sun_path[0], notify.c_str(), notify.size() + 1);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): as bind expects
  ASSERT_EQ(::bind(last.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::chmod(notify.c_str(), 0666), 0);

  gpushm_testing::child keeper = gpushm_testing::child::start(command);
  std::this_thread::sleep_for(200ms);
  EXPECT_TRUE(keeper.running()) << keeper.output().all_output();
  last.reset();
  EXPECT_TRUE(eventually([&] { return gpushm_testing::program_kept_by(keeper.pid()) != 0; }, 20s));
  lock.reset();
  EXPECT_EQ(connect("default").broker().domain, "default");
}

}  // namespace
