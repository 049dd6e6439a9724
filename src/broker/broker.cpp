// SPDX-License-Identifier: Apache-2.0
#include "gpushm/broker.hpp"

#include <semaphore>
#include <string>
#include <thread>
#include <utility>

#include "broker/server.hpp"

namespace gpushm {

class broker::impl {
 public:
  explicit impl(const broker_options& options) : server_(options) {
    thread_ = std::jthread([this] { server_.run(&impl::on_ready, this); });
    ready_.acquire();
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl() { server_.stop(); }

  [[nodiscard]] const broker_detail::server& server() const noexcept { return server_; }

 private:
  static void on_ready(void* self) { static_cast<impl*>(self)->ready_.release(); }

  broker_detail::server server_;
  std::binary_semaphore ready_{0};
  std::jthread thread_;  // joined before the server goes
};

broker::broker(std::unique_ptr<impl> made) noexcept : impl_(std::move(made)) {}
broker::broker(broker&&) noexcept = default;
broker& broker::operator=(broker&&) noexcept = default;
broker::~broker() = default;

broker broker::start(const broker_options& options) {
  broker_options complete = options;
  if (complete.socket_path.empty()) {
    complete.socket_path = "/run/gpushm/d/" + complete.domain + "/socket";
  }
  return broker(std::make_unique<impl>(complete));
}

const std::string& broker::socket_path() const noexcept {
  return impl_->server().socket_path();
}
broker_statistics broker::statistics() const {
  return impl_->server().statistics();
}
const gpushm::epoch& broker::epoch() const noexcept {
  return impl_->server().epoch();
}

}  // namespace gpushm
