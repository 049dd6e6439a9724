// SPDX-License-Identifier: Apache-2.0
#include "client/session/lease_worker.hpp"

#include <chrono>
#include <unordered_map>
#include <utility>

#include "base/process/thread.hpp"
#include "base/report/log.hpp"

namespace gpushm::client_detail {

namespace {

/// How long a reply waits for others to be sent in the same list.
constexpr std::chrono::milliseconds max_list_delay{5};

}  // namespace

lease_worker::lease_worker(sender reply_with) : send_(std::move(reply_with)) {}

lease_worker::~lease_worker() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_one();
}

void lease_worker::start() {
  thread_ = base::start_thread("gpushm-leases", [this] { run(); });
}

void lease_worker::set_listener(lease_listener* listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = listener;
}

void lease_worker::reply_for(gpushm::generation generation, confirm_reply reply) {
  auto kept = std::make_shared<const confirm_reply>(std::move(reply));
  const std::lock_guard lock(mutex_);
  replies_[generation] = std::move(kept);
}

void lease_worker::stop_replying(gpushm::generation generation) noexcept {
  const std::lock_guard lock(mutex_);
  replies_.erase(generation);
}

void lease_worker::confirm(wire::confirm request) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      const std::size_t count = request.questions.size();
      if (waiting_questions_ + count > max_questions) {
        return;
      }
      questions_.push_back(std::move(request));
      waiting_questions_ += count;
    }
    changed_.notify_one();  // without the lock: another process waits for the woken thread
  } catch (const std::exception& why) {  // the broker's deadline covers the questions
    base::log(log_level::warning, why.what());
  }
}

void lease_worker::lost(gpushm::generation generation) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    lost_.push_back(generation);
  } catch (const std::bad_alloc&) {  // then the listener checks all of them
    lost_.clear();
    all_lost_ = true;
  }
  changed_.notify_one();
}

void lease_worker::broker_ended(bool was_dropped) noexcept {
  const std::lock_guard lock(mutex_);
  has_dropped_ = was_dropped;
  all_lost_ = true;
  changed_.notify_one();
}

void lease_worker::all_lost() noexcept {
  const std::lock_guard lock(mutex_);
  all_lost_ = true;
  changed_.notify_one();
}

/// Questions have priority: another process waits for each. Between them, mappings end one at a
/// time.
void lease_worker::run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return stopping_ || all_lost_ || !questions_.empty() || !lost_.empty(); });
    if (stopping_) {
      return;
    }
    base::held_log_lines lines;
    if (!questions_.empty()) {
      const wire::confirm next = std::move(questions_.front());
      questions_.pop_front();
      waiting_questions_ -= next.questions.size();
      lock.unlock();
      reply_to_all(next);
    } else if (!lost_.empty()) {
      const gpushm::generation next = lost_.front();
      lost_.pop_front();
      lock.unlock();
      end_one(next);
    } else {
      all_lost_ = false;
      const std::optional<bool> has_dropped = std::exchange(has_dropped_, std::nullopt);
      lock.unlock();
      if (has_dropped) {
        const std::lock_guard listening(listener_mutex_);
        if (listener_ != nullptr) {
          listener_->broker_ended(*has_dropped);
        }
      }
      end_one(0);
    }
  }
}

wire::verdict lease_worker::verdict_on(gpushm::generation generation) {
  std::shared_ptr<const confirm_reply> reply;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = replies_.find(generation); at != replies_.end()) {
      reply = at->second;
    }
  }
  if (!reply) {
    return wire::verdict::not_shared;
  }
  return (*reply)() ? wire::verdict::unchanged : wire::verdict::changed;
}

/// Replies in one list while the driver is fast. Asks it once for questions about the same memory:
/// all were received before.
void lease_worker::reply_to_all(const wire::confirm& request) noexcept {
  try {
    std::unordered_map<gpushm::generation, wire::verdict> known;
    wire::confirmed confirmed;
    auto send_at = std::chrono::steady_clock::now() + max_list_delay;
    for (std::size_t i = 0; i < request.questions.size(); ++i) {
      const auto [at, is_new] =
          known.try_emplace(request.generations[i], wire::verdict::not_shared);
      if (is_new) {
        at->second = verdict_on(request.generations[i]);
      }
      confirmed.questions.push_back(request.questions[i]);
      confirmed.verdicts.push_back(at->second);
      if (const auto now = std::chrono::steady_clock::now(); now >= send_at) {
        send_(std::exchange(confirmed, {}));
        send_at = now + max_list_delay;
      }
    }
    if (!confirmed.questions.empty()) {
      send_(std::move(confirmed));
    }
  } catch (const std::exception& why) {  // the broker's deadline covers the rest
    base::log(log_level::warning, why.what());
  }
}

/// Ends one mapping; further ones of `generation` are queued after questions that have arrived
/// meanwhile.
void lease_worker::end_one(gpushm::generation generation) noexcept {
  bool more = false;
  {
    const std::lock_guard lock(listener_mutex_);
    more = listener_ != nullptr && listener_->end_lost(generation);
  }
  if (!more) {
    return;
  }
  if (generation == 0) {
    all_lost();
  } else {
    lost(generation);
  }
}

}  // namespace gpushm::client_detail
