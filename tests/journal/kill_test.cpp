// SPDX-License-Identifier: Apache-2.0
// A server with one client, killed by SIGKILL between any two of its instructions and replaced by a
// successor: each request is handled once and answered once, whatever the instruction
// (docs/adr/0031). Here the test is the keeper: it has the socket and the journal, and forks the
// servers. GPUSHM_KILL_STEP=1 kills at every instruction; the default is a sample of them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/signals.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/transport/reported_call.hpp"
#include "succession/journal/journal.hpp"
#include "tests/support/process/environment.hpp"

namespace {

using gpushm::base::unique_fd;
using gpushm::journal::journal;
using gpushm::journal::record_key;
using gpushm::transport::remove_reported;
using gpushm::transport::remove_result;
using gpushm::transport::reported_call;
using gpushm::transport::send_reported;
using gpushm::transport::send_result;

constexpr record_key total_key{1, 0, 0};    // the sum of all requests
constexpr record_key reply_key{2, 0, 0};    // an answer that is not sent yet
constexpr record_key handled_key{3, 0, 0};  // the first packet of the socket is handled
constexpr std::uint64_t subject = 7;

/// So small that most commits give memory back, and that a server crosses its end.
constexpr std::uint64_t journal_bytes = 12U << 10U;
/// Until the first of them.
constexpr int first_requests = 20;

struct request {
  std::uint64_t number = 0;
  std::uint64_t amount = 0;
};
struct reply {
  std::uint64_t number = 0;
  std::uint64_t total = 0;
};

template <typename Value>
std::span<const std::byte> bytes_of(const Value& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <typename Value>
std::optional<Value> read(const journal& journal, const record_key& key) {
  const auto entry = journal.find(key);
  if (!entry) {
    return std::nullopt;
  }
  Value value{};
  std::memcpy(&value, entry->data(), sizeof(value));
  return value;
}

void remove_handled(journal& state, int socket) {
  if (remove_reported(state.call(), subject, socket) != remove_result::removed) {
    ::_exit(3);
  }
  state.erase(handled_key);
  state.commit();
  state.call().clear();
}

void send_reply(journal& state, int socket) {
  const auto next = read<reply>(state, reply_key);
  if (send_reported(state.call(), subject, socket, bytes_of(*next), {}) != send_result::sent) {
    ::_exit(4);
  }
  state.erase(reply_key);
  state.commit();
  state.call().clear();
}

/// Completes what the predecessor has begun.
void recover(journal& state, int socket) {
  reported_call& last = state.call();
  if (last.what != reported_call::kind::none && last.has_taken_effect()) {
    state.erase(last.what == reported_call::kind::send ? reply_key : handled_key);
    state.commit();
  }
  last.clear();
  if (state.find(handled_key)) {
    remove_handled(state, socket);
  }
  if (state.find(reply_key)) {
    send_reply(state, socket);
  }
}

/// Handles requests until none has arrived.
void serve(journal& state, int socket) {
  for (;;) {
    request next;
    const ssize_t size = ::recv(socket, &next, sizeof(next), MSG_PEEK | MSG_DONTWAIT);
    if (size != sizeof(next)) {
      return;
    }
    const std::uint64_t total = read<std::uint64_t>(state, total_key).value_or(0) + next.amount;
    state.put(total_key, bytes_of(total));
    state.put(reply_key, bytes_of(reply{next.number, total}));
    state.put(handled_key, {});
    state.commit();
    remove_handled(state, socket);
    send_reply(state, socket);
  }
}

class killed_server : public testing::Test {
 protected:
  killed_server() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
      std::abort();
    }
    client_ = unique_fd(ends[0]);
    server_ = unique_fd(ends[1]);
    const journal created = journal::create(journal_bytes);
    journal_ = unique_fd(::fcntl(created.descriptor(), F_DUPFD_CLOEXEC, 0));
  }

  void SetUp() override {
    for (int i = 0; i < first_requests; ++i) {
      request_next();
      run();
      expect_reply();
    }
  }

  [[nodiscard]] journal open_journal() const {
    return journal::open(unique_fd(::fcntl(journal_.get(), F_DUPFD_CLOEXEC, 0)));
  }

