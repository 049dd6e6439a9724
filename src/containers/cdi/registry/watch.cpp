// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/registry/watch.hpp"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "containers/cdi/registry/spec_directory.hpp"

namespace gpushm::cdi {

namespace {

using clock = std::chrono::steady_clock;
using change = base::directory_watch::change;

/// Only a link is complete at its creation; other files cause an event when written.
bool is_link(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && (S_ISLNK(status.st_mode) || status.st_nlink > 1);
}

bool is_relevant(const change& change) {
  // A directory whose attributes changed may be readable now.
  return change.whole || change.name.empty() ||
         (is_document_name(change.name) &&
          (!change.created || change.is_directory ||
           is_link(fmt::format("{}/{}", change.directory, change.name))));
}

}  // namespace

registry_watch::registry_watch(std::vector<std::string> directories)
    : watch_("watch CDI directories") {
  watch_.set_directories(std::move(directories));
}

bool registry_watch::changed() {
  bool any = false;
  watch_.take([&](const change& change) { any = any || is_relevant(change); });
  return any;
}

bool registry_watch::wait(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds quiet{10};
  constexpr std::chrono::milliseconds longest{100};
  const auto deadline = clock::now() + timeout;
  while (!changed()) {
    if (!watch_.wait_until(deadline)) {
      return false;
    }
  }
  const auto end = clock::now() + longest;
  while (watch_.wait_until(std::min(clock::now() + quiet, end)) && clock::now() < end) {
    static_cast<void>(changed());
  }
  return true;
}

}  // namespace gpushm::cdi
