// SPDX-License-Identifier: Apache-2.0
#include "gpushm/broker.hpp"

#include <semaphore>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/fork_guard.hpp"
#include "base/thread.hpp"
#include "broker/server.hpp"
#include "core/budget.hpp"
#include "gpushm/error.hpp"

namespace gpushm {

broker_budget::broker_budget(std::uint64_t memory_bytes, std::uint64_t descriptors)
    : budget_(std::make_shared<core::process_budget>(memory_bytes, descriptors)) {}
std::uint64_t broker_budget::used_memory_bytes() const noexcept {
  return budget_->used(core::resource::memory_bytes);
}
std::uint64_t broker_budget::used_descriptors() const noexcept {
  return budget_->used(core::resource::descriptors);
}

class broker::impl {
 public:
  explicit impl(const broker_options& options) : server_(options) {
    thread_ = base::start_thread("gpushm-broker", [this] { server_.run(&impl::on_ready, this); });
    ready_.acquire();
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl() { server_.stop(); }

  [[nodiscard]] const broker_detail::server& server() const noexcept { return server_; }
  [[nodiscard]] bool forked() const noexcept { return base::is_forked_child_of(made_in_); }

 private:
  static void on_ready(void* self) { static_cast<impl*>(self)->ready_.release(); }

  std::uint64_t made_in_ = base::fork_generation();
  broker_detail::server server_;
  std::binary_semaphore ready_{0};
  std::jthread thread_;  // joined before the server goes
};

broker::broker(std::unique_ptr<impl> made) noexcept : impl_(std::move(made)) {}
broker::broker(broker&&) noexcept = default;
broker& broker::operator=(broker&& other) noexcept {
  broker ended(std::move(other));
  ended.impl_.swap(impl_);
  return *this;
}
broker::~broker() {
  if (impl_ && impl_->forked()) {
    // The child has no thread to stop, and socket, lock and memory are the parent's: the copy stays
    // as it is.
    static_cast<void>(impl_.release());
  }
}

broker broker::start(const broker_options& options) {
  broker_options complete = options;
  if (complete.socket_path.empty()) {
    complete.socket_path = "/run/gpushm/d/" + complete.domain + "/socket";
  }
  return broker(std::make_unique<impl>(complete));
}

const broker::impl& broker::usable(std::string_view operation) const {
  if (!impl_) {
    throw error(errc::invalid_argument,
                "broker",
                {},
                "this broker object is empty",
                "start a broker first; a moved-from object is empty");
  }
  if (impl_->forked()) {
    throw error(errc::forked,
                operation,
                impl_->server().socket_path(),
                "this process was forked from the one that serves",
                "ask in the process that started the broker");
  }
  return *impl_;
}

const std::string& broker::socket_path() const {
  return usable("socket_path").server().socket_path();
}
broker_statistics broker::statistics() const {
  return usable("statistics").server().statistics();
}
const gpushm::epoch& broker::epoch() const {
  return usable("epoch").server().epoch();
}

}  // namespace gpushm
