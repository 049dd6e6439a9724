// SPDX-License-Identifier: Apache-2.0
// Descriptors that members send, each kind in each message, while broker and keeper are replaced.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "base/process/signals.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/messages.hpp"
#include "sync/timeline_page.hpp"
#include "tests/brokerd/hostile_member.hpp"
#include "tests/brokerd/stepped_thread.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/full_queue.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/raw_session/forked_process.hpp"
#include "tests/support/raw_session/raw_session.hpp"
#include "tests/support/raw_session/traps.hpp"
#include "tests/support/stuck_file/stuck_file.hpp"

namespace {

namespace wire = gpushm::wire;
using namespace std::chrono_literals;
using gpushm::base::unique_fd;
using gpushm_testing::eventually;
using gpushm_testing::raw_session;
using gpushm_tests::brokerd_with_foreign_member;

enum class trap : std::uint8_t {
  stuck_file,
  lingering_socket,
  nested,  ///< a socket with a lingering one in its queue
  pipe,
  event,
  unsealed,
  too_small,
  own_memory,
  poll_set,
  own_connection,
};
enum class carrier : std::uint8_t { hello, attach, page };
enum class replaced : std::uint8_t { nothing, broker, keeper, both };

constexpr std::array trap_names{"stuck_file",
                                "lingering_socket",
                                "nested",
                                "pipe",
                                "event",
                                "unsealed",
                                "too_small",
                                "own_memory",
                                "poll_set",
                                "own_connection"};
constexpr std::array carrier_names{"hello", "attach", "page"};
constexpr std::array replaced_names{"nothing", "broker", "keeper", "both"};

unique_fd pipe_end() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const unique_fd writer(ends[1]);
  return unique_fd(ends[0]);
}

/// A descriptor of this kind, and what it needs.
class hostile_descriptor {
 public:
  hostile_descriptor(trap kind, int connection) {
    switch (kind) {
      case trap::stuck_file:
        stuck_.emplace();
        break;
      case trap::lingering_socket:
        lingering_.emplace(600s);
        file_ = std::move(lingering_->trap);
        break;
      case trap::nested:
        lingering_.emplace(600s);
        file_ = socket_with(std::exchange(lingering_->trap, {}));
        break;
      case trap::pipe:
        file_ = pipe_end();
        break;
      case trap::event:
        file_ = unique_fd(::eventfd(0, EFD_CLOEXEC));
        break;
      case trap::unsealed:
        file_ = gpushm_testing::make_chunk(4'096, false);
        break;
      case trap::too_small:
        file_ = gpushm_testing::make_chunk(1);
        break;
      case trap::own_memory:
        file_ = unique_fd(::open("/proc/self/mem", O_RDWR | O_CLOEXEC));
        break;
      case trap::poll_set: {
        file_ = unique_fd(::epoll_create1(EPOLL_CLOEXEC));
        epoll_event event{};
        event.events = EPOLLIN;
        EXPECT_EQ(::epoll_ctl(file_.get(), EPOLL_CTL_ADD, connection, &event), 0);
        break;
      }
      case trap::own_connection:
        file_ = unique_fd(::fcntl(connection, F_DUPFD_CLOEXEC, 0));
        break;
    }
  }
  [[nodiscard]] int get() const noexcept { return stuck_ ? stuck_->get() : file_.get(); }
  /// Precondition: it is in a packet that has not been received, or closing it does not block.
  void close() noexcept { file_.reset(); }
  [[nodiscard]] bool blocks() const noexcept {
    return stuck_.has_value() || lingering_.has_value();
  }
  /// Whether the broker has begun to close it, if that can be seen.
  [[nodiscard]] bool is_met() const noexcept { return !stuck_ || stuck_->is_being_closed(); }

 private:
  static unique_fd socket_with(unique_fd queued) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    const unique_fd sender(ends[0]);
    unique_fd result(ends[1]);
    const std::array<std::byte, 1> packet{};
    const std::array<int, 1> descriptors{queued.get()};
    EXPECT_EQ(gpushm::transport::send_packet(sender.get(), packet, descriptors),
              gpushm::transport::send_result::sent);
    return result;  // closes `queued`, which is not its last copy
  }

  std::optional<gpushm_testing::stuck_file> stuck_;
  std::optional<gpushm_testing::lingering_socket> lingering_;
  unique_fd file_;
};

