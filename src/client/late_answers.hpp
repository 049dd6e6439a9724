// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "client/answer.hpp"
#include "client/request_lane.hpp"

namespace gpushm::detail {

/// Answers of opens that wait for their names or their exporters: they come on the event lane, and
/// threads wait for them here. Distinct objects: safe. Shared objects: safe.
class late_answers {
 private:
  struct place {
    std::deque<answer> arrived;
    std::condition_variable changed;
  };

 public:
  /// The answers of one request, from before it is sent: they may come before what says that they
  /// will. Ends with it; what has come by then is dropped. Not movable.
  class waiter {
   public:
    waiter(late_answers& all, std::uint64_t id);
    waiter(const waiter&) = delete;
    waiter& operator=(const waiter&) = delete;
    ~waiter();
    /// The next one. Nothing: `deadline` came first, or the connection ended.
    [[nodiscard]] std::optional<answer> next(steady_time deadline);

   private:
    late_answers& all_;
    std::uint64_t id_;
    std::shared_ptr<place> mine_;
  };

  /// False: nobody waits for it any more, and `what` is as before.
  [[nodiscard]] bool deliver(std::uint64_t id, answer& what);
  /// No more will come: whoever waits has what has come so far.
  void end() noexcept;

 private:
  std::mutex mutex_;
  bool ended_ = false;
  std::unordered_map<std::uint64_t, std::shared_ptr<place>> waiting_;
};

}  // namespace gpushm::detail
