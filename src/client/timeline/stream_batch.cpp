// SPDX-License-Identifier: Apache-2.0
// Operations of timelines on a stream, or in a graph: one or more, by one path.
#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/process/deadline.hpp"
#include "client/session/fork_guard.hpp"
#include "client/timeline/graph_operations.hpp"
#include "client/timeline/stream_turn.hpp"
#include "client/timeline/timeline_impl.hpp"
#include "gpu/streams/stream_operations.hpp"

namespace {

using gpushm::errc;
using gpushm::error;
using gpushm::cuda::CUstream;
using gpushm::streams::operation;
using gpushm::streams::stream_point;
using std::chrono::milliseconds;
namespace streams = gpushm::streams;
namespace sync = gpushm::sync;

bool stores(const gpushm_stream_operation& operation) {
  return operation.kind == GPUSHM_STREAM_SIGNAL || operation.kind == GPUSHM_STREAM_SET_FLAGS;
}
bool uses_flags(const gpushm_stream_operation& operation) {
  return operation.kind == GPUSHM_STREAM_WAIT_FLAGS || operation.kind == GPUSHM_STREAM_SET_FLAGS;
}
operation::kind kind_of(const gpushm_stream_operation& operation) {
  return stores(operation)                            ? operation::kind::store
         : operation.kind == GPUSHM_STREAM_WAIT_FLAGS ? operation::kind::wait_any_bit
                                                      : operation::kind::wait;
}
sync::condition condition_of(const gpushm_stream_operation& operation) {
  return uses_flags(operation) ? sync::condition::any_of(operation.value)
                               : sync::condition(operation.value);
}

}  // namespace

namespace gpushm::client_detail {

/// The operations of one call, which a stream will execute in this order. Everything is checked
/// before a wait is counted, and everything that can fail is done before the driver has enqueued
/// something: a call that throws has changed nothing.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class planned_operations {
 public:
  /// Checks the operations, follows the hand-overs of what is waited for, at most `timeout`, and
  /// finds the words.
  planned_operations(CUstream stream,
                     std::span<const gpushm_stream_operation> operations,
                     std::string_view name,
                     milliseconds timeout)
      : stream_(stream), what_(operations), name_(name), deadline_(base::deadline_after(timeout)) {
    for (const gpushm_stream_operation& each : what_) {
      const gpushm_timeline& on = *each.timeline;
      stores(each) ? on.check_own(name_) : on.check_usable(name_);
      uses_flags(each) ? on.check_flags(name_, each.value) : on.check_value(name_, each.value);
      if (stores(each)) {
        on.check_not_ended(name_, each.value);
        written_.push_back(each.timeline);
      }
    }
    // In the same order as the calls of other threads, against deadlocks.
    std::sort(written_.begin(), written_.end());
    written_.erase(std::unique(written_.begin(), written_.end()), written_.end());
    places_.reserve(what_.size());
    for_driver_.reserve(what_.size());
    for (const gpushm_stream_operation& each : what_) {
      const gpushm_timeline& on = *each.timeline;
      // One place for the whole call.
      const auto& at = places_.emplace_back(
          stores(each) ? on.place_.now() : on.place_to_wait(base::time_left(deadline_)));
      for_driver_.push_back(
          {kind_of(each),
           at->range().page->for_streams().address_for(stream_, at->range().first, name_, on.name_),
           each.value});
    }
  }

  [[nodiscard]] std::span<const operation> for_driver() const { return for_driver_; }
  /// The timeline, if there is one operation.
  [[nodiscard]] std::string_view object() const {
    return what_.size() == 1 ? std::string_view(what_.front().timeline->name_) : std::string_view();
  }

