// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/deadline.hpp"
#include "base/file.hpp"
#include "base/guarded_fd.hpp"
#include "client/fork_guard.hpp"
#include "client/open_reports.hpp"
#include "client/send_queue.hpp"
#include "gpushm/client.hpp"
#include "wire/messages.hpp"
#include "wire/state_table.hpp"

namespace gpushm::detail {

using steady_time = std::chrono::steady_clock::time_point;

using base::time_left;

/// An answer with its descriptors.
struct answer {
  wire::body body;
  std::vector<base::guarded_fd> descriptors;
};

/// Who an error is told about.
struct subject {
  std::string_view operation;
  std::string_view object;
};

/// The error for an answer that does not belong to its request.
[[nodiscard]] error unexpected_answer(const subject& about);
/// What a broker's `Failure` says of `about`.
[[nodiscard]] error from_wire(const wire::failure& failure, const subject& about);

/// Receives the events of one subscription. Called on the connection's thread.
class event_sink {
 public:
  event_sink() = default;
  event_sink(const event_sink&) = delete;
  event_sink& operator=(const event_sink&) = delete;
  virtual ~event_sink() = default;
  virtual void deliver(event what) = 0;
  virtual void broker_gone() = 0;
};

class connection;

/// Hears of segments that this process holds and that lost their name or exporter. Called on the
/// connection's thread.
class lease_listener {
 public:
  lease_listener() = default;
  lease_listener(const lease_listener&) = delete;
  lease_listener& operator=(const lease_listener&) = delete;
  virtual ~lease_listener() = default;
  /// Ends at most one mapping, which takes as long as the driver does; true: call again, there may
  /// be more. `generation` 0: any of them may have lost it; also when the broker is gone.
  [[nodiscard]] virtual bool end_lost(const connection& broker,
                                      gpushm::generation generation) noexcept = 0;
};

/// Says whether memory that this process shares is still the same. Called by whoever reads the
/// socket: must not block and not throw.
using confirm_answer = std::function<bool()>;

/// One connection to one broker: sends requests, routes answers to who waits for them, and events
/// to their subscriptions. A thread of its own reads the socket while nobody waits for an answer;
/// who does wait reads for everybody, which saves a change of threads on every request. It never
/// comes back once the broker is gone.
///
/// Distinct objects: safe. Shared objects: safe.
class connection {
 public:
  /// Connects and says hello. Blocks for `timeout` at most. `predecessor`, which the broker has
  /// ended: its leases are asked for. Throws broker_unreachable, permission_denied,
  /// unsupported_version, too_many_connections, timed_out.
  static std::shared_ptr<connection> establish(const std::string& path,
                                               std::chrono::milliseconds timeout,
                                               const connection* predecessor = nullptr);
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  /// Says goodbye; ends leases and subscriptions with it.
  ~connection();

  /// A request whose answers (one, or several for open_many) are waited for.
  class call {
   public:
    ~call();
    call(const call&) = delete;
    call& operator=(const call&) = delete;
    /// The next answer. Throws what a Failure says, broker_gone, or timed_out at `deadline`.
    [[nodiscard]] answer next(steady_time deadline);
    /// The same, but a Failure is an answer too: one name's of several.
    [[nodiscard]] answer next_raw(steady_time deadline);

   private:
    friend class connection;
    call(connection& owner, std::uint64_t id, const subject& about);
    connection& owner_;
    std::uint64_t id_;
    std::string operation_;
    std::string object_;
  };

  /// Sends a request; blocks until it is sent, at most until `deadline`. `descriptors` stay the
  /// caller's.
  [[nodiscard]] std::unique_ptr<call> start(wire::body body,
                                            std::span<const int> descriptors,
                                            const subject& about,
                                            steady_time deadline);
  /// Sends a request and waits for its one answer.
  [[nodiscard]] answer request(wire::body body,
                               const subject& about,
                               steady_time deadline,
                               std::span<const int> descriptors = {});
  /// Subscribes `sink`, which must stay until `unsubscribe`. Returns the subscription's number.
  [[nodiscard]] std::uint64_t subscribe(const std::string& prefix,
                                        event_sink& sink,
                                        steady_time deadline);
  void unsubscribe(std::uint64_t subscription) noexcept;

  /// `listener` must stay until it is replaced; null: nobody. When it returns, the former one is
  /// not called any more. Not from within `end_lost`.
  void set_lease_listener(lease_listener* listener);
  /// The broker's questions about `generation` are answered with `answer` until `stop_answering`.
  void answer_for(gpushm::generation generation, confirm_answer answer);
  void stop_answering(gpushm::generation generation) noexcept;

  /// Gives answers' leases back. Never throws and never blocks: what the socket does not take now,
  /// the connection's thread sends.
  /// `never_mapped`: of none of what was granted was used, so no exporter should take it for the
  /// end of a consumer.
  void release(gpushm::generation generation, std::uint32_t count, bool never_mapped) noexcept;

