// SPDX-License-Identifier: Apache-2.0
#include "client/ticket/client_registry.hpp"

#include <mutex>
#include <utility>

namespace gpushm::client_detail {

client_registry& client_registry::instance() {
  static auto* const result = new client_registry;  // NOLINT(cppcoreguidelines-owning-memory): kept
  return *result;
}

namespace {
// Created when the library is loaded: a forked child must not find it half constructed.
[[maybe_unused]] const client_registry& created_at_load = client_registry::instance();
}  // namespace

std::shared_ptr<timelines> client_registry::get(const std::string& socket_path) {
  if (auto found = find(socket_path)) {
    return found;
  }
  connect_options options;
  options.socket_path = socket_path;
  auto result = std::make_shared<timelines>(std::make_shared<client_impl>(std::move(options)));
  const std::lock_guard lock(mutex_);
  all_[socket_path] = result;
  return result;
}

std::shared_ptr<timelines> client_registry::find(const std::string& socket_path) {
  std::shared_ptr<timelines> timelines;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(all_, [](const auto& entry) { return entry.second.expired(); });
    if (const auto at = all_.find(socket_path); at != all_.end()) {
      timelines = at->second.lock();
    }
  }
  return timelines && !timelines->client().forked() ? timelines : nullptr;
}

}  // namespace gpushm::client_detail