  /// Enqueues the operations.
  void run() {
    commit([&] { streams::enqueue(stream_, for_driver_, object()); });
    note_stores(record_point());
  }
  /// Calls `set`, which sets the operations of a graph whose next launch will be on the stream.
  void set_in_graph(const std::function<void()>& set) {
    commit(set);
    for (gpushm_timeline* const each : written_) {
      each->is_captured_ = true;
    }
    note_stores(std::nullopt);
  }
  /// A graph contains these operations.
  void note_recorded() {
    const auto locked = lock_written();
    for (gpushm_timeline* const each : written_) {
      each->stores_->use_streams();
      each->is_captured_ = true;
    }
    for (std::size_t i = 0; i != what_.size(); ++i) {
      gpushm_timeline& on = *what_[i].timeline;
      if (what_[i].kind == GPUSHM_STREAM_SET_FLAGS) {
        on.has_flags_ = true;
      } else if (what_[i].kind == GPUSHM_STREAM_WAIT_FLAGS) {
        on.place_.note(places_[i], condition_of(what_[i]));
      }
    }
  }

 private:
  using locks = std::vector<std::unique_lock<std::mutex>>;

  [[nodiscard]] locks lock_written() const {
    locks result;
    result.reserve(written_.size());
    for (gpushm_timeline* const each : written_) {
      result.emplace_back(each->mutex_);
    }
    return result;
  }

  /// Throws unless the values grow. Precondition: the timelines are locked.
  void check_stores() const {
    for (std::size_t i = 0; i != what_.size(); ++i) {
      if (!stores(what_[i])) {
        continue;
      }
      gpushm_timeline& on = *what_[i].timeline;
      const auto earlier = std::find_if(
          what_.rend() - static_cast<std::ptrdiff_t>(i), what_.rend(), [&](const auto& each) {
            return stores(each) && each.timeline == &on;
          });
      const bool had_flags =
          earlier == what_.rend() ? on.has_flags_ : earlier->kind == GPUSHM_STREAM_SET_FLAGS;
      const std::uint64_t least = earlier == what_.rend() ? on.signaled_ : earlier->value;
      on.check_kind(name_, uses_flags(what_[i]), had_flags, least);
      if (!uses_flags(what_[i]) && what_[i].value <= least) {
        on.throw_not_larger(name_, what_[i].value);
      }
      on.check_not_ended(name_, what_[i].value);
    }
  }

  /// The stream waits for the last stores of others, by events: values never go back. Precondition:
  /// the timelines are locked.
  void follow_other_streams() {
    if (written_.empty()) {
      return;
    }
    id_ = streams::stream_id(stream_, name_, object());
    for (const gpushm_timeline* const each : written_) {
      each->stores_->follow(stream_, id_, name_, each->name_);
    }
  }

  /// Counts the waits and calls `enqueue`; after that nothing fails.
  void commit(const std::function<void()>& enqueue) {
    {
      const auto checked = lock_written();
      check_stores();
    }
    std::vector<streams::counted_wait> counted;
    for (std::size_t i = 0; i != what_.size(); ++i) {
      if (!stores(what_[i])) {
        const timeline_range& range = places_[i]->range();
        counted.push_back(await_stream_turn(stream_,
                                            range.page,
                                            range.first,
                                            condition_of(what_[i]),
                                            base::time_left(deadline_),
                                            what_[i].timeline->name_));
      }
    }
    locks_ = lock_written();
    check_stores();
    follow_other_streams();
    for (gpushm_timeline* const each : written_) {
      each->stores_->use_streams();
    }
    enqueue();
    for (streams::counted_wait& each : counted) {
      each.commit();
    }
    for (std::size_t i = 0; i != what_.size(); ++i) {
      if (!stores(what_[i])) {
        what_[i].timeline->place_.note(places_[i], condition_of(what_[i]));
      }
    }
  }

