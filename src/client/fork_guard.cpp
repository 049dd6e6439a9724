// SPDX-License-Identifier: Apache-2.0
#include "client/fork_guard.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "gpushm/error.hpp"

namespace gpushm::detail {

namespace {

struct fork_registry {
  std::mutex mutex;
  std::vector<int> descriptors;
  std::atomic<std::uint64_t> forks{0};
};

void before_fork();
void after_fork_in_parent();
void after_fork_in_child();

fork_registry& registry() {
  // Never destroyed: a fork may come while static objects go.
  static auto* const instance = [] {
    auto* made = new fork_registry;  // NOLINT(cppcoreguidelines-owning-memory): see above
    ::pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
    return made;
  }();
  return *instance;
}

void before_fork() {
  registry().mutex.lock();
}
void after_fork_in_parent() {
  registry().mutex.unlock();
}
void after_fork_in_child() {
  fork_registry& in_child = registry();
  for (const int fd : in_child.descriptors) {
    ::close(fd);
  }
  in_child.descriptors.clear();
  in_child.forks.fetch_add(1, std::memory_order_relaxed);
  in_child.mutex.unlock();
}

}  // namespace

std::uint64_t fork_count() noexcept {
  return registry().forks.load(std::memory_order_relaxed);
}

fork_closes::fork_closes(int fd) : fd_(fd) {
  const std::lock_guard lock(registry().mutex);
  registry().descriptors.push_back(fd);
}

fork_closes::~fork_closes() {
  const std::lock_guard lock(registry().mutex);
  auto& all = registry().descriptors;
  if (const auto at = std::find(all.begin(), all.end(), fd_); at != all.end()) {
    all.erase(at);
  }
}

void check_not_forked(std::uint64_t count, std::string_view operation, std::string_view object) {
  if (count != fork_count()) {
    throw error(errc::forked,
                operation,
                object,
                "this process was forked from the one that connected",
                "connect in the child, and open what it needs there");
  }
}

}  // namespace gpushm::detail
