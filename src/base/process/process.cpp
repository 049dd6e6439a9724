// SPDX-License-Identifier: Apache-2.0
#include "base/process/process.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/files/file.hpp"
#include "base/files/fork_guard.hpp"
#include "base/files/guarded_fd.hpp"

namespace gpushm::base {

namespace {

/// Processes that are queried repeatedly use one descriptor each, up to this many: polling a pidfd
/// takes a tenth of the time of reading /proc.
constexpr std::size_t max_watched = 16;

/// Field 22 of the line, counted from the end of the command's name, which may contain spaces and
/// parentheses.
std::uint64_t start_time_of(std::string_view stat) {
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) {
    return 0;
  }
  std::string_view rest = stat.substr(name_end + 1);
  constexpr int fields_before = 20;  // 3 (state) to 21 come first, each after a space
  for (int field = 0; field < fields_before; ++field) {
    const std::size_t space = rest.find(' ');
    if (space == std::string_view::npos) {
      return 0;
    }
    rest.remove_prefix(space + 1);
  }
  std::uint64_t value = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), value);
  return value;
}

/// A /proc of another PID namespace numbers processes differently. Checked once per process.
bool proc_numbers_as_getpid(std::int32_t self) {
  static std::atomic<std::int32_t> known{0};
  if (known.load(std::memory_order_relaxed) == self) {
    return true;
  }
  std::array<char, 32> number{};
  if (::readlink("/proc/self", number.data(), number.size() - 1) <= 0 ||
      std::to_string(self) != number.data()) {
    return false;
  }
  known.store(self, std::memory_order_relaxed);
  return true;
}

process_identity identify_this_process() {
  process_identity result;
  result.pid = ::getpid();
  if (auto text = read_small_file("/proc/sys/kernel/random/boot_id")) {
    while (!text->empty() && text->back() == '\n') {
      text->pop_back();
    }
    result.boot_id = *text;
  }
  struct stat info {};
  if (::stat("/proc/self/ns/pid", &info) == 0) {
    result.pid_namespace = info.st_ino;
  }
  if (const auto text = read_small_file("/proc/self/stat")) {
    result.start_time = start_time_of(*text);
  }
  random_bytes(result.epoch);
  return result;
}

/// Never destroyed: it may be used while static objects are destroyed.
struct watch_list {
  fork_safe_mutex mutex;
  std::uint64_t created_in = fork_generation();
  std::map<std::tuple<std::array<std::uint8_t, 16>, std::int32_t, std::uint64_t>, guarded_fd>
      pidfds;
};
watch_list& watched_processes() {
  static auto* const list = new watch_list;  // NOLINT(cppcoreguidelines-owning-memory): see above
  return *list;
}
// Created when the library is loaded: a forked child must not find it half created.
[[maybe_unused]] const watch_list& created_at_load = watched_processes();

}  // namespace

process_identity this_process() {
  // Without a lock, which a child could find locked. The parent's entry is leaked: in a child that
  // was created without fork handlers, another thread may be reading it.
  struct known_identity {
    process_identity identity;
    std::uint64_t created_in = 0;
  };
  static constinit std::atomic<const known_identity*> known{nullptr};
  const known_identity* at = known.load(std::memory_order_acquire);
  if (at == nullptr || is_forked_child_of(at->created_in)) {
    auto created = std::make_unique<known_identity>();
    created->created_in = fork_generation();
    created->identity = identify_this_process();
    // If several threads make the first call concurrently, one of them sets the identity.
    if (known.compare_exchange_strong(at, created.get(), std::memory_order_acq_rel)) {
      at = created.release();
    }
  }
  return at->identity;
}

process_lookup look_up(const process_identity& process) {
  const process_identity self = this_process();
  if (process.boot_id != self.boot_id || process.pid_namespace != self.pid_namespace ||
      self.pid_namespace == 0 || process.start_time == 0 || !proc_numbers_as_getpid(self.pid)) {
    return {};
  }
  // In this order: the process that the pidfd refers to cannot change during the comparison.
  auto pidfd = guarded_fd::open([&] { return ::syscall(SYS_pidfd_open, process.pid, 0); });
  if (!pidfd && errno == ESRCH) {
    return {true, {}};
  }
  const auto text = read_small_file("/proc/" + std::to_string(process.pid) + "/stat", 1'024);
  if (!text || start_time_of(*text) != process.start_time) {
    return {text || errno == ENOENT ? std::optional(true) : std::nullopt, {}};
  }
  return {false, std::move(pidfd)};
}

bool has_ended(const process_identity& process) {
  const auto key = std::make_tuple(process.epoch, process.pid, process.start_time);
  watch_list& list = watched_processes();
  const std::lock_guard lock(list.mutex);
  auto* const watched = &list.pidfds;
  if (is_forked_child_of(list.created_in)) {
    watched->clear();
    list.created_in = fork_generation();
  }
  if (const auto at = watched->find(key); at != watched->end()) {
    pollfd end{at->second.get(), POLLIN, 0};
    return ::poll(&end, 1, 0) == 1;
  }
  auto watched_end = look_up(process);
  if (watched_end.pidfd) {
    if (watched->size() >= max_watched) {
      watched->clear();
    }
    watched->emplace(key, std::move(watched_end.pidfd));
  }
  return watched_end.has_ended.value_or(false);
}

}  // namespace gpushm::base