  /// After the stores; nullopt if the driver refuses it.
  [[nodiscard]] std::optional<stream_point> record_point() const {
    if (written_.empty()) {
      return std::nullopt;
    }
    try {
      return stream_point::record(stream_, name_, object());
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  void note_stores(const std::optional<stream_point>& done) {
    for (const gpushm_stream_operation& each : what_) {
      if (!stores(each)) {
        continue;
      }
      gpushm_timeline& on = *each.timeline;
      if (uses_flags(each)) {
        on.has_flags_ = true;
        on.stores_->note(id_, streams::stored_word::flags(each.value), done);
      } else {
        on.signaled_ = each.value;
        on.stores_->note(id_, each.value, done);
      }
    }
    locks_.clear();
  }

  const CUstream stream_;
  const std::span<const gpushm_stream_operation> what_;
  const std::string_view name_;
  const std::chrono::steady_clock::time_point deadline_;
  std::vector<gpushm_timeline*> written_;
  std::vector<place_follower::place_ptr> places_;  ///< of each operation
  std::vector<operation> for_driver_;
  locks locks_;           ///< from the last check to the end
  std::uint64_t id_ = 0;  ///< of the stream
};

}  // namespace gpushm::client_detail

using gpushm::client_detail::planned_operations;

void gpushm_timeline::batch(CUstream stream,
                            std::span<const gpushm_stream_operation> operations,
                            milliseconds timeout,
                            std::string_view operation) {
  planned_operations planned(stream, operations, operation, timeout);
  if (streams::is_capturing(stream)) {
    // Each launch has the same values.
    streams::enqueue(stream, planned.for_driver(), planned.object());
    planned.note_recorded();
    return;
  }
  planned.run();
}

gpushm_graph_operations::gpushm_graph_operations(
    CUstream stream, std::span<const gpushm_stream_operation> operations)
    : what_(operations.begin(), operations.end()) {
  if (!streams::is_capturing(stream)) {
    throw error(errc::invalid_argument,
                "record",
                {},
                "this stream is not captured",
                "begin a capture first (cudaStreamBeginCapture, torch.cuda.graph)");
  }
  planned_operations planned(stream, operations, "record", milliseconds(0));
  node_ = streams::record(stream, planned.for_driver(), {});
  planned.note_recorded();
  for (const gpushm_stream_operation& each : what_) {
    lives_.push_back(each.timeline->life_);
    places_.push_back(each.timeline->place_.now());
  }
  std::sort(lives_.begin(), lives_.end());
  lives_.erase(std::unique(lives_.begin(), lives_.end()), lives_.end());
}

gpushm_graph_operations::~gpushm_graph_operations() {
  if (gpushm::base::is_forked_child_of(forks_)) {
    for (auto& each : places_) {
      gpushm::client_detail::leak(each);
    }
  }
}

/// Throws invalid_argument if one was closed; none is closed before the locks are released.
std::vector<std::shared_lock<std::shared_mutex>> gpushm_graph_operations::use_timelines() const {
  std::vector<std::shared_lock<std::shared_mutex>> result;
  result.reserve(lives_.size());
  for (const auto& each : lives_) {
    result.emplace_back(each->mutex);
    if (each->is_closed) {
      throw error(errc::invalid_argument,
                  "set values",
                  {},
                  "a timeline of these operations was closed",
                  "capture a graph with the timelines that replace it");
    }
  }
  return result;
}

void gpushm_graph_operations::set(gpushm::cuda::CUgraphExec executable,
                                  CUstream stream,
                                  std::span<const std::uint64_t> values,
                                  milliseconds timeout) {
  gpushm::client_detail::check_not_forked(forks_, "set values", {});
  const std::lock_guard lock(mutex_);
  if (values.size() != what_.size()) {
    throw error(errc::invalid_argument,
                "set values",
                {},
                std::to_string(values.size()) + " values for " + std::to_string(what_.size()) +
                    " operations",
                "pass one for each operation that was recorded");
  }
  const auto used = use_timelines();
  auto wanted = what_;
  for (std::size_t i = 0; i != wanted.size(); ++i) {
    wanted[i].value = values[i];
  }
  planned_operations planned(stream, wanted, "set values", timeout);
  planned.set_in_graph(
      [&] { streams::set_operations(executable, node_, planned.for_driver(), {}); });
}
