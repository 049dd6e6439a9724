// SPDX-License-Identifier: Apache-2.0
#include "broker/descriptors/inflight.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <new>
#include <utility>

#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::broker_detail {

namespace {

/// The part of the limit of open files for each use is 1 divided by this.
constexpr std::uint64_t process_part = 4;
/// A principal that has taken its share leaves room for one packet.
constexpr std::uint64_t two_packets = 2 * std::uint64_t{wire::max_batch};
/// Sockets that are queried at once: some ten microseconds.
constexpr std::size_t settled_at_once = 256;
/// Between two of these.
constexpr std::chrono::milliseconds settle_pause{1};

core::budget::amounts only_descriptors(std::uint64_t count) {
  core::budget::amounts result{};
  result[static_cast<std::size_t>(core::resource::descriptors)] = count;
  return result;
}

/// 0: no limit.
std::uint64_t capacity_of_process() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return 0;
  }
  return std::max<std::uint64_t>(limit.rlim_cur / process_part, two_packets);
}

/// One for each use, for all brokers of this process.
const std::shared_ptr<core::process_budget>& shared_by_process(inflight_use use) {
  static const std::uint64_t capacity = capacity_of_process();
  static const auto replies = std::make_shared<core::process_budget>(0, capacity);
  static const auto welcomes = std::make_shared<core::process_budget>(0, capacity);
  return use == inflight_use::welcome ? welcomes : replies;
}

}  // namespace

inflight_budget::inflight_budget()
    : replies_(only_descriptors(
                   shared_by_process(inflight_use::reply)->capacity(core::resource::descriptors)),
               shared_by_process(inflight_use::reply)),
      welcomes_(
          only_descriptors(
              shared_by_process(inflight_use::welcome)->capacity(core::resource::descriptors)),
          shared_by_process(inflight_use::welcome)) {}

inflight_budget::inflight_budget(std::uint64_t capacity)
    : replies_(only_descriptors(capacity), nullptr),
      welcomes_(only_descriptors(capacity), nullptr) {}

void inflight_budget::settle() noexcept {
  const auto now = clock::now();
  if (now < next_settling_) {
    return;
  }
  next_settling_ = now + settle_pause;
  for (std::size_t left = std::min(settled_at_once, charged_.size()); left != 0; --left) {
    if (next_ >= charged_.size()) {
      next_ = 0;
    }
    inflight_charge& each = *charged_[next_];
    if (each.is_read()) {
      each.reset();  // the last one takes its place
    } else {
      ++next_;
    }
  }
}

bool inflight_charge::try_take(const std::shared_ptr<inflight_budget>& inflight_budget,
                               const core::principal& principal,
                               int socket,
                               inflight_use use,
                               std::uint64_t count) noexcept {
  if (count == 0) {
    return true;
  }
  part& at = parts_[static_cast<std::size_t>(use)];
  core::budget& budget = inflight_budget->of(use);
  std::shared_ptr<core::account> payer = at.who;
  try {
    if (!payer) {
      payer = budget.account_of(principal);
    }
    if (inflight_budget->charged_.size() == inflight_budget->charged_.capacity()) {
      inflight_budget->charged_.reserve(2 * inflight_budget->charged_.size() + 1);
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  // A packet with more descriptors than a share could never be sent: a principal that has none in
  // flight gets any number that is left.
  const bool is_first = principal.vouched_for && payer->used(core::resource::descriptors) == 0;
  if (!budget.try_take(*payer, core::resource::descriptors, count, is_first)) {
    return false;
  }
  if (this->count() == 0) {
    from_ = inflight_budget;
    socket_ = socket;
    place_ = inflight_budget->charged_.size();
    inflight_budget->charged_.push_back(this);
  }
  at.who = std::move(payer);
  at.count += count;
  return true;
}

void inflight_charge::release(inflight_use use, std::uint64_t count) noexcept {
  part& at = parts_[static_cast<std::size_t>(use)];
  if (count == 0) {
    return;
  }
  from_->of(use).release(*at.who, core::resource::descriptors, count);
  at.count -= count;
  if (this->count() == 0) {
    leave();
  }
}

void inflight_charge::reset() noexcept {
  release(inflight_use::reply, parts_[static_cast<std::size_t>(inflight_use::reply)].count);
  release(inflight_use::welcome, parts_[static_cast<std::size_t>(inflight_use::welcome)].count);
}

bool inflight_charge::is_read() const noexcept {
  return count() == 0 || transport::unread_bytes(socket_) == 0;
}

/// It holds none any longer.
void inflight_charge::leave() noexcept {
  inflight_charge* const last = from_->charged_.back();
  last->place_ = place_;
  from_->charged_[place_] = last;
  from_->charged_.pop_back();
  parts_ = {};
  from_.reset();
}

/// Precondition: this holds none.
void inflight_charge::take_over(inflight_charge& other) noexcept {
  from_ = std::move(other.from_);
  parts_ = std::exchange(other.parts_, {});
  socket_ = other.socket_;
  place_ = other.place_;
  if (count() != 0) {
    from_->charged_[place_] = this;
  }
}

}  // namespace gpushm::broker_detail
