// SPDX-License-Identifier: Apache-2.0
// What a forked child inherits from its parent. Children call only async-signal-safe functions, so
// that the tests mean the same under sanitizers.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/device_files.hpp"
#include "base/files/fork_guard.hpp"
#include "base/files/guarded_fd.hpp"
#include "base/files/syscall.hpp"
#include "base/process/signals.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::base {
namespace {

using namespace std::chrono_literals;

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) != -1;
}

guarded_fd new_guarded() {
  return guarded_fd::open([] { return ::memfd_create("guarded", MFD_CLOEXEC); });
}

/// Forks; the child exits with the result of `body`. Returns that, or 128 + the signal.
template <typename Body>
int in_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(body());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(fork_guard, child_has_only_unguarded_descriptors) {
  const guarded_fd guarded = new_guarded();
  const unique_fd other(::memfd_create("other", MFD_CLOEXEC));
  const int number = guarded.get();
  EXPECT_EQ(in_child([&] {
              return is_open(number)                  ? 1
                     : guarded.get() != -1 || guarded ? 2
                     : !is_open(other.get())          ? 3
                                                      : 0;
            }),
            0);
  EXPECT_TRUE(is_open(number));
}

TEST(fork_guard, child_does_not_close_reused_numbers) {
  std::optional<guarded_fd> guarded(new_guarded());
  std::optional<guarded_fd> moved(new_guarded());
  const unique_fd in_both(::memfd_create("log", MFD_CLOEXEC));
  const int number = guarded->get();
  EXPECT_EQ(in_child([&] {
              const unique_fd log(::dup2(in_both.get(), number));
              if (log.get() != number) {
                return 1;
              }
              std::optional<guarded_fd> owner(guarded_fd(unique_fd(::dup(log.get()))));
              const int own = owner->get();
              guarded.reset();
              *moved = guarded_fd();
              if (!is_open(log.get()) || !is_open(own)) {
                return 2;
              }
              owner.reset();
              return is_open(own) ? 3 : 0;
            }),
            0);
  EXPECT_TRUE(is_open(number));
}

TEST(fork_guard, closed_and_released_are_unregistered) {
  guarded_fd guarded = new_guarded();
  const int number = guarded.get();
  guarded.reset();
  const unique_fd next(::memfd_create("next", MFD_CLOEXEC));
  ASSERT_EQ(next.get(), number);
  guarded_fd other = new_guarded();
  const unique_fd released = other.release();
  EXPECT_FALSE(other);
  EXPECT_EQ(in_child([&] { return is_open(next.get()) && is_open(released.get()) ? 0 : 1; }), 0);
}

TEST(fork_guard, grandchild_is_a_child_of_the_child) {
  const std::uint64_t here = fork_generation();
  EXPECT_FALSE(is_forked_child_of(here));
  EXPECT_EQ(in_child([&] {
              const std::uint64_t child = fork_generation();
              const int below = in_child(
                  [&] { return is_forked_child_of(child) && is_forked_child_of(here) ? 0 : 1; });
              return is_forked_child_of(here) && !is_forked_child_of(child) ? below : 2;
            }),
            0);
  EXPECT_EQ(fork_generation(), here);
}

