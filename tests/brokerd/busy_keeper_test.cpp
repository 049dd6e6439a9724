// SPDX-License-Identifier: Apache-2.0
// What a member notices of a keeper that is stopped, full or dead, while another one asks for
// something that must be stored there: nothing.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <list>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "base/files/unique_fd.hpp"
#include "base/process/signals.hpp"
#include "domains/protocol/private_socket.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/wire/messages.hpp"
#include "sync/timeline_page.hpp"
#include "tests/support/brokerd/brokerd.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/full_queue.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/temp_dir.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace {

namespace fs = std::filesystem;
namespace wire = gpushm::wire;
using namespace std::chrono_literals;
using gpushm_testing::eventually;
using gpushm_testing::raw_session;

enum class fault { stopped, full, dead };

void PrintTo(fault fault, std::ostream* to) {
  *to << std::array{"stopped", "full", "dead"}.at(static_cast<std::size_t>(fault));
}

/// The answer to a request of a member: refused with this code, or not.
using outcome = std::optional<gpushm::errc>;

class brokerd_with_keeper : public testing::TestWithParam<fault> {
 protected:
  ~brokerd_with_keeper() override {
    if (GetParam() == fault::dead && broker_pid_ != 0) {
      gpushm::base::signal_process(broker_pid_, SIGKILL);  // no child of this process's any longer
    }
  }
  brokerd_with_keeper() = default;
  brokerd_with_keeper(const brokerd_with_keeper&) = delete;
  brokerd_with_keeper& operator=(const brokerd_with_keeper&) = delete;

  [[nodiscard]] gpushm::client connect() const { return gpushm_testing::patient_client(socket_); }

  void begin_fault() {
    broker_pid_ = broker_.pid();
    const pid_t worker = gpushm_testing::worker_of_keeper(broker_.keeper().pid());
    switch (GetParam()) {
      case fault::full:
        fill_store();
        break;
      case fault::stopped:
        broker_.keeper().kill(SIGSTOP);
        gpushm::base::signal_process(worker, SIGSTOP);
        fill_queue();
        break;
      case fault::dead:
        broker_.keeper().kill(SIGSTOP);  // or it would start another worker
        gpushm::base::signal_process(worker, SIGKILL);
        broker_.keeper().kill(SIGKILL);
        static_cast<void>(broker_.keeper().wait_exit(20s));
        break;
    }
  }
  void end_fault() {
    if (GetParam() == fault::stopped) {
      gpushm::base::signal_process(gpushm_testing::worker_of_keeper(broker_.keeper().pid()),
                                   SIGCONT);
      broker_.keeper().kill(SIGCONT);
    }
  }

  void fill_queue() const {
    ASSERT_EQ(gpushm_testing::fill_queue_of(run_dir_ + "/keeper/notify"), EAGAIN);
  }

  /// The broker, or a member that has found the socket, could do that.
  void fill_store() const {
    gpushm_testing::spawn_options fill;
    fill.argv = {"/usr/bin/python3",  // not one in a directory that only this user can read
                 "-c",
                 "import array, os, socket, sys\n"
                 "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
                 "s.connect(sys.argv[1])\n"
                 "def send(text, fds):\n"
                 "  s.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,\n"
                 "                      array.array('i', fds))])\n"
                 "r, w = os.pipe()\n"
                 "for i in range(5):\n"
                 "  send(b'FDSTORE=1\\nFDPOLL=0\\nFDNAME=other', [r] * 200)\n"
                 "answer, ask = os.pipe()\n"
                 "send(b'BARRIER=1', [ask])\n"
                 "os.close(ask)\n"
                 "sys.exit(0 if os.read(answer, 1) else 1)",
                 run_dir_ + "/keeper/notify"};
    if (::geteuid() == 0) {
      fill.uid = fill.gid = gpushm_testing::brokerd_uid();
    }
    const auto filled = gpushm_testing::run_program(fill);
    ASSERT_EQ(filled.status, gpushm_testing::exited(0)) << filled.err;
  }

  /// Memory that the keeper keeps.
  [[nodiscard]] std::size_t kept_memory() {
    std::size_t result = 0;
    std::error_code failed;
    const std::string keeper = std::to_string(broker_.keeper().pid());
    for (const auto& each : fs::directory_iterator("/proc/" + keeper + "/fd", failed)) {
      const std::string target = fs::read_symlink(each.path(), failed).string();
      result += target.find("memfd:gpushm-chunk") != std::string::npos ? 1U : 0U;
    }
    return result;
  }