class hostile_descriptors
    : public brokerd_with_foreign_member,
      public testing::WithParamInterface<std::tuple<trap, carrier, replaced>> {
 protected:
  void SetUp() override {
    brokerd_with_foreign_member::SetUp();
    if (!IsSkipped() && std::get<trap>(GetParam()) == trap::stuck_file) {
      if (const auto why = gpushm_testing::why_no_stuck_file()) {
        GTEST_SKIP() << *why;
      }
    }
  }

  /// A member that can send this message, and the message.
  [[nodiscard]] std::pair<raw_session, wire::body> hostile_member() const {
    switch (std::get<carrier>(GetParam())) {
      case carrier::hello: {
        wire::hello hello;
        hello.known_kinds = wire::known_kinds;
        hello.takes_tables = true;
        hello.fence = gpushm::fence::proven;
        return {as_hostile([](const std::string& socket) { return raw_session(socket); }), hello};
      }
      case carrier::attach:
      case carrier::page:
        break;
    }
    auto member = as_hostile([](const auto& socket) { return raw_session::greeted(socket); });
    wire::reserve wanted = gpushm_testing::reserve_pages("hostile", 1);
    if (std::get<carrier>(GetParam()) == carrier::page) {
      wanted.size_bytes = wanted.allocated_bytes = gpushm::sync::timeline_page_bytes;
      wanted.backend = gpushm::backend::signals;
    }
    const auto reserved = member.request(wanted);
    const auto* const grant = gpushm_testing::body_of<wire::reserved>(reserved);
    EXPECT_NE(grant, nullptr);
    return {std::move(member),
            wire::attach{grant == nullptr ? 0 : grant->generation, 0, {wanted.size_bytes}}};
  }
  [[nodiscard]] static std::vector<int> descriptors_of(const hostile_descriptor& sent, int pidfd) {
    if (std::get<carrier>(GetParam()) == carrier::hello) {
      return {pidfd, sent.get()};
    }
    return {sent.get()};
  }
  /// A pipe is what Hello must have.
  [[nodiscard]] static bool is_accepted() {
    return std::get<trap>(GetParam()) == trap::pipe &&
           std::get<carrier>(GetParam()) == carrier::hello;
  }

  [[nodiscard]] static bool is_lost(const gpushm_testing::raw_reply& reply) {
    return std::get<carrier>(GetParam()) == carrier::hello &&
           std::get<replaced>(GetParam()) == replaced::broker && reply.closed;
  }

  void replace_worker() {
    const pid_t keeper = broker_.keeper().pid();
    const pid_t worker = gpushm_testing::worker_of_keeper(keeper);
    ASSERT_EQ(gpushm::base::signal_process(worker, SIGKILL), 0);
    EXPECT_NE(gpushm_testing::worker_of_keeper(keeper, worker), 0);
  }

  /// Descriptors of the keeper, of the broker, and of its threads that receive descriptors.
  using counts = std::array<std::size_t, 3>;
  [[nodiscard]] counts open_now() {
    const pid_t broker = broker_.pid();
    const pid_t receiver = gpushm_tests::thread_named(broker, "gpushm-receiver");
    const auto count = [](pid_t one) {
      return gpushm_testing::total(gpushm_testing::count_descriptors(one));
    };
    return {count(broker_.keeper().pid()), count(broker), count(receiver)};
  }
  [[nodiscard]] bool has_at_most(const counts& before, counts& now) {
    try {
      now = open_now();
    } catch (const gpushm_testing::harness_error&) {  // a process or thread has just ended
      return false;
    }
    return now[0] <= before[0] && now[1] <= before[1] && now[2] <= before[2];
  }
};