TEST(fork_guard, child_without_handlers_is_recognised) {
  const std::uint64_t here = fork_generation();
  const guarded_fd guarded = new_guarded();
  const int number = guarded.get();
  const pid_t child =
      static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  ASSERT_NE(child, -1);
  if (child == 0) {
    ::alarm(20);
    const bool forked = is_forked_child_of(here);
    const bool twice = is_forked_child_of(here) && fork_generation() == here + 1;
    ::_exit(!forked ? 1 : !twice ? 2 : is_open(number) ? 3 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(is_forked_child_of(here));
}

TEST(fork_guard, child_that_is_not_recognised_yet_guards_its_own) {
  const pid_t child =
      static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  ASSERT_NE(child, -1);
  if (child == 0) {
    ::alarm(20);
    const guarded_fd own = new_guarded();
    const int number = own.get();
    ::_exit(number == -1 ? 1 : is_open(number) ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(fork_guard, works_for_large_numbers) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  constexpr int large = 600'000;  // beyond the first block of the bitmap
  rlimit raised = before;
  raised.rlim_cur = large + 1;
  raised.rlim_max = std::max<rlim_t>(before.rlim_max, raised.rlim_cur);
  if (::setrlimit(RLIMIT_NOFILE, &raised) != 0) {
    GTEST_SKIP() << "the hard limit of open files is " << before.rlim_max;
  }
  const unique_fd low(::memfd_create("low", MFD_CLOEXEC));
  const int copy = ::fcntl(low.get(), F_DUPFD_CLOEXEC, large);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(copy, large);
  const guarded_fd high{unique_fd(copy)};
  EXPECT_EQ(in_child([&] { return is_open(large) ? 1 : is_open(low.get()) ? 0 : 2; }), 0);
  EXPECT_TRUE(is_open(large));
}

bool is_memfd_named(int fd, std::string_view name) {
  std::array<char, 32> path{"/proc/self/fd/"};
  std::size_t at = std::strlen(path.data());
  for (int digits = 1000; digits != 0; digits /= 10) {
    if (fd >= digits || digits == 1) {
      path.at(at++) = static_cast<char>('0' + fd / digits % 10);
    }
  }
  std::array<char, 64> target{};
  const auto size = ::readlink(path.data(), target.data(), target.size());
  return size > 0 && std::string_view(target.data(), static_cast<std::size_t>(size)).find(name) !=
                         std::string_view::npos;
}

/// Threads open and close guarded and other descriptors, so that numbers constantly change kind,
/// while the process forks: no child may have a guarded descriptor, and each must have all
/// descriptors that were open throughout.
TEST(fork_guard, works_while_threads_open_and_close) {
  constexpr int highest = 256;
  std::vector<unique_fd> kept;
  for (int i = 0; i < 8; ++i) {
    kept.emplace_back(::memfd_create("kept", MFD_CLOEXEC));
  }
  std::atomic<bool> stop{false};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      while (!stop.load(std::memory_order_relaxed)) {
        guarded_fd first = new_guarded();
        const unique_fd foreign(::memfd_create("foreign", MFD_CLOEXEC));
        guarded_fd second = new_guarded();
        first.reset();
        if (i == 0) {
          ::sched_yield();
        }
      }
    });
  }
  for (int round = 0; round < 300; ++round) {
    const int result = in_child([&] {
      for (int fd = 3; fd < highest; ++fd) {
        if (is_memfd_named(fd, "guarded")) {
          return 1;
        }
      }
      for (const unique_fd& each : kept) {
        if (!is_memfd_named(each.get(), "kept")) {
          return 2;
        }
      }
      return 0;
    });
    if (result != 0) {
      stop = true;
      FAIL() << "child " << round << " returned " << result;
    }
  }
  stop = true;
}

TEST(fork_guard, long_section_delays_but_does_not_stop_fork) {
  std::atomic<bool> inside{false};
  std::atomic<bool> stop{false};
  const std::jthread slow([&] {
    const fork_section section;
    inside = true;
    while (!stop) {
      std::this_thread::sleep_for(1ms);
    }
  });
  while (!inside) {
    std::this_thread::yield();
  }
  EXPECT_EQ(in_child([] {
              const fork_section free_again;
              return 0;
            }),
            0);
  EXPECT_FALSE(stop);
  stop = true;
}

TEST(fork_guard, mutex_is_free_and_data_consistent_in_child) {
  fork_safe_mutex guard;
  int first = 0;
  int second = 0;
  std::atomic<bool> stop{false};
  const std::jthread busy([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      const std::lock_guard lock(guard);
      ++first;
      ::sched_yield();
      ++second;
    }
  });
  for (int round = 0; round < 100; ++round) {
    const int result = in_child([&] {
      const std::lock_guard lock(guard);
      return first == second ? 0 : 1;
    });
    if (result != 0) {
      ADD_FAILURE() << "child " << round << " returned " << result;
      break;
    }
  }
  stop = true;
}

// ---- the life pipe and the driver's files ----

/// A device node that is recognised as the driver's, and reads as /dev/null.
class driver_node {
 public:
  driver_node() : path_(directory_ / "nvidia-test") {
    created_ = ::mknod(path_.c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0;
  }
  /// The reason if the node cannot be created or opened here; empty otherwise.
  [[nodiscard]] std::string skip_reason() const {
    return created_ && open() ? "" : "device nodes cannot be created or opened here (root, nodev)";
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] unique_fd open(int flags = O_CLOEXEC) const {
    return unique_fd(::open(path_.c_str(), O_RDWR | flags));
  }

 private:
  gpushm_testing::temp_dir directory_;
  std::string path_;
  bool created_ = false;
};

bool leads_to(int fd, std::string_view path) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "/proc/self/fd/%d", fd);
  std::array<char, 256> target{};
  const auto size = ::readlink(name.data(), target.data(), target.size());
  return size > 0 && std::string_view(target.data(), static_cast<std::size_t>(size)) == path;
}

