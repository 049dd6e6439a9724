// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/file.hpp"
#include "base/guarded_fd.hpp"
#include "client/answer.hpp"
#include "client/fork_guard.hpp"
#include "client/handshake.hpp"
#include "client/late_answers.hpp"
#include "client/lease_worker.hpp"
#include "client/open_reports.hpp"
#include "client/request_lane.hpp"
#include "client/send_queue.hpp"
#include "client/subject.hpp"
#include "gpushm/client.hpp"
#include "wire/messages.hpp"
#include "wire/state_table.hpp"

namespace gpushm::detail {

using base::time_left;

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

/// One connection to one broker, on two sockets: a thread asks on the request lane and receives its
/// answer there; a thread of this object reads the event lane, where events, questions and late
/// answers come; what takes as long as the driver does has a worker (docs/adr/0025). It never comes
/// back once the broker is gone: the end of either socket ends both.
///
/// Distinct objects: safe. Shared objects: safe.
class connection final : public lease_giver {
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
  ~connection() override;

  /// Sends a request and waits for its one answer. `descriptors` stay the caller's. Throws what a
  /// Failure says, broker_gone, and timed_out at `deadline`; an answer that comes after that is
  /// dropped, and what it granted goes back.
  [[nodiscard]] answer request(wire::body body,
                               const subject& about,
                               steady_time deadline,
                               std::span<const int> descriptors = {});
  /// Is given a `Waiting` with what its exporter is asked about; must not throw.
  using offer_taker = std::function<void(answer offer)>;
  /// The same; a Failure is an answer, too. Waits for a late one, unless `stop` is asked to: then
  /// the broker is told, and cancelled thrown. Before it waits, `taker` has what the answer may be.
  [[nodiscard]] answer open(wire::open wanted,
                            const subject& about,
                            steady_time deadline,
                            const std::stop_token& stop = {},
                            const offer_taker& taker = {});
  /// One answer a name, in the order in which they came; none of those whose wait was stopped.
  /// Those of which too many descriptors would be held come without: `FetchChunks` has them.
  [[nodiscard]] std::vector<answer> open_many(wire::open_many wanted,
                                              const subject& about,
                                              steady_time deadline,
                                              const std::stop_token& stop = {},
                                              const offer_taker& taker = {});
  /// A request whose answer is waited for later; the lane is free for others meanwhile.
  class ahead {
   public:
    ahead(const ahead&) = delete;
    ahead& operator=(const ahead&) = delete;
    /// An answer that nobody has waited for is dropped when it comes.
    ~ahead();
    /// Once. Throws as `request`.
    [[nodiscard]] answer get(const subject& about, steady_time deadline);

   private:
    friend class connection;
    explicit ahead(connection& of) noexcept : of_(of) {}
    void ask(wire::body body, const subject& about, steady_time deadline);

    connection& of_;
    std::optional<late_answers::waiter> place_;
    bool is_under_way_ = false;
  };
  /// Sends it. This object must outlive the result.
  [[nodiscard]] std::unique_ptr<ahead> ask_ahead(wire::body body,
                                                 const subject& about,
                                                 steady_time deadline);
  /// Subscribes `sink`, which must stay until `unsubscribe`; `present` gets what is there already.
  /// Returns the subscription's number.
  [[nodiscard]] std::uint64_t subscribe(const std::string& prefix,
                                        event_sink& sink,
                                        wire::subscribed& present,
                                        steady_time deadline);
  void unsubscribe(std::uint64_t subscription) noexcept;

  /// What has to ask the driver.
  [[nodiscard]] lease_worker& worker() noexcept { return worker_; }

  /// Gives answers' leases back. Never throws and never blocks: what the socket does not take now,
  /// the connection's thread sends.
  void release(gpushm::generation generation,
               std::uint32_t count,
               bool never_mapped) noexcept override;

  /// For the broker's counters, told within a second by the connection's thread. `took`: from the
  /// call to the mapping. Not of what `cached` answered.
  void opened_in(std::chrono::nanoseconds took) noexcept;
  /// After the broker had answered with a segment.
  void open_failed(errc why) noexcept;
  /// The import cache answered an open; told with the next of the above, or at the end. No system
  /// call. One caller at a time.
  void opened_from_cache() noexcept { reports_.add_cached(); }

  /// The end of a socket was seen. No system call.
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
  /// Its leases are a successor's from now on: what it grants from here on nobody knows of.
  void hand_over() noexcept { handed_over_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool handed_over() const noexcept {
    return handed_over_.load(std::memory_order_relaxed);
  }

 private:
  class held_turn;
  class exchange;

  explicit connection(handshake&& done);

  void lose_lane() noexcept;
  [[nodiscard]] answer receive_answer(const held_turn& turn,
                                      std::uint64_t id,
                                      const subject& about,
                                      steady_time deadline);
  [[nodiscard]] answer to_answer(packet got);
  void bound_descriptors(answer& got);
  [[nodiscard]] std::optional<answer> wait_for_late(late_answers::waiter& late,
                                                    const subject& about,
                                                    steady_time deadline,
                                                    const std::stop_token& stop);
  void send_unawaited(wire::body body) noexcept;
  void read_events();
  bool read_available();
  void dispatch(packet got);
  void wake_thread() noexcept;
  void send_report() noexcept;
  void flush(send_queue& queue) noexcept;
  void push(send_queue& to, const wire::message& message) noexcept;
  void note_dropped(const wire::failure& why);
  [[nodiscard]] bool drop_abandoned() noexcept;
  void read_why() noexcept;
  void break_down() noexcept;
  [[nodiscard]] error gone(const subject& about) const;

  std::uint64_t forks_ = fork_count();
  broker_info info_;
  base::unique_mapping table_mapping_;
  wire::state_table_view table_;
  base::guarded_fd wake_;

  bool takes_reports_ = false;
  bool resumed_ = false;
  std::atomic<bool> handed_over_{false};
  wire::session_token token_{};
  open_reports reports_;

  request_lane requests_;
  base::guarded_fd events_;  ///< read by the thread alone
  std::vector<std::byte> buffer_;
  send_queue event_queue_{events_.get()};
  std::atomic<std::uint64_t> next_id_{1};
  held_descriptors held_;
  late_answers late_;

  mutable std::mutex mutex_;  // of all below; taken after others
  std::unordered_map<std::uint64_t, event_sink*> sinks_;
  /// Why the broker hangs up, as it said before it did; empty: it said nothing.
  std::string dropped_because_;
  bool stopping_ = false;
  std::atomic<bool> broken_{false};

  lease_worker worker_;
  std::jthread thread_;
};

}  // namespace gpushm::detail
