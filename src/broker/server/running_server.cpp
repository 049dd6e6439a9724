// SPDX-License-Identifier: Apache-2.0
#include "broker/server/running_server.hpp"

#include <utility>

#include "base/process/thread.hpp"

namespace gpushm::broker_detail {

running_server::running_server(const broker_options& options,
                               std::shared_ptr<core::process_budget> shared,
                               std::optional<successor_options> successors,
                               std::function<void(server&)> before_first)
    : server_(options, std::move(shared), std::move(successors)),
      before_first_(std::move(before_first)) {
  thread_ = base::start_thread("gpushm-broker", [this] {
    server_.run([](void* self) { static_cast<running_server*>(self)->on_ready(); }, this);
  });
  ready_.acquire();
}

running_server::~running_server() {
  server_.stop();
}

void running_server::on_ready() {
  ready_.release();
  if (before_first_) {
    before_first_(server_);
  }
}

}  // namespace gpushm::broker_detail