/// Creates a child without fork handlers, like vfork and clone.
pid_t raw_fork(int signal_at_its_end = SIGCHLD) {
  return static_cast<pid_t>(::syscall(SYS_clone, signal_at_its_end, 0, 0, 0, 0));
}

/// Returns in the parent only: the child waits until it is killed, for 20 s at most.
pid_t pause_in(pid_t child) {
  if (child == 0) {
    ::alarm(20);
    for (;;) {
      ::pause();
    }
  }
  return child;
}

/// Kills a child, of any kind, and takes its status.
void end(pid_t child) {
  EXPECT_EQ(signal_process(child, SIGKILL), 0);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, __WALL), child);
}

/// A process with a life pipe that dies and leaves a running child.
class dying_parent {
 public:
  enum class kind { with_handlers, without };
  explicit dying_parent(kind kind) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    const unique_fd near(ends[0]);
    const unique_fd far(ends[1]);
    const pid_t parent = ::fork();
    if (parent == 0) {
      ::alarm(20);
      const int life = life_pipe();
      const pid_t child = pause_in(kind == kind::with_handlers ? ::fork() : raw_fork());
      std::array<std::byte, sizeof child> packet{};
      std::memcpy(packet.data(), &child, sizeof child);
      send_with(far.get(), packet, life);
      ::_exit(0);
    }
    receive_from(near.get());
    int status = 0;
    EXPECT_EQ(::waitpid(parent, &status, 0), parent);
    EXPECT_EQ(status, 0);
  }
  dying_parent(const dying_parent&) = delete;
  dying_parent& operator=(const dying_parent&) = delete;
  ~dying_parent() { kill_child(); }

  [[nodiscard]] bool hangs_up(int timeout_ms) const {
    pollfd entry{life_.get(), POLLIN, 0};
    return ::poll(&entry, 1, timeout_ms) > 0 && (entry.revents & POLLHUP) != 0;
  }
  void kill_child() {
    if (child_ > 0) {
      signal_process(std::exchange(child_, -1), SIGKILL);
    }
  }

 private:
  static void send_with(int socket, std::span<const std::byte> packet, int fd) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    ::sendmsg(socket, &header, MSG_NOSIGNAL);
  }
  void receive_from(int socket) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    iovec part{&child_, sizeof child_};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    ASSERT_EQ(::recvmsg(socket, &header, MSG_CMSG_CLOEXEC), ssize_t{sizeof child_});
    const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    ASSERT_NE(rights, nullptr);
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    life_ = unique_fd(fd);
  }

  pid_t child_ = -1;
  unique_fd life_;
};

