// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace gpushm::broker_detail {

/// Scheduler of the broker's thread: start-time fair queueing (Goyal, Vin and Cheng, 1996) over
/// principals, and within a principal over its members. The one that has used the least CPU time
/// runs first. A member that was idle starts at the current virtual time, so that it cannot save up
/// time.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe. Runs on the broker's strand.
class turns {
  struct flow;

 public:
  /// A connection or a job of the broker itself. Leaves when destroyed.
  class member {
   public:
    member() = default;
    member(const member&) = delete;
    member& operator=(const member&) = delete;
    ~member() {
      if (of_ != nullptr) {
        of_->leave(*this);
      }
    }
    [[nodiscard]] void* context() const noexcept { return context_; }

   private:
    friend class turns;
    turns* of_ = nullptr;
    std::shared_ptr<flow> flow_;
    void* context_ = nullptr;
    std::uint64_t spent_ = 0;
    std::set<std::pair<std::uint64_t, member*>>::node_type place_;  ///< empty while it waits
  };

  /// Call first; `context` identifies the member returned by `next`. Throws std::bad_alloc and then
  /// changes nothing; the other functions allocate no memory.
  void join(member& new_member, const std::string& principal, void* context) {
    auto place = node_of<member>();
    const auto at = flows_.find(principal);
    auto in = at == flows_.end() ? nullptr : at->second.lock();
    if (!in) {
      in = std::make_shared<flow>();
      in->name = principal;
      in->place = node_of<flow>();
      flows_[principal] = in;
    }
    new_member.flow_ = std::move(in);
    new_member.place_ = std::move(place);
    new_member.of_ = this;
    new_member.context_ = context;
  }

  /// Requests a turn.
  void request_turn(member& member) noexcept {
    if (member.of_ == nullptr || waits(member)) {
      return;
    }
    flow& in = *member.flow_;
    if (in.waiting.empty()) {
      in.spent = std::max(in.spent, now_);
      put(waiting_, in.place, in.spent, in);
    }
    member.spent_ = std::max(member.spent_, in.now);
    put(in.waiting, member.place_, member.spent_, member);
  }

  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }

  /// Removes and returns the next member. Precondition: not empty.
  [[nodiscard]] member& next() noexcept {
    flow& in = *waiting_.begin()->second;
    member& who = *in.waiting.begin()->second;
    now_ = in.spent;
    in.now = who.spent_;
    stop_waiting(who);
    return who;
  }

  /// Charges `nanoseconds` of CPU time to the member.
  void charge(member& member, std::uint64_t nanoseconds) noexcept {
    flow& in = *member.flow_;
    const bool is_waiting = waits(member);
    if (!in.waiting.empty()) {
      in.place = waiting_.extract({in.spent, &in});
    }
    in.spent += nanoseconds;
    if (!in.waiting.empty()) {
      put(waiting_, in.place, in.spent, in);
    }
    if (is_waiting) {
      member.place_ = in.waiting.extract({member.spent_, &member});
    }
    member.spent_ += nanoseconds;
    if (is_waiting) {
      put(in.waiting, member.place_, member.spent_, member);
    }
  }

  /// No effect on a member that has not joined.
  void leave(member& member) noexcept {
    if (member.of_ == nullptr) {
      return;
    }
    if (waits(member)) {
      stop_waiting(member);
    }
    const std::shared_ptr<flow> last = std::move(member.flow_);
    member.of_ = nullptr;
    if (last.use_count() == 1) {
      flows_.erase(last->name);
    }
  }

 private:
  struct flow {
    std::string name;
    std::uint64_t spent = 0;
    std::uint64_t now = 0;
    std::set<std::pair<std::uint64_t, member*>> waiting;
    std::set<std::pair<std::uint64_t, flow*>>::node_type place;  ///< empty while it waits
  };

  template <typename Who>
  static typename std::set<std::pair<std::uint64_t, Who*>>::node_type node_of() {
    std::set<std::pair<std::uint64_t, Who*>> one;
    one.insert({0, nullptr});
    return one.extract(one.begin());
  }
  template <typename Who>
  static void put(std::set<std::pair<std::uint64_t, Who*>>& into,
                  typename std::set<std::pair<std::uint64_t, Who*>>::node_type& place,
                  std::uint64_t spent,
                  Who& member) noexcept {
    place.value() = {spent, &member};
    into.insert(std::move(place));
  }

  [[nodiscard]] static bool waits(const member& member) noexcept { return member.place_.empty(); }

  void stop_waiting(member& member) noexcept {
    flow& in = *member.flow_;
    member.place_ = in.waiting.extract({member.spent_, &member});
    if (in.waiting.empty()) {
      in.place = waiting_.extract({in.spent, &in});
    }
  }

  std::map<std::string, std::weak_ptr<flow>> flows_;
  std::set<std::pair<std::uint64_t, flow*>> waiting_;
  std::uint64_t now_ = 0;
};

}  // namespace gpushm::broker_detail
