// SPDX-License-Identifier: Apache-2.0
#include "broker/session/hub_driver.hpp"

#include <chrono>

namespace gpushm::broker_detail {

hub_driver::hub_driver(asio::io_context& io,
                       hub& driven,
                       turn_loop& loop,
                       member_log& log,
                       succession::recorder& records)
    : hub_(driven),
      loop_(loop),
      log_(log),
      recorder_(records),
      work_([this] { work(); }),
      timer_(io) {
  loop_.join(work_, "work");
}

void hub_driver::schedule() {
  if (hub_.has_work()) {
    loop_.request_turn(work_);
  }
  arm_deadline();
}

void hub_driver::work() {
  {
    const succession::recorder::step named(recorder_, {succession::step_kind::work, 0});
    log_.guarded([&] { hub_.work(); });
  }
  if (hub_.has_work()) {
    loop_.request_turn(work_);
  }
}

void hub_driver::arm_deadline() {
  const auto next = hub_.next_deadline();
  if (!next || (armed_for_ && *armed_for_ <= *next)) {
    return;
  }
  timer_.expires_at(*next);
  timer_.async_wait([this](asio::error_code code) {
    if (code) {
      return;  // rearmed for an earlier deadline
    }
    armed_for_.reset();
    {
      const succession::recorder::step named(recorder_, {succession::step_kind::deadlines, 0});
      log_.guarded([&] { hub_.tick(std::chrono::steady_clock::now()); });
    }
    schedule();
  });
  armed_for_ = next;
}

}  // namespace gpushm::broker_detail
