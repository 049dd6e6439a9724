// SPDX-License-Identifier: Apache-2.0
#include "client/segment/process_client.hpp"

#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/files/domain_places.hpp"
#include "client/session/fork_guard.hpp"

namespace gpushm::client_detail {

namespace {

std::string_view setting(const char* variable) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): unsafe only if the environment changes concurrently
  const char* const value = std::getenv(variable);
  return value == nullptr ? std::string_view() : value;
}

/// The socket's path; empty: as `client::connect` finds it. The same choice as that of
/// libgpushm-ipc.so.
std::string chosen_socket() {
  const std::string_view domain = setting("GPUSHM_IPC_DOMAIN");
  return domain.empty() ? std::string() : base::chosen_machine_socket(domain);
}

/// Created when the library is loaded: a forked child must not find it half constructed.
struct ended_at_exit {
  process_client& of = process_client::instance();
  ended_at_exit() = default;
  ended_at_exit(const ended_at_exit&) = delete;
  ended_at_exit& operator=(const ended_at_exit&) = delete;
  ~ended_at_exit() { of.end(); }
};
[[maybe_unused]] const ended_at_exit at_exit;

}  // namespace

process_client& process_client::instance() {
  static auto* const result = new process_client;  // NOLINT(cppcoreguidelines-owning-memory): kept
  return *result;
}

std::shared_ptr<client_impl> process_client::get() {
  std::shared_ptr<client_impl> former;  // its threads are the parent's
  {
    const std::lock_guard lock(mutex_);
    if (client_ && !client_->forked()) {
      return client_;
    }
    former.swap(client_);
  }
  if (former) {
    leak(former);
  }
  connect_options options;
  options.socket_path = chosen_socket();
  auto created = std::make_shared<client_impl>(std::move(options));
  const std::lock_guard lock(mutex_);
  if (!client_ && !has_ended_) {
    client_ = std::move(created);
    return client_;
  }
  return client_ ? client_ : created;  // another thread was faster, or the process exits
}

void process_client::end() noexcept {
  std::shared_ptr<client_impl> last;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  last.swap(client_);
  if (last && last->forked()) {
    leak(last);
  }
}

}  // namespace gpushm::client_detail
