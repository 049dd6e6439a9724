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

/// Whose turn it is on the broker's thread: start-time fair queueing (Goyal, Vin and Cheng, 1996)
/// over principals, and within a principal over its members. Each counts the CPU time that it was
/// given; the one with the least goes first. A member that was idle starts at the present and not
/// at its old count, so it cannot save up time.
///
/// Distinct objects: safe. Shared objects: unsafe; runs on the broker's strand.
class turns {
  struct line;

 public:
  /// One that takes turns: a connection, or a job of the broker itself. Leaves when destroyed.
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
    std::shared_ptr<line> line_;
    void* context_ = nullptr;
    std::uint64_t spent_ = 0;
    bool waits_ = false;
  };

  /// Before anything else; `context` is what `next` finds it by.
  void join(member& who, const std::string& principal, void* context) {
    auto& kept = lines_[principal];
    who.line_ = kept.lock();
    if (!who.line_) {
      kept = who.line_ = std::make_shared<line>();
      who.line_->name = principal;
    }
    who.of_ = this;
    who.context_ = context;
  }

  /// It has something to do.
  void ask(member& who) {
    if (who.waits_ || who.of_ == nullptr) {
      return;
    }
    line& in = *who.line_;
    if (in.waiting.empty()) {
      in.spent = std::max(in.spent, now_);
      waiting_.insert({in.spent, &in});
    }
    who.spent_ = std::max(who.spent_, in.now);
    in.waiting.insert({who.spent_, &who});
    who.waits_ = true;
  }

  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }

  /// The next one, which waits no longer. Precondition: not empty.
  [[nodiscard]] member& next() {
    line& in = *waiting_.begin()->second;
    member& who = *in.waiting.begin()->second;
    now_ = in.spent;
    in.now = who.spent_;
    stop_waiting(who);
    return who;
  }

  /// It has used `nanoseconds`.
  void charge(member& who, std::uint64_t nanoseconds) {
    line& in = *who.line_;
    if (!in.waiting.empty()) {
      waiting_.erase({in.spent, &in});
    }
    in.spent += nanoseconds;
    if (!in.waiting.empty()) {
      waiting_.insert({in.spent, &in});
    }
    const bool waits = who.waits_;
    if (waits) {
      in.waiting.erase({who.spent_, &who});
    }
    who.spent_ += nanoseconds;
    if (waits) {
      in.waiting.insert({who.spent_, &who});
    }
  }

  void leave(member& who) {
    if (who.waits_) {
      stop_waiting(who);
    }
    const std::shared_ptr<line> last = std::move(who.line_);
    who.of_ = nullptr;
    if (last.use_count() == 1) {
      lines_.erase(last->name);
    }
  }

 private:
  struct line {
    std::string name;
    std::uint64_t spent = 0;
    std::uint64_t now = 0;
    std::set<std::pair<std::uint64_t, member*>> waiting;
  };

  void stop_waiting(member& who) {
    line& in = *who.line_;
    in.waiting.erase({who.spent_, &who});
    who.waits_ = false;
    if (in.waiting.empty()) {
      waiting_.erase({in.spent, &in});
    }
  }

  std::map<std::string, std::weak_ptr<line>> lines_;
  std::set<std::pair<std::uint64_t, line*>> waiting_;
  std::uint64_t now_ = 0;
};

}  // namespace gpushm::broker_detail
