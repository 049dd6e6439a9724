// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "gpushm/types.hpp"
#include "protocol/wire/messages.hpp"

namespace gpushm::client_detail {

/// Receives segments of this process that lost their name or exporter. Called on the connection's
/// worker.
class lease_listener {
 public:
  lease_listener() = default;
  lease_listener(const lease_listener&) = delete;
  lease_listener& operator=(const lease_listener&) = delete;
  virtual ~lease_listener() = default;
  /// Ends at most one mapping; blocks for the driver. Returns true if there may be more: call
  /// again. `generation` 0: any mapping may be lost; also after the broker is gone.
  [[nodiscard]] virtual bool end_lost(gpushm::generation generation) noexcept = 0;
  /// The connection has ended; `was_dropped`: the broker has closed it with a reason. Does not
  /// block. `end_lost(0)` follows.
  virtual void broker_ended(bool /*was_dropped*/) noexcept {}
};

/// Returns whether memory that this process shares is unchanged. Called on the connection's worker;
/// must not throw.
using confirm_reply = std::function<bool()>;

/// A connection's worker, for work that calls and waits for the driver, so that no receiver of
/// packets does. It answers the broker's questions about memory that this process shares, and ends
/// mappings whose segments are lost.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class lease_worker {
 public:
  /// Upper bound of queued questions; the broker's deadline covers further ones. A list is queued
  /// whole or not at all.
  static constexpr std::size_t max_questions = 65'536;
  using sender = std::function<void(wire::confirmed confirmed)>;

  /// `sender` is called on the worker; it must not block or throw.
  explicit lease_worker(sender reply_with);
  lease_worker(const lease_worker&) = delete;
  lease_worker& operator=(const lease_worker&) = delete;
  /// Blocks until the current work is done.
  ~lease_worker();

  /// Starts the thread. Throws `errc::system_error` if it cannot be created.
  void start();

  /// `listener` must exist until it is replaced; null: none. After return, the previous one is not
  /// called again. Must not be called from `end_lost`.
  void set_listener(lease_listener* listener);
  void reply_for(gpushm::generation generation, confirm_reply reply);
  void stop_replying(gpushm::generation generation) noexcept;

  // Called on the receiving thread; do not block.
  void confirm(wire::confirm request) noexcept;
  void lost(gpushm::generation generation) noexcept;
  void broker_ended(bool was_dropped) noexcept;

 private:
  void run();
  void reply_to_all(const wire::confirm& request) noexcept;
  [[nodiscard]] wire::verdict verdict_on(gpushm::generation generation);
  void end_one(gpushm::generation generation) noexcept;
  void all_lost() noexcept;

  sender send_;

  std::mutex listener_mutex_;  // held while the listener runs; acquired before `mutex_`
  lease_listener* listener_ = nullptr;
  std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  std::unordered_map<gpushm::generation, std::shared_ptr<const confirm_reply>> replies_;
  std::deque<wire::confirm> questions_;
  std::size_t waiting_questions_ = 0;  ///< total in those lists
  std::deque<gpushm::generation> lost_;
  bool all_lost_ = false;
  std::optional<bool> has_dropped_;  ///< the broker, which has ended
  bool stopping_ = false;
  std::jthread thread_;
};

}  // namespace gpushm::client_detail