  /// For the broker's counters, told within a second by the connection's thread. `took`: from the
  /// call to the mapping. Not of what `cached` answered.
  void opened_in(std::chrono::nanoseconds took) noexcept;
  /// After the broker had answered with a segment.
  void open_failed(errc why) noexcept;
  /// The import cache answered an open; told with the next of the above, or at the end. No system
  /// call.
  void opened_from_cache() noexcept { reports_.add_cached(); }

  /// The end of the socket was seen. No system call.
  [[nodiscard]] bool broken() const noexcept;
  /// Not broken, and the state table says that the broker lives: that is known before the socket's
  /// end is. No system call.
  [[nodiscard]] bool alive() const noexcept { return !broken() && table_.broker_alive(); }
  [[nodiscard]] segment_state state(std::uint32_t slot,
                                    gpushm::generation generation) const noexcept;
  [[nodiscard]] const broker_info& broker() const noexcept { return info_; }
  [[nodiscard]] std::uint64_t forks() const noexcept { return forks_; }

  /// The broker has given this connection the leases of its predecessor: `keep` is to be sent.
  [[nodiscard]] bool resumed() const noexcept { return resumed_; }
  /// Says what is kept of those, with the count of answers of each.
  void keep(std::span<const std::pair<gpushm::generation, std::uint32_t>> what,
            steady_time deadline);
  /// Who has this connection's leases; once.
  void set_successor(std::shared_ptr<connection> heir);
  [[nodiscard]] bool has_successor() const noexcept {
    return current_successor_.load(std::memory_order_acquire) != nullptr;
  }
  /// The last of its successors, else itself. As long-lived as this object.
  [[nodiscard]] connection& current() noexcept;

 private:
  struct pending {
    std::deque<answer> answers;
    std::condition_variable arrived;
    bool waited_for = false;  ///< a thread sleeps on `arrived`
  };

  connection(const std::string& path, std::chrono::milliseconds timeout);
  void greet(const wire::session_token& resume, const subject& about, steady_time deadline);
  bool try_greet(std::span<const std::byte> hello,
                 std::span<const int> descriptors,
                 const subject& about,
                 steady_time deadline);
  void read_until_stopped();
  void wake_thread() noexcept;
  void send_report() noexcept;
  void push(const wire::message& message) noexcept;
  void flush_queue() noexcept;
  [[nodiscard]] bool caller_has_begun();
  bool read_available(const pending* wanted);
  void read_for_everybody(const pending& wanted, steady_time deadline);
  void stop_reading();
  void resume_reading();
  void took(const answer& taken);
  [[nodiscard]] bool holds_too_much() const noexcept { return held_descriptors_ >= most_held_; }
  void dispatch(wire::message message, std::vector<base::guarded_fd> descriptors, bool lost);
  void answer_confirm(std::uint64_t id, gpushm::generation generation) noexcept;
  void tell_listener(bool all) noexcept;
  void break_down() noexcept;
  void note_dropped(const wire::failure& why);
  void send(std::span<const std::byte> packet,
            std::span<const int> descriptors,
            const subject& about,
            steady_time deadline);
  [[nodiscard]] error hung_up(const subject& about);
  /// With `mutex_` held.
  [[nodiscard]] error gone(const subject& about) const;

  base::guarded_fd socket_;
  std::uint64_t forks_ = fork_count();
  broker_info info_;
  base::unique_mapping table_mapping_;
  wire::state_table_view table_;
  base::guarded_fd wake_;

  bool takes_reports_ = false;
  bool resumed_ = false;
  wire::session_token token_{};
  std::shared_ptr<connection> successor_;
  std::atomic<connection*> current_successor_{nullptr};  ///< the same; set after it
  open_reports reports_;
  send_queue queue_{socket_.get()};

  std::mutex listener_mutex_;  // held while the listener runs; taken before the others
  lease_listener* listener_ = nullptr;
  // Held from receiving a packet until it is dispatched: keeps their order.
  std::mutex receive_mutex_;
  std::vector<std::byte> buffer_;
  mutable std::mutex mutex_;  // of all below; taken after the others
  std::unordered_map<std::uint64_t, std::shared_ptr<pending>> pending_;
  std::unordered_map<std::uint64_t, event_sink*> sinks_;
  std::uint64_t next_id_ = 1;
  std::unordered_map<gpushm::generation, std::shared_ptr<const confirm_answer>> answers_;
  std::deque<gpushm::generation> lost_;  // not told to the listener yet
  /// Why the broker hangs up, as it said before it did; empty: it said nothing.
  std::string dropped_because_;
  std::size_t held_descriptors_ = 0;  ///< of answers that arrived and were not taken
  /// Nobody reads while so many are held: the rest waits in the socket, and then in the broker.
  std::size_t most_held_ = 0;
  bool stopping_ = false;
  bool caller_reads_ = false;
  /// The thread leaves the socket alone until it is woken: a caller reads, or too much is held.
  bool parked_ = false;
  bool torn_down_ = false;  ///< everybody was told that the broker is gone
  std::atomic<bool> broken_{false};
  std::jthread thread_;
};

}  // namespace gpushm::detail
