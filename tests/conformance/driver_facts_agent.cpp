// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/driver_facts_agent.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "base/files/syscall.hpp"
#include "base/process/signals.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm::conformance {

namespace {

constexpr int deadline_ms =
    static_cast<int>(gpushm_testing::scaled_timeout(std::chrono::seconds(60)).count());
constexpr int agent_fd = 3;

void send_message(int socket, const message& sent, int fd) {
  message copy = sent;
  iovec part{&copy, sizeof(copy)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  }
  if (base::retry([&] { return ::sendmsg(socket, &header, MSG_NOSIGNAL); }) !=
      ssize_t{sizeof(copy)}) {
    throw std::runtime_error(std::string("sendmsg: ") + std::strerror(errno));
  }
}

// Returns false if the other end has been closed.
bool receive_message(int socket, message& received, base::unique_fd& fd, int timeout_ms) {
  pollfd waited{socket, POLLIN, 0};
  if (base::retry([&] { return ::poll(&waited, 1, timeout_ms); }) == 0) {
    throw std::runtime_error("no reply in time");
  }
  iovec part{&received, sizeof(received)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t size = base::retry([&] { return ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC); });
  if (size != ssize_t{sizeof(received)}) {
    return false;
  }
  if (const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
      rights != nullptr && rights->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(rights), sizeof(number));
    fd = base::unique_fd(number);
  }
  return true;
}

// Runs in the child, between fork and exec. Does not return.
[[noreturn]] void become_agent(const agent_options& options, int socket) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const auto& [name, value] : options.environment) {
    if (value.empty()) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  // The real driver reads its own entry in /proc, which must be that of the new namespace.
  if (options.own_pid_namespace &&
      (::unshare(CLONE_NEWNS) != 0 ||
       ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
       ::mount("proc", "/proc", "proc", 0, nullptr) != 0)) {
    ::_exit(93);
  }
  if (options.own_shm) {
    if (::unshare(CLONE_NEWNS | CLONE_NEWIPC) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777") != 0) {
      ::_exit(90);
    }
  }
  if (socket == agent_fd) {
    ::fcntl(socket, F_SETFD, 0);
  } else {
    ::dup2(socket, agent_fd);
  }
  ::execl("/proc/self/exe", "conformance-agent", "--agent", nullptr);
  ::_exit(91);
}

}  // namespace

std::string namespace_skip_reason() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(::unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC) == 0 ? 0 : errno);
  }
  int status = 0;
  base::retry([&] { return ::waitpid(child, &status, 0); });
  const int number = WIFEXITED(status) ? WEXITSTATUS(status) : EINVAL;
  return number == 0 ? std::string()
                     : std::string("namespaces cannot be created here: ") + std::strerror(number);
}

agent::agent(const agent_options& options) {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::runtime_error(std::string("socketpair: ") + std::strerror(errno));
  }
  socket_ = base::unique_fd(ends[0]);
  const base::unique_fd agent_end(ends[1]);
  // A new PID namespace applies only to children, so an intermediate process is needed; it passes
  // on the exit status.
  pid_ = ::fork();
  if (pid_ == 0) {
    if (!options.own_pid_namespace) {
      become_agent(options, agent_end.get());
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::unshare(CLONE_NEWPID) != 0) {
      ::_exit(92);
    }
    const pid_t inner = ::fork();
    if (inner == 0) {
      become_agent(options, agent_end.get());
    }
    int status = 0;
    ::close(agent_end.get());
    ::close(socket_.get());
    base::retry([&] { return ::waitpid(inner, &status, 0); });
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  if (pid_ < 0) {
    throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  }
  started_ = request(order::init, static_cast<std::uint64_t>(options.ordinal));
}

agent::~agent() {
  if (pid_ > 0) {
    kill();
  }
}

answer agent::request(
    order subject, std::uint64_t number, std::uint64_t number2, const char* bytes, int fd) {
  message sent;
  sent.what = subject;
  sent.number = number;
  sent.number2 = number2;
  if (bytes != nullptr) {
    std::memcpy(sent.bytes, bytes, sizeof(sent.bytes));
  }
  send_message(socket_.get(), sent, fd);
  message received;
  answer got;
  if (!receive_message(socket_.get(), received, got.fd, deadline_ms)) {
    throw std::runtime_error("the agent has exited");
  }
  got.result = static_cast<cuda::CUresult>(received.result);
  got.value = received.number;
  got.value2 = received.number2;
  std::memcpy(got.bytes, received.bytes, sizeof(got.bytes));
  return got;
}

void agent::kill() {
  gpushm::base::signal_process(pid_, SIGKILL);
  static_cast<void>(wait());
}

int agent::end() {
  message sent;
  sent.what = order::end;
  send_message(socket_.get(), sent, -1);
  return wait();
}

int agent::wait() {
  int status = 0;
  base::retry([&] { return ::waitpid(pid_, &status, 0); });
  pid_ = -1;
  return status;
}

// The agent's end of the socket; driver_facts_orders.cpp executes the orders.
bool next_order(message& received, base::unique_fd& fd) {
  fd.reset();
  return receive_message(agent_fd, received, fd, -1);
}

void send_answer(const message& sent, int fd) {
  send_message(agent_fd, sent, fd);
}

}  // namespace gpushm::conformance