  /// While `wanted` is under way, members that have what they need do not wait for the keeper. Then
  /// it is done, or refused because the keeper is behind, and can be done again.
  void others_notice_nothing_of(const std::function<outcome()>& wanted) {
    gpushm::client user = connect();
    gpushm::segment created = user.create(
        "w", {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
    created.publish();
    begin_fault();
    ASSERT_FALSE(HasFatalFailure());
    auto asked = std::async(std::launch::async, wanted);
    try {
      for (int i = 0; i != 20; ++i) {
        EXPECT_EQ(user.list("w").size(), 1U);
        EXPECT_TRUE(user.try_open("w"));
      }
      // Longer than requests wait for the keeper: they are refused.
      if (GetParam() == fault::stopped) {
        const outcome found = asked.get();
        EXPECT_TRUE(!found || found == gpushm::errc::timed_out) << gpushm::to_string(*found);
        EXPECT_EQ(user.list("w").size(), 1U);
      } else {
        EXPECT_EQ(asked.get(), outcome());
      }
    } catch (const gpushm::error& why) {
      ADD_FAILURE() << why.what();
    }
    end_fault();
    EXPECT_TRUE(eventually([&] { return !wanted(); }, 20s));
    EXPECT_EQ(created.state(), gpushm::segment_state::live);
    if (GetParam() == fault::stopped) {
      ASSERT_TRUE(broker_.kill());
      EXPECT_TRUE(connect().try_open("w"));
    }
    if (HasFailure()) {
      std::printf("%s\n", broker_.keeper().output().all_output().c_str());
    }
  }

  gpushm_testing::temp_dir directory_{0755};
  const std::string run_dir_ = directory_ / "run";
  const std::string socket_ = run_dir_ + "/d/default/socket";
  gpushm_testing::brokerd broker_{
      run_dir_, {"--domain", "default"}, 0, {"--max-descriptors", "300"}};
  pid_t broker_pid_ = 0;
};

outcome greet(raw_session& member) {
  wire::hello hello;
  hello.known_kinds = wire::known_kinds;
  if (!member.send(hello)) {
    return gpushm::errc::broker_gone;
  }
  const auto reply = member.receive(20s);
  if (gpushm_testing::body_of<wire::welcome>(reply) != nullptr) {
    return std::nullopt;
  }
  return gpushm_testing::failure_of(reply).value_or(gpushm::errc::broker_gone);
}

/// More than are accepted in a turn.
TEST_P(brokerd_with_keeper, accepts_connections) {
  others_notice_nothing_of([&]() -> outcome {
    std::list<raw_session> members;
    while (members.size() != 20) {
      members.emplace_back(socket_);
    }
    outcome result;
    for (raw_session& each : members) {
      result = result ? result : greet(each);
    }
    return result;
  });
}

TEST_P(brokerd_with_keeper, replies_to_hello) {
  std::list<raw_session> members;
  while (members.size() != 3) {
    members.emplace_back(socket_);
  }
  others_notice_nothing_of([&] {
    raw_session member = members.empty() ? raw_session(socket_) : std::move(members.front());
    if (!members.empty()) {
      members.pop_front();
    }
    return greet(member);
  });
}

outcome create(gpushm::client& client, const std::string& name) {
  try {
    gpushm::segment created = client.create(name, {.size_bytes = 4'096, .device = "host"});
    created.publish();
  } catch (const gpushm::error& why) {
    return why.code();
  }
  return std::nullopt;
}

TEST_P(brokerd_with_keeper, takes_memory) {
  gpushm::client member = connect();
  others_notice_nothing_of([&] { return create(member, "attached"); });
}

TEST_P(brokerd_with_keeper, makes_pages) {
  raw_session member = raw_session::greeted(socket_);
  others_notice_nothing_of([&]() -> outcome {
    wire::reserve page = gpushm_testing::reserve_pages("page", 1);
    page.size_bytes = page.allocated_bytes = gpushm::sync::timeline_page_bytes;
    page.backend = gpushm::backend::signals;
    member.send(page);
    const auto reply = member.receive(20s);
    if (const auto* const made = gpushm_testing::body_of<wire::reserved>(reply)) {
      member.send(wire::release{made->generation, 1, false});
      return std::nullopt;
    }
    return gpushm_testing::failure_of(reply).value_or(gpushm::errc::broker_gone);
  });
}

TEST_P(brokerd_with_keeper, frees_memory) {
  gpushm::client member = connect();
  std::optional<gpushm::segment> freed =
      member.create("freed", {.size_bytes = 4'096, .device = "host"});
  freed->publish();
  others_notice_nothing_of([&]() -> outcome {
    if (freed) {
      freed.reset();
      return std::nullopt;
    }
    return create(member, "next");
  });
  if (GetParam() != fault::dead) {
    EXPECT_TRUE(eventually([&] { return kept_memory() == 1; }, 20s)) << kept_memory();
  }
}

TEST_P(brokerd_with_keeper, is_reported_by_the_private_socket) {
  using gpushm::domains::keeper_state;
  const gpushm::domains::private_socket broker(run_dir_);
  const auto state = [&] { return broker.read(20s).at(0).keeper; };
  gpushm::client member = connect();
  EXPECT_EQ(create(member, "w"), outcome());
  EXPECT_EQ(state(), keeper_state::reads);
  begin_fault();
  ASSERT_FALSE(HasFatalFailure());
  const std::array expected{keeper_state::slow, keeper_state::full, keeper_state::gone};
  const keeper_state wanted = expected.at(static_cast<std::size_t>(GetParam()));
  std::optional<raw_session> next(socket_);
  if (GetParam() != fault::stopped) {
    EXPECT_EQ(create(member, "w"), outcome());  // once it is freed, the keeper is asked
  }
  EXPECT_TRUE(eventually([&] { return state() == wanted; }, 20s)) << to_string(state());
  end_fault();
  if (GetParam() == fault::stopped) {
    next.emplace(socket_);
    EXPECT_TRUE(eventually([&] { return state() == keeper_state::reads; }, 20s));
  }
}

/// Nothing else would end it, and the lock of its directory.
TEST(brokerd_without_keeper, makes_room_for_one_with_a_keeper) {
  const gpushm_testing::temp_dir directory(0755);
  const std::string run_dir = directory / "run";
  const auto connect = [&] {
    return gpushm_testing::patient_client(run_dir + "/d/default/socket");
  };
  gpushm_testing::brokerd first(run_dir, {"--domain", "default"});
  gpushm::client member = connect();
  const gpushm::epoch epoch = member.broker().epoch;
  gpushm::segment held = member.create(
      "w", {.size_bytes = 4'096, .device = "host", .lifetime = gpushm::lifetime::persistent});
  held.publish("about w");
  {  // Its keeper is alive: it does not end.
    auto command = gpushm_testing::brokerd_command(run_dir, {"--domain", "default"});
    command.argv.at(2) += ".other";
    gpushm_testing::child refused = gpushm_testing::child::start(command);
    EXPECT_NE(refused.wait_for_line(
                  "another process serves the domains", 30s, gpushm_testing::stream::err),
              "");
    EXPECT_EQ(connect().broker().epoch, epoch);
    refused.kill(SIGTERM);
    static_cast<void>(refused.wait_exit(30s));
  }
  const pid_t orphan = first.pid();
  first.keeper().kill(SIGSTOP);  // or it would start another worker
  gpushm::base::signal_process(gpushm_testing::worker_of_keeper(first.keeper().pid()), SIGKILL);
  first.keeper().kill(SIGKILL);
  static_cast<void>(first.keeper().wait_exit(20s));
  EXPECT_EQ(connect().list("w").size(), 1U);
  gpushm_testing::brokerd second(run_dir, {"--domain", "default"});
  EXPECT_NE(second.keeper().wait_for_line(
                "the last broker had lost its keeper", 30s, gpushm_testing::stream::err),
            "")
      << second.keeper().output().all_output();
  EXPECT_TRUE(eventually(
      [&] {
        gpushm::client reader = connect();
        return reader.broker().epoch != epoch && reader.try_open("w");
      },
      20s))
      << second.keeper().output().all_output();
  EXPECT_TRUE(eventually([&] { return held.state() == gpushm::segment_state::live; }, 20s));
  if (HasFailure()) {
    gpushm::base::signal_process(orphan, SIGKILL);  // no child of this process's any longer
  }
}

INSTANTIATE_TEST_SUITE_P(faults,
                         brokerd_with_keeper,
                         testing::Values(fault::stopped, fault::full, fault::dead),
                         testing::PrintToStringParamName());

}  // namespace
