// SPDX-License-Identifier: Apache-2.0
#include "client/client_registry.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

namespace gpushm::detail {

client_registry& client_registry::instance() {
  static auto* const made = new client_registry;  // NOLINT(cppcoreguidelines-owning-memory): kept
  return *made;
}

namespace {
// Made when the library is loaded: a forked child must not find it half made.
[[maybe_unused]] const client_registry& made_at_load = client_registry::instance();
}  // namespace

std::shared_ptr<client_impl> client_registry::get(const std::string& socket_path) {
  if (auto found = find(socket_path)) {
    return found;
  }
  connect_options options;
  options.socket_path = socket_path;
  auto made = std::make_shared<client_impl>(std::move(options));
  std::list<std::shared_ptr<client_impl>> out;  // end without the lock
  const std::lock_guard lock(mutex_);
  all_[socket_path] = made;
  use(made, out);
  return made;
}

std::shared_ptr<client_impl> client_registry::find(const std::string& socket_path) {
  std::list<std::shared_ptr<client_impl>> out;  // end without the lock
  std::shared_ptr<client_impl> found;
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [](const auto& entry) { return entry.second.expired(); });
  if (const auto at = all_.find(socket_path); at != all_.end()) {
    found = at->second.lock();
  }
  if (!found || found->forked()) {
    return nullptr;
  }
  use(found, out);
  return found;
}

void client_registry::use(const std::shared_ptr<client_impl>& used,
                          std::list<std::shared_ptr<client_impl>>& out) {
  // One of before a fork cannot be used: it is let go of, and stays as it is (fork_guard.hpp).
  for (auto at = latest_.begin(); at != latest_.end();) {
    const auto next = std::next(at);
    if (*at == used || (*at)->forked()) {
      out.splice(out.end(), latest_, at);
    }
    at = next;
  }
  latest_.push_front(used);
  if (latest_.size() > most_idle) {
    out.splice(out.end(), latest_, std::prev(latest_.end()));
  }
}

}  // namespace gpushm::detail
