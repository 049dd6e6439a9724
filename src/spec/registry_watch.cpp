// SPDX-License-Identifier: Apache-2.0
#include "spec/registry_watch.hpp"

#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/syscall.hpp"
#include "spec/spec_directory.hpp"

namespace gpushm::cdi {

namespace {

using clock = std::chrono::steady_clock;

constexpr const char* operation = "watch CDI directories";
constexpr std::uint32_t events = IN_CLOSE_WRITE | IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM |
                                 IN_DELETE | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF;

/// A new file is complete at its creation only when it is a link; others are told once written.
bool is_link(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && (S_ISLNK(status.st_mode) || status.st_nlink > 1);
}

struct event {
  int watch = 0;
  std::uint32_t mask = 0;
  std::string_view name;
};

/// Takes one event off the front of what was read.
event next_event(std::string_view& bytes) {
  inotify_event head{};
  std::memcpy(&head, bytes.data(), sizeof head);
  const std::string_view name = bytes.substr(sizeof head, head.len);
  bytes.remove_prefix(sizeof head + head.len);
  return {head.wd, head.mask, name.substr(0, name.find('\0'))};
}

}  // namespace

registry_watch::registry_watch(std::vector<std::string> directories)
    : directories_(std::move(directories)),
      inotify_(base::checked(operation, {}, "inotify_init1", [] {
        return ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
      })) {
  watch_all();
}

void registry_watch::watch(const std::string& path,
                           const std::string& entry,
                           std::map<int, interest>& now) {
  const int number = base::checked(
      operation,
      path,
      "inotify_add_watch",
      [&] { return ::inotify_add_watch(inotify_.get(), path.c_str(), events | IN_ONLYDIR); },
      {ENOENT, ENOTDIR, EACCES, ELOOP});
  if (number < 0) {
    return;
  }
  interest& found = now[number];
  found.path = path;
  if (entry.empty()) {
    found.documents = true;
  } else {
    found.entries.push_back(entry);
  }
}

void registry_watch::watch_all() {
  namespace fs = std::filesystem;
  std::map<int, interest> now;
  for (const std::string& directory : directories_) {
    // From the top: what is made while this goes on is told by the level above.
    const fs::path whole = fs::absolute(directory).lexically_normal();
    fs::path above;
    for (const fs::path& part : whole) {
      if (!above.empty() && !part.empty()) {
        watch(above.string(), part.string(), now);
      }
      above /= part;
    }
    watch(above.string(), {}, now);
  }
  for (const auto& [number, old] : watched_) {
    if (now.find(number) == now.end()) {
      // Fails for what the kernel has dropped by itself.
      ::inotify_rm_watch(inotify_.get(), number);
    }
  }
  watched_ = std::move(now);
}

bool registry_watch::changed() {
  bool any = false;
  bool directories_changed = false;
  alignas(inotify_event) std::array<char, 16'384> buffer{};
  while (true) {
    const auto got =
        base::checked(operation,
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
      if ((one.mask & IN_Q_OVERFLOW) != 0) {
        directories_changed = true;
        continue;
      }
      const auto found = watched_.find(one.watch);
      if (found == watched_.end()) {
        continue;
      }
      const interest& here = found->second;
      const bool itself = (one.mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT)) != 0;
      const bool leads =
          std::find(here.entries.begin(), here.entries.end(), one.name) != here.entries.end();
      directories_changed |= itself || leads;
      if (here.documents && is_document_name(one.name)) {
        any |= (one.mask & IN_CREATE) == 0 || (one.mask & IN_ISDIR) != 0 ||
               is_link(here.path + "/" + std::string(one.name));
      } else if (here.documents && one.name.empty() && (one.mask & IN_ATTRIB) != 0) {
        any = true;  // perhaps it can be read now
      }
    }
  }
  if (directories_changed) {
    watch_all();
  }
  return any || directories_changed;
}

bool registry_watch::poll_until(clock::time_point deadline) const {
  while (true) {
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
      base::throw_errno(errno, operation, {}, "poll");
    }
  }
}

bool registry_watch::wait(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds quiet{10};
  constexpr std::chrono::milliseconds longest{100};
  const auto deadline = clock::now() + timeout;
  while (!changed()) {
    if (!poll_until(deadline)) {
      return false;
    }
  }
  const auto end = clock::now() + longest;
  while (poll_until(std::min(clock::now() + quiet, end)) && clock::now() < end) {
    static_cast<void>(changed());
  }
  return true;
}

}  // namespace gpushm::cdi