  /// Runs a server that is killed after `steps` instructions, unless it ends before. Returns
  /// whether it was killed.
  bool run_and_kill(std::uint64_t steps) {
    const pid_t child = ::fork();
    if (child == 0) {
      journal state = open_journal();
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::raise(SIGSTOP);
      recover(state, server_.get());
      serve(state, server_.get());
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSTOPPED(status));
    for (std::uint64_t i = 0; i < steps; ++i) {
      ::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      if (WIFEXITED(status)) {
        EXPECT_EQ(WEXITSTATUS(status), 0);
        instructions_ = i;
        return false;
      }
    }
    gpushm::base::signal_process(child, SIGKILL);
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    return true;
  }

  /// Runs a server to its end.
  void run() {
    const pid_t child = ::fork();
    if (child == 0) {
      journal state = open_journal();
      recover(state, server_.get());
      serve(state, server_.get());
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }

  void request_next() {
    ++number_;
    total_ += number_;
    ASSERT_EQ(::send(client_.get(), bytes_of(request{number_, number_}).data(), sizeof(request), 0),
              static_cast<ssize_t>(sizeof(request)));
  }

  /// There is one answer, the expected one.
  void expect_reply() {
    reply got;
    ASSERT_EQ(::recv(client_.get(), &got, sizeof(got), MSG_DONTWAIT),
              static_cast<ssize_t>(sizeof(got)))
        << "no answer to request " << number_;
    EXPECT_EQ(got.number, number_);
    EXPECT_EQ(got.total, total_);
    EXPECT_EQ(::recv(client_.get(), &got, sizeof(got), MSG_DONTWAIT), -1) << "a second answer";
  }

  unique_fd client_;
  unique_fd server_;
  unique_fd journal_;
  std::uint64_t number_ = 0;
  std::uint64_t total_ = 0;
  std::uint64_t instructions_ = 0;  ///< of a server that handles one request
};

std::uint64_t stride(std::uint64_t instructions) {
  // An odd number: a stride that divides a loop's length would always meet the same instruction.
  // Under a sanitizer there are five times as many.
  const std::uint64_t kills = gpushm::base::under_sanitizer ? 5 : 30;
  return gpushm_testing::number_from_environment("GPUSHM_KILL_STEP", instructions / kills | 1U);
}

TEST_F(killed_server, handles_each_request_once_with_one_reply) {
  request_next();
  ASSERT_FALSE(run_and_kill(10'000'000));
  expect_reply();
  ASSERT_GT(instructions_, 500U);
  std::printf("%llu instructions\n", static_cast<unsigned long long>(instructions_));
  const std::uint64_t last = instructions_ + instructions_ / 10;
  for (std::uint64_t steps = 0; steps < last; steps += stride(instructions_)) {
    request_next();
    run_and_kill(steps);
    run();
    expect_reply();
    if (HasFailure()) {
      FAIL() << "killed after instruction " << steps;
    }
  }
}

TEST_F(killed_server, successor_of_a_successor_completes_the_work) {
  request_next();
  ASSERT_FALSE(run_and_kill(10'000'000));
  expect_reply();
  const std::uint64_t whole = instructions_;
  std::uint64_t random = 1;
  for (int round = 0; round < (gpushm::base::under_sanitizer ? 2 : 8); ++round) {
    request_next();
    std::vector<std::uint64_t> kills;
    for (int i = 0; i < 4; ++i) {
      random = random * 6364136223846793005ULL + 1442695040888963407ULL;  // Knuth's MMIX
      kills.push_back((random >> 33U) % whole);
      run_and_kill(kills.back());
    }
    run();
    expect_reply();
    if (HasFailure()) {
      FAIL() << "killed after " << testing::PrintToString(kills);
    }
  }
}

TEST_F(killed_server, several_requests_in_the_queue_get_replies_in_order) {
  for (std::uint64_t steps : {0ULL, 500ULL, 1'500ULL, 3'000ULL, 6'000ULL, 12'000ULL}) {
    const std::uint64_t first = number_ + 1;
    for (int i = 0; i < 5; ++i) {
      request_next();
    }
    run_and_kill(steps);
    run_and_kill(steps / 2);
    run();
    std::uint64_t total = total_;
    for (std::uint64_t i = number_; i >= first; --i) {
      total -= i;
    }
    for (std::uint64_t i = first; i <= number_; ++i) {
      reply got;
      ASSERT_EQ(::recv(client_.get(), &got, sizeof(got), MSG_DONTWAIT),
                static_cast<ssize_t>(sizeof(got)));
      total += i;
      EXPECT_EQ(got.number, i);
      EXPECT_EQ(got.total, total);
    }
    reply extra;
    EXPECT_EQ(::recv(client_.get(), &extra, sizeof(extra), MSG_DONTWAIT), -1);
  }
}

}  // namespace
