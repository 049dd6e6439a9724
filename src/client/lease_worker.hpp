// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "gpushm/types.hpp"
#include "wire/messages.hpp"

namespace gpushm::detail {

/// Hears of segments that this process holds and that lost their name or exporter. Called on the
/// connection's worker.
class lease_listener {
 public:
  lease_listener() = default;
  lease_listener(const lease_listener&) = delete;
  lease_listener& operator=(const lease_listener&) = delete;
  virtual ~lease_listener() = default;
  /// Ends at most one mapping, which takes as long as the driver does; true: call again, there may
  /// be more. `generation` 0: any of them may have lost it; also when the broker is gone.
  [[nodiscard]] virtual bool end_lost(gpushm::generation generation) noexcept = 0;
};

/// Says whether memory that this process shares is still the same. Called on the connection's
/// worker; must not throw.
using confirm_answer = std::function<bool()>;

/// A connection's worker: what asks the driver, which takes as long as the driver does, so that
/// nobody who waits for a packet waits for that. It answers the broker's questions about memory
/// that this process shares, and ends mappings whose segments are lost.
///
/// Distinct objects: safe. Shared objects: safe.
class lease_worker {
 public:
  /// Questions that wait; the broker's deadline tells those who asked further ones. A list is taken
  /// whole or not at all.
  static constexpr std::size_t max_questions = 65'536;
  using reply = std::function<void(wire::confirmed said)>;

  /// `reply` is called on the worker; it must not block and not throw.
  explicit lease_worker(reply answer_with);
  lease_worker(const lease_worker&) = delete;
  lease_worker& operator=(const lease_worker&) = delete;
  /// Waits for what it does at the moment.
  ~lease_worker();

  /// From now on. Throws `errc::system_error` where no thread can be had.
  void start();

  /// `listener` must stay until it is replaced; null: nobody. When it returns, the former one is
  /// not called any more. Not from within `end_lost`.
  void set_listener(lease_listener* listener);
  void answer_for(gpushm::generation generation, confirm_answer answer);
  void stop_answering(gpushm::generation generation) noexcept;

  // From the thread that receives: none of these blocks.
  void confirm(wire::confirm asked) noexcept;
  void lost(gpushm::generation generation) noexcept;
  /// The broker is gone.
  void all_lost() noexcept;

 private:
  void run();
  void answer_all(const wire::confirm& asked) noexcept;
  [[nodiscard]] wire::verdict verdict_on(gpushm::generation generation);
  void end_one(gpushm::generation generation) noexcept;

  reply reply_;

  std::mutex listener_mutex_;  // held while the listener runs; taken before the other
  lease_listener* listener_ = nullptr;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::unordered_map<gpushm::generation, std::shared_ptr<const confirm_answer>> answers_;
  std::deque<wire::confirm> questions_;
  std::size_t waiting_questions_ = 0;  ///< in those lists
  std::deque<gpushm::generation> lost_;
  bool all_lost_ = false;
  bool stopping_ = false;
  std::jthread thread_;
};

}  // namespace gpushm::detail
