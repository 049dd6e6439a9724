// SPDX-License-Identifier: Apache-2.0
#include "base/files/directory_watch.hpp"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/files/syscall.hpp"

namespace gpushm::base {

namespace {

using clock = std::chrono::steady_clock;

// Parent directories are often busy themselves (/tmp, /var/run): writes there are ignored.
constexpr std::uint32_t parent_events =
    IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF;
constexpr std::uint32_t directory_events = parent_events | IN_CLOSE_WRITE;

struct event {
  int watch = 0;
  std::uint32_t mask = 0;
  std::string_view name;
};

/// Removes one event from the front of the bytes read.
event next_event(std::string_view& bytes) {
  inotify_event head{};
  std::memcpy(&head, bytes.data(), sizeof head);
  const std::string_view name = bytes.substr(sizeof head, head.len);
  bytes.remove_prefix(sizeof head + head.len);
  return {head.wd, head.mask, name.substr(0, name.find('\0'))};
}

}  // namespace

directory_watch::directory_watch(std::string operation)
    : operation_(std::move(operation)), inotify_(checked(operation_, {}, "inotify_init1", [] {
        return ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
      })) {}

void directory_watch::set_directories(std::vector<std::string> directories) {
  directories_ = std::move(directories);
  watch_all();
}

directory_watch::interest* directory_watch::watch(const std::string& path,
                                                  std::uint32_t events,
                                                  std::map<int, interest>& now) const {
  // A directory that is watched already has the same number; several paths may lead to one
  // directory.
  const int number = checked(operation_,
                             path,
                             "inotify_add_watch",
                             [&] {
                               return ::inotify_add_watch(
                                   inotify_.get(), path.c_str(), events | IN_ONLYDIR | IN_MASK_ADD);
                             },
                             {ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG});
  return number < 0 ? nullptr : &now[number];
}

void directory_watch::watch_all() {
  namespace fs = std::filesystem;
  std::map<int, interest> now;
  for (const std::string& directory : directories_) {
    // From the top: the watch one level above reports what is created meanwhile.
    const fs::path whole = fs::absolute(directory).lexically_normal();
    fs::path above;
    for (const fs::path& part : whole) {
      if (!above.empty() && !part.empty()) {
        if (interest* const found = watch(above.string(), parent_events, now)) {
          found->leads.emplace_back(part.string(), directory);
        }
      }
      above /= part;
    }
    if (interest* const found = watch(above.string(), directory_events, now)) {
      found->directories.push_back(directory);
    }
  }
  for (const auto& [number, old] : watched_) {
    if (now.find(number) == now.end()) {
      // Fails for watches that the kernel has removed already.
      ::inotify_rm_watch(inotify_.get(), number);
    }
  }
  watched_ = std::move(now);
}

bool directory_watch::take(const std::function<void(const change&)>& use) {
  bool any = false;
  std::set<std::string> replaced;
  bool lost = false;
  alignas(inotify_event) std::array<char, 16'384> buffer{};
  for (;;) {
    const auto got = checked(operation_,
                             {},
                             "read",
                             [&] { return ::read(inotify_.get(), buffer.data(), buffer.size()); },
                             {EAGAIN});
    if (got <= 0) {
      break;
    }
    std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
    while (!bytes.empty()) {
      const event one = next_event(bytes);
      lost = lost || (one.mask & IN_Q_OVERFLOW) != 0;
      const auto watched = watched_.find(one.watch);
      if (watched == watched_.end() || (one.mask & IN_IGNORED) != 0) {
        continue;
      }
      const interest& here = watched->second;
      const bool itself = (one.mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT)) != 0;
      for (const auto& [entry, directory] : here.leads) {
        if (itself || entry == one.name) {
          replaced.insert(directory);
        }
      }
      for (const std::string& directory : here.directories) {
        if (itself) {
          replaced.insert(directory);
          continue;
        }
        any = true;
        use({directory, one.name, false, (one.mask & IN_CREATE) != 0, (one.mask & IN_ISDIR) != 0});
      }
    }
  }
  if (lost || !replaced.empty()) {
    watch_all();
  }
  if (lost) {
    use({{}, {}, true, false, false});
  }
  for (const std::string& directory : replaced) {
    use({directory, {}, true, false, false});
  }
  return any || lost || !replaced.empty();
}

bool directory_watch::wait_until(clock::time_point deadline) const {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now()).count();
    pollfd waiting{inotify_.get(), POLLIN, 0};
    const int count = ::poll(&waiting, 1, left < 0 ? 0 : static_cast<int>(left));
    if (count > 0) {
      return true;
    }
    if (count == 0 && left <= 0) {
      return false;
    }
    if (count < 0 && errno != EINTR) {
      throw_errno(errno, operation_, {}, "poll");
    }
  }
}

}  // namespace gpushm::base