TEST_P(hostile_descriptors, hurt_no_one_else) {
  gpushm::client user = connect();
  gpushm::segment kept = user.create("kept", {.size_bytes = 4'096, .device = "host"});
  kept.publish();
  const bool is_one_tenant = gpushm_testing::one_tenant_here().has_value();
  const auto expect_service = [&](bool is_blocked) {
    EXPECT_EQ(user.list("kept").size(), 1U);
    EXPECT_TRUE(user.try_open("kept"));
    EXPECT_EQ(kept.state(), gpushm::segment_state::live);
    if (!is_blocked || !is_one_tenant) {  // Hello has descriptors
      EXPECT_TRUE(connect().try_open("kept"));
    }
  };
  expect_service(false);
  // An Attach is answered before the keeper has the chunk.
  ASSERT_TRUE(eventually(
      [&] {
        return gpushm_testing::total(gpushm_testing::count_descriptors(broker_.keeper().pid()),
                                     "gpushm-chunk") == 1;
      },
      20s));
  counts before{};
  ASSERT_TRUE(eventually([&] { return has_at_most({1'000, 1'000, 1'000}, before); }, 20s));
  {
    auto [member, message] = hostile_member();
    const unique_fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    std::optional<hostile_descriptor> sent(
        std::in_place, std::get<trap>(GetParam()), member.socket());
    stop_broker();
    EXPECT_TRUE(member.send(message, descriptors_of(*sent, pidfd.get())));
    sent->close();
    const pid_t first = broker_.pid();
    switch (std::get<replaced>(GetParam())) {
      case replaced::broker:  // before it has received them
        ASSERT_TRUE(broker_.kill());
        break;
      case replaced::keeper:
        gpushm::base::signal_process(first, SIGCONT);
        replace_worker();
        break;
      case replaced::nothing:
      case replaced::both:
        gpushm::base::signal_process(first, SIGCONT);
        break;
    }
    const auto reply = member.receive(gpushm_testing::scaled_timeout(20s));
    if (is_accepted()) {
      EXPECT_TRUE(reply.closed || gpushm_testing::body_of<wire::welcome>(reply) != nullptr);
    } else {
      EXPECT_TRUE(reply.closed || gpushm_testing::failure_of(reply)) << "it has no reply";
    }
    // A packet that has not been received ends with its connection, which a successor does not have
    // if the broker had accepted it, and not recorded it, when it died.
    EXPECT_TRUE(eventually([&] { return sent->is_met() || is_lost(reply); }, 20s))
        << "it has not closed it";
    expect_service(sent->blocks());
    if (std::get<replaced>(GetParam()) == replaced::both) {
      replace_worker();
    }
    if (std::get<replaced>(GetParam()) != replaced::nothing) {
      ASSERT_TRUE(broker_.kill());
    }
    expect_service(sent->blocks());
    sent.reset();
    static_cast<void>(member.send(wire::bye{}));  // or its lease would wait for its fence
  }
  counts now{};
  EXPECT_TRUE(eventually([&] { return has_at_most(before, now); }, 30s))
      << "keeper " << before[0] << " -> " << now[0] << ", broker " << before[1] << " -> " << now[1]
      << ", receiver " << before[2] << " -> " << now[2];
  expect_service(false);
  // Leases of clients that have just ended may still be there.
  EXPECT_TRUE(eventually([&] { return user.stat("kept").leases == 1; }, 20s));
  if (HasFailure()) {
    ADD_FAILURE() << log();
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<trap, carrier, replaced>>& tested) {
  const auto [kind, message, which] = tested.param;
  return std::string(trap_names.at(static_cast<std::size_t>(kind))) + "_in_" +
         carrier_names.at(static_cast<std::size_t>(message)) + "_replaced_" +
         replaced_names.at(static_cast<std::size_t>(which));
}

INSTANTIATE_TEST_SUITE_P(
    matrix,
    hostile_descriptors,
    testing::Combine(
        testing::Values(trap::stuck_file,
                        trap::lingering_socket,
                        trap::nested,
                        trap::pipe,
                        trap::event,
                        trap::unsealed,
                        trap::too_small,
                        trap::own_memory,
                        trap::poll_set,
                        trap::own_connection),
        testing::Values(carrier::hello, carrier::attach, carrier::page),
        testing::Values(replaced::nothing, replaced::broker, replaced::keeper, replaced::both)),
    name_of);

/// The packets of a member have descriptors that keep a thread that closes them.
class brokerd_with_lingering_member : public brokerd_with_foreign_member {
 protected:
  using brokerd_with_foreign_member::brokerd_with_foreign_member;
  /// Sends these packets while the broker is stopped, the last one with a copy of a socket whose
  /// last close blocks.
  void send_lingering(int socket, int packets) {
    stop_broker();
    const std::array<std::byte, 4> invalid{};
    for (int i = 1; i != packets; ++i) {
      static_cast<void>(gpushm::transport::send_packet(socket, invalid, {}));
    }
    gpushm_testing::lingering_socket& each = sent_.emplace_back(600s);
    const std::array<int, 1> descriptors{each.trap.get()};
    EXPECT_EQ(gpushm::transport::send_packet(socket, invalid, descriptors),
              gpushm::transport::send_result::sent);
    each.trap.reset();  // not the last one
    EXPECT_EQ(gpushm::base::signal_process(broker_.pid(), SIGCONT), 0);
  }

 private:
  std::list<gpushm_testing::lingering_socket> sent_;
};

TEST_F(brokerd_with_lingering_member, has_a_successor_that_does_not_wait_for_them) {
  gpushm::client user = connect();
  gpushm::segment kept = user.create("w", {.size_bytes = 4'096, .device = "host"});
  kept.publish();
  // The first one keeps the thread that would close the others.
  const auto first = connect_hostile();
  send_lingering(first.get(), 1);
  expect_dropped(first.get());
  std::vector<gpushm::base::guarded_fd> others;
  for (int i = 0; i < 3; ++i) {
    others.push_back(connect_hostile());
    send_lingering(others.back().get(), 2);
    expect_dropped(others.back().get());
  }
  ASSERT_TRUE(broker_.kill());
  EXPECT_EQ(connect().list().size(), 1U) << log();
  EXPECT_EQ(kept.state(), gpushm::segment_state::live);
  ASSERT_TRUE(broker_.kill());
  EXPECT_EQ(connect().list().size(), 1U) << "the keeper is blocked: " << log();
}

class brokerd_with_lingering_member_and_few_open_files : public brokerd_with_lingering_member {
 protected:
  brokerd_with_lingering_member_and_few_open_files()
      : brokerd_with_lingering_member("default,other", 1'024) {}
};

/// The sockets of its connections wait for a thread that is blocked: more than broker or keeper can
/// have, if nothing refused them.
TEST_F(brokerd_with_lingering_member_and_few_open_files, leaves_descriptors_for_others) {
  if (const auto tenant = gpushm_testing::one_tenant_here()) {
    GTEST_SKIP() << "all members are one tenant here: " << *tenant;
  }
  const auto first = connect_hostile();
  send_lingering(first.get(), 1);
  expect_dropped(first.get());
  const gpushm::base::unique_fd harmless(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::array<int, 1> descriptors{harmless.get()};
  const std::array<std::byte, 4> invalid{};
  for (int i = 0; i != 1'100; ++i) {
    const auto member = connect_hostile();
    static_cast<void>(gpushm::transport::send_packet(member.get(), invalid, {}));
    static_cast<void>(gpushm::transport::send_packet(member.get(), invalid, descriptors));
  }
  try {
    gpushm::client user = connect();  // Hello has descriptors
    gpushm::segment kept = user.create("w", {.size_bytes = 4'096, .device = "host"});
    kept.publish();
    EXPECT_TRUE(connect().try_open("w"));
    ASSERT_TRUE(broker_.kill());
    EXPECT_EQ(connect().list().size(), 1U) << log();
    EXPECT_EQ(kept.state(), gpushm::segment_state::live) << log();
  } catch (const gpushm::error& why) {
    ADD_FAILURE() << why.what();
  }
}

/// The keeper is stopped, and its queue is full.
TEST_F(brokerd_with_lingering_member, serves_others_although_it_cannot_store_a_connection) {
  gpushm::client user = connect();
  static_cast<void>(user.list());
  const pid_t worker = gpushm_testing::worker_of_keeper(broker_.keeper().pid());
  ASSERT_EQ(gpushm::base::signal_process(worker, SIGSTOP), 0);
  ASSERT_EQ(gpushm_testing::fill_queue_of(run_dir_ + "/keeper/notify"), EAGAIN);
  // The descriptors arrive before the connection is accepted, or while that waits for the keeper.
  const auto member = connect_hostile();
  send_lingering(member.get(), 1);
  expect_dropped(member.get());
  EXPECT_EQ(gpushm::base::signal_process(worker, SIGCONT), 0);
  EXPECT_EQ(user.list().size(), 0U);
  EXPECT_EQ(connect().list().size(), 0U);
}

}  // namespace