TEST(life_pipe, hangs_up_on_exit_despite_running_child) {
  EXPECT_EQ(life_pipe(), life_pipe());
  const dying_parent parent(dying_parent::kind::with_handlers);
  EXPECT_TRUE(parent.hangs_up(10'000));
}

TEST(life_pipe, stays_open_in_child_without_handlers) {
  dying_parent parent(dying_parent::kind::without);
  EXPECT_FALSE(parent.hangs_up(200));
  parent.kill_child();
  EXPECT_TRUE(parent.hangs_up(10'000));
}

TEST(life_pipe, differs_in_child) {
  const int life = life_pipe();
  struct stat parents {};
  ASSERT_EQ(::fstat(life, &parents), 0);
  EXPECT_EQ(in_child([&] {
              struct stat own {};
              return ::fstat(life_pipe(), &own) != 0 ? 1 : own.st_ino == parents.st_ino ? 2 : 0;
            }),
            0);
  pollfd entry{life, POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
}

TEST(driver_files, become_dev_null_in_child) {
  const driver_node node;
  if (const std::string why = node.skip_reason(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  static_cast<void>(life_pipe());
  const unique_fd closed_on_exec = node.open();
  const unique_fd handed_on = node.open(0);
  const unique_fd other(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(in_child([&] {
              return !leads_to(closed_on_exec.get(), "/dev/null") ? 1
                     : leads_to(handed_on.get(), "/dev/null")     ? 2
                     : !leads_to(other.get(), "/dev/zero")        ? 3
                                                                  : 0;
            }),
            0);
  EXPECT_FALSE(leads_to(closed_on_exec.get(), "/dev/null"));
}

TEST(driver_files, are_found_in_descendants) {
  const driver_node node;
  if (const std::string why = node.skip_reason(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  EXPECT_FALSE(descendants_may_have_driver_files());  // none exist
  const unique_fd file = node.open();
  EXPECT_FALSE(descendants_may_have_driver_files());  // no descendants exist

  static_cast<void>(life_pipe());
  const pid_t handled = pause_in(::fork());
  EXPECT_TRUE(gpushm_testing::eventually([] { return !descendants_may_have_driver_files(); }, 10s));
  const pid_t own = raw_fork();
  if (own == 0) {  // a child that has opened the driver itself
    const int same = file.get();
    ::close(same);
    static_cast<void>(node.open().release());
  }
  pause_in(own);
  EXPECT_TRUE(gpushm_testing::eventually([] { return !descendants_may_have_driver_files(); }, 10s));
  const pid_t unseen = pause_in(raw_fork());
  EXPECT_TRUE(descendants_may_have_driver_files());
  end(unseen);
  EXPECT_FALSE(descendants_may_have_driver_files());
  end(own);
  end(handled);
}

TEST(driver_files, are_found_in_a_child_without_a_signal_at_its_end) {
  const driver_node node;
  if (const std::string why = node.skip_reason(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  const unique_fd file = node.open();
  const pid_t child = pause_in(raw_fork(0));
  if (child == -1) {
    GTEST_SKIP() << "no such child can be made here: " << errno_text(errno)
                 << " (QEMU's user mode refuses it)";
  }
  EXPECT_TRUE(descendants_may_have_driver_files());
  end(child);
}

TEST(driver_files, are_not_looked_for_without_children) {
  const driver_node node;
  if (const std::string why = node.skip_reason(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  const gpushm_testing::temp_dir empty;
  EXPECT_EQ(in_child([&] {
              const unique_fd file = node.open();
              if (::chroot(empty.path().c_str()) != 0) {  // no /proc
                return 1;
              }
              if (descendants_may_have_driver_files()) {
                return 2;
              }
              const pid_t child = pause_in(raw_fork());
              const bool seen = descendants_may_have_driver_files();
              signal_process(child, SIGKILL);
              return seen ? 0 : 3;
            }),
            0);
}

TEST(driver_files, of_executed_programs_are_separate_without_kcmp) {
  const driver_node node;
  if (const std::string why = node.skip_reason(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  EXPECT_EQ(in_child([&] {
              const unique_fd file = node.open();
              // Seccomp profiles of container engines reject kcmp.
              std::array filter{
                  sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                  sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kcmp, 0, 1),
                  sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                  sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
              const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
              if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
                  ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
                return 1;
              }
              const pid_t executes = raw_fork();
              if (executes == 0) {
                ::alarm(20);
                const std::string open_it = "exec 3<>" + node.path() + "; exec sleep 20";
                ::execl("/bin/sh", "sh", "-c", open_it.c_str(), nullptr);
                ::_exit(1);
              }
              const bool cleared = gpushm_testing::eventually(
                  [] { return !descendants_may_have_driver_files(); }, 10s);
              const pid_t forked = pause_in(raw_fork());
              const bool seen = descendants_may_have_driver_files();
              signal_process(executes, SIGKILL);
              signal_process(forked, SIGKILL);
              return !cleared ? 2 : !seen ? 3 : 0;
            }),
            0);
}

TEST(driver_files, are_found_in_a_grandchild) {
  const driver_node node;
  if (const std::string why = node.skip_reason(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  const unique_fd file = node.open();
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe2(ready.data(), O_CLOEXEC), 0);
  const pid_t child = raw_fork();
  if (child == 0) {
    ::alarm(20);
    const pid_t grandchild = raw_fork();
    if (grandchild != 0) {
      ::close(file.get());
      ::dprintf(ready[1], "%d\n", grandchild);
    } else {
      ::alarm(20);
    }
    for (;;) {
      ::pause();
    }
  }
  std::array<char, 16> text{};
  ASSERT_GT(::read(ready[0], text.data(), text.size() - 1), 0);
  EXPECT_TRUE(descendants_may_have_driver_files());
  signal_process(std::stoi(text.data()), SIGKILL);
  end(child);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace gpushm::base
