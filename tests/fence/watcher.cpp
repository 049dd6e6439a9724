// SPDX-License-Identifier: Apache-2.0
#include "tests/fence/watcher.hpp"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/signals.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/primary_context.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::fence_rounds {

namespace {

using namespace gpushm::cuda;
using clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds before_the_end{200};
/// The same for many victims, which take turns on the GPU.
constexpr milliseconds before_the_end_of_many{1'000};
/// How long memory is watched after the last fence.
constexpr milliseconds settle{300};
/// Upper bound of the wait for fences; then children are killed.
constexpr milliseconds max_fence_time{3'000};
/// The same for many victims, which the driver ends one at a time.
constexpr milliseconds max_fence_time_of_many{15'000};
constexpr milliseconds after_child{500};
constexpr std::chrono::seconds start_time{60};

/// A time that another thread sets once.
class moment {
 public:
  void set() noexcept {
    std::int64_t none = 0;
    when_.compare_exchange_strong(none, clock::now().time_since_epoch().count());
  }
  [[nodiscard]] std::optional<clock::time_point> get() const noexcept {
    const std::int64_t value = when_.load();
    return value == 0 ? std::nullopt : std::optional(clock::time_point(clock::duration(value)));
  }

 private:
  std::atomic<std::int64_t> when_{0};
};

struct watched {
  pid_t pid = -1;
  base::unique_fd socket;
  base::unique_fd pidfd;
  base::unique_fd life;
  base::unique_fd child;
  std::vector<base::unique_fd> others;  ///< driver files sent by it
  CUmemGenericAllocationHandle memory = 0;
  CUdeviceptr at = 0;
  std::vector<std::byte> before;
  moment socket_end;
  moment pidfd_end;
  moment life_end;
  std::optional<clock::time_point> changed_by;  ///< end of the sweep that saw the last change
  observation seen;
};

[[noreturn]] void become_victim(const victim_options& options, int socket) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (options.pid_namespace != 0 &&
      (::unshare(CLONE_NEWNS) != 0 ||
       ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
       ::mount("proc", "/proc", "proc", 0, nullptr) != 0)) {
    ::_exit(93);
  }
  constexpr int number = 3;
  if (socket == number) {
    ::fcntl(socket, F_SETFD, 0);
  } else {
    ::dup2(socket, number);
  }
  const std::string text = to_text(options);
  ::execl("/proc/self/exe", "fence-victim", "--victim", text.c_str(), nullptr);
  ::_exit(91);
}

void start(watched& watched, const victim_options& options) {
  std::array<int, 2> ends{};
  base::checked("watch", {}, "socketpair", [&] {
    return ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data());
  });
  watched.socket = base::unique_fd(ends[0]);
  const base::unique_fd victim_end(ends[1]);
  watched.pid = ::fork();
  if (watched.pid == 0) {
    if (options.pid_namespace == 0) {
      become_victim(options, victim_end.get());
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::unshare(CLONE_NEWPID) != 0) {
      ::_exit(92);
    }
    const pid_t inner = ::fork();
    if (inner == 0) {
      become_victim(options, victim_end.get());
    }
    ::close(victim_end.get());
    ::close(watched.socket.get());
    int status = 0;
    base::retry([&] { return ::waitpid(inner, &status, 0); });
    ::_exit(0);
  }
}

void greet(watched& watched) {
  std::vector<std::byte> buffer(sizeof(greeting));
  if (!transport::wait_readable(watched.socket.get(), start_time)) {
    throw std::runtime_error("a victim did not start in time");
  }
  auto got = transport::receive_packet(watched.socket.get(), buffer);
  if (got.packet.size() != sizeof(greeting)) {
    throw std::runtime_error("a victim exited before it started");
  }
  greeting hello;
  std::memcpy(&hello, got.packet.data(), sizeof hello);
  if (hello.failure[0] != '\0') {
    throw std::runtime_error(hello.failure);
  }
  if (got.descriptors.size() < 3U + hello.has_child) {
    throw std::runtime_error("a victim sent too few descriptors");
  }
  auto next = got.descriptors.begin();
  const base::unique_fd memory = std::move(*next++);
  watched.pidfd = std::move(*next++);
  watched.life = std::move(*next++);
  if (hello.has_child != 0) {
    watched.child = std::move(*next++);
  }
  watched.others.assign(std::make_move_iterator(next),
                        std::make_move_iterator(got.descriptors.end()));
  watched.seen.files = hello.files;

  const driver::cuda_driver& cu = driver::cuda_driver::instance();
  const CUdevice device = driver::visible_gpus()[0].handle;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the interface of the driver
  void* const handle = reinterpret_cast<void*>(static_cast<std::intptr_t>(memory.get()));
  check(cu->cuMemImportFromShareableHandle(
            &watched.memory, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle");
  check(cu->cuMemAddressReserve(&watched.at, shared_bytes, 0, 0, 0), "cuMemAddressReserve");
  check(cu->cuMemMap(watched.at, shared_bytes, 0, watched.memory, 0), "cuMemMap");
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(cu->cuMemSetAccess(watched.at, shared_bytes, &access, 1), "cuMemSetAccess");
}

void release(watched& watched) {
  const driver::cuda_driver& cu = driver::cuda_driver::instance();
  if (watched.at != 0) {
    cu->cuMemUnmap(watched.at, shared_bytes);
    cu->cuMemAddressFree(watched.at, shared_bytes);
    cu->cuMemRelease(watched.memory);
  }
  const auto kill = [](const base::unique_fd& file) {
    if (file) {
      ::syscall(SYS_pidfd_send_signal, file.get(), SIGKILL, nullptr, 0);
    }
  };
  kill(watched.pidfd);
  kill(watched.child);
  if (watched.pid > 0) {
    gpushm::base::signal_process(watched.pid, SIGKILL);
    int status = 0;
    base::retry([&] { return ::waitpid(watched.pid, &status, 0); });
  }
}

/// Records when sockets, pidfds and life pipes end, on a separate thread.
class ends_watch {
 public:
  explicit ends_watch(const std::vector<std::unique_ptr<watched>>& watched) {
    for (const auto& one : watched) {
      add(one->socket.get(), one->socket_end);
      add(one->pidfd.get(), one->pidfd_end);
      add(one->life.get(), one->life_end);
    }
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

 private:
  void add(int fd, moment& moment) {
    entries_.push_back({fd, POLLIN, 0});
    moments_.push_back(&moment);
  }
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (::poll(entries_.data(), entries_.size(), 50) <= 0) {
        continue;
      }
      for (std::size_t i = 0; i < entries_.size(); ++i) {
        if (entries_[i].fd >= 0 && entries_[i].revents != 0) {
          moments_[i]->set();
          entries_[i].fd = -1;
        }
      }
    }
  }
  std::vector<pollfd> entries_;
  std::vector<moment*> moments_;
  std::jthread thread_;
};

class sweeper {
 public:
  explicit sweeper(std::vector<std::unique_ptr<watched>>& watched)
      : all_(watched), bytes_(watched.size() > 8 ? 4'096 : watched_bytes) {
    check(cu_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    void* memory = nullptr;
    check(cu_->cuMemHostAlloc(&memory, bytes_ * watched.size(), 0), "cuMemHostAlloc");
    buffer_ = static_cast<std::byte*>(memory);
  }
  sweeper(const sweeper&) = delete;
  sweeper& operator=(const sweeper&) = delete;
  ~sweeper() {
    cu_->cuStreamDestroy_v2(stream_);
    cu_->cuMemFreeHost(buffer_);
  }

  /// Reads every victim's memory once.
  void sweep() {
    const auto begin = clock::now();
    for (std::size_t i = 0; i < all_.size(); ++i) {
      check(cu_->cuMemcpyDtoHAsync_v2(buffer_ + i * bytes_, all_[i]->at, bytes_, stream_),
            "cuMemcpyDtoHAsync");
    }
    check(cu_->cuStreamSynchronize(stream_), "cuStreamSynchronize");
    const auto end = clock::now();
    for (std::size_t i = 0; i < all_.size(); ++i) {
      watched& one = *all_[i];
      const std::byte* const now = buffer_ + i * bytes_;
      if (one.before.empty()) {
        one.before.assign(now, now + bytes_);
        continue;
      }
      if (std::memcmp(one.before.data(), now, bytes_) == 0) {
        continue;
      }
      std::memcpy(one.before.data(), now, bytes_);
      ++one.seen.changes_before;
      one.changed_by = end;
      const auto pidfd = one.pidfd_end.get();
      const auto life = one.life_end.get();
      if (pidfd && last_begin_ > *pidfd) {
        one.seen.changed_after_pidfd = true;
        one.seen.changed_after_both = one.seen.changed_after_both || (life && last_begin_ > *life);
      }
    }
    last_begin_ = begin;
  }

 private:
  const driver::cuda_driver& cu_ = driver::cuda_driver::instance();
  std::vector<std::unique_ptr<watched>>& all_;
  std::uint64_t bytes_;
  CUstream stream_ = nullptr;
  std::byte* buffer_ = nullptr;
  clock::time_point last_begin_;
};

void end(const watched& watched, ending ending) {
  const auto signal = [&](int number) {
    ::syscall(SYS_pidfd_send_signal, watched.pidfd.get(), number, nullptr, 0);
  };
  switch (ending) {
    case ending::killed:
      signal(SIGKILL);
      break;
    case ending::aborted:
      signal(SIGABRT);
      break;
    case ending::exits:
    case ending::execs: {
      const std::array<std::byte, 2> go{};
      static_cast<void>(transport::send_packet(watched.socket.get(), go, {}));
      break;
    }
  }
}

std::optional<double> since(clock::time_point from, std::optional<clock::time_point> at) {
  if (!at) {
    return std::nullopt;
  }
  return std::chrono::duration<double, std::milli>(*at - from).count();
}

bool all_fenced(const std::vector<std::unique_ptr<watched>>& watched) {
  return std::all_of(watched.begin(), watched.end(), [](const auto& one) {
    return one->pidfd_end.get() && one->life_end.get();
  });
}

}  // namespace

std::string why_no_gpu() {
  try {
    static_cast<void>(driver::visible_gpus());
    return {};
  } catch (const std::exception& why) {
    return why.what();
  }
}

std::string to_text(const victim_options& options) {
  std::ostringstream text;
  text << static_cast<int>(options.does) << ' ' << static_cast<int>(options.others) << ' '
       << static_cast<int>(options.ends) << ' ' << options.extra_gib << ' ' << options.unprivileged
       << ' ' << options.pid_namespace;
  return text.str();
}

victim_options from_text(const std::string& text) {
  std::istringstream from(text);
  int does = 0;
  int others = 0;
  int ends = 0;
  victim_options options;
  from >> does >> others >> ends >> options.extra_gib >> options.unprivileged >>
      options.pid_namespace;
  options.does = static_cast<work>(does);
  options.others = static_cast<holder>(others);
  options.ends = static_cast<ending>(ends);
  return options;
}

std::vector<observation> run_round(const setting& setting) {
  const driver::cuda_driver& cu = driver::cuda_driver::instance();
  check(cu->cuCtxSetCurrent(driver::primary_context(driver::visible_gpus()[0].handle, "watch", {})),
        "cuCtxSetCurrent");
  struct cleanup {
    std::vector<std::unique_ptr<watched>> all;
    ~cleanup() {
      for (const auto& one : all) {
        release(*one);
      }
    }
  } round;
  auto& victims = round.all;
  for (unsigned i = 0; i < setting.victims; ++i) {
    victims.push_back(std::make_unique<watched>());
    start(*victims.back(), setting.victim);
  }
  for (const auto& one : victims) {
    greet(*one);
  }
  sweeper sweeping(victims);
  const auto begin = clock::now();
  while (clock::now() - begin < (setting.victims > 1 ? before_the_end_of_many : before_the_end)) {
    sweeping.sweep();
  }
  std::vector<std::uint64_t> changes;
  for (const auto& one : victims) {
    changes.push_back(one->seen.changes_before);
  }
  const ends_watch ends(victims);
  const auto ended = clock::now();
  for (const auto& one : victims) {
    end(*one, setting.victim.ends);
  }
  const bool is_fenced = setting.victim.ends != ending::execs;
  const auto most = setting.victims > 1 && is_fenced ? max_fence_time_of_many : max_fence_time;
  while (!all_fenced(victims) && clock::now() - ended < most) {
    sweeping.sweep();
  }
  const auto settled = clock::now() + settle;
  while (clock::now() < settled) {
    sweeping.sweep();
  }
  std::vector<observation> result;
  std::optional<clock::time_point> children_killed;
  for (std::size_t i = 0; i < victims.size(); ++i) {
    watched& one = *victims[i];
    one.seen.last_change = since(ended, one.changed_by);
    one.changed_by.reset();
    if (one.child && !one.life_end.get()) {
      children_killed = clock::now();
      ::syscall(SYS_pidfd_send_signal, one.child.get(), SIGKILL, nullptr, 0);
    }
  }
  if (children_killed) {
    const auto until = clock::now() + after_child;
    while (clock::now() < until) {
      sweeping.sweep();
    }
  }
  for (std::size_t i = 0; i < victims.size(); ++i) {
    watched& one = *victims[i];
    observation seen = one.seen;
    seen.changes_before = changes[i];
    seen.socket_end = since(ended, one.socket_end.get());
    seen.pidfd = since(ended, one.pidfd_end.get());
    seen.life = since(ended, one.life_end.get());
    if (children_killed) {
      seen.child_ended = since(ended, children_killed);
      seen.last_after_child = since(*children_killed, one.changed_by);
    }
    result.push_back(seen);
  }
  return result;
}

}  // namespace gpushm::fence_rounds
