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

#include "base/files/file.hpp"
#include "base/files/guarded_fd.hpp"
#include "base/process/deadline.hpp"
#include "client/session/fork_guard.hpp"
#include "client/session/handshake.hpp"
#include "client/session/late_replies.hpp"
#include "client/session/lease_worker.hpp"
#include "client/session/open_reports.hpp"
#include "client/session/reply.hpp"
#include "client/session/request_lane.hpp"
#include "client/session/send_queue.hpp"
#include "client/session/subject.hpp"
#include "gpushm/client.hpp"
#include "protocol/wire/messages.hpp"
#include "protocol/wire/packet_buffer.hpp"
#include "protocol/wire/state_table.hpp"

namespace gpushm::client_detail {

using base::time_left;

/// Receives the events of one subscription. Called on the connection's thread.
class event_sink {
 public:
  event_sink() = default;
  event_sink(const event_sink&) = delete;
  event_sink& operator=(const event_sink&) = delete;
  virtual ~event_sink() = default;
  virtual void deliver(event news) = 0;
  virtual void broker_gone() = 0;
};

/// One connection to one broker, on two sockets: a thread sends a request on the request lane and
/// receives its reply there; a thread of this object reads the event lane, which carries events,
/// questions and late replies; a worker does what waits for the driver (docs/adr/0025). It does not
/// reconnect: the end of either socket ends both.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class connection final : public lease_returner {
 public:
  /// Connects and exchanges hello and welcome. Blocks for at most `timeout`. If `predecessor`, a
  /// connection that the broker has ended, is given, requests its leases. `names`, as many as fit
  /// into one OpenMany, are requested together with the connection: call `take_early`. Throws
  /// broker_unreachable, permission_denied, unsupported_version, too_many_connections, timed_out.
  static std::shared_ptr<connection> establish(const std::string& path,
                                               std::chrono::milliseconds timeout,
                                               const connection* predecessor = nullptr,
                                               std::span<const std::string> names = {});
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  /// Sends a goodbye message, which ends the leases and subscriptions.
  ~connection() override;

  /// Sends a request and blocks for its single reply. `descriptors` stay the caller's. Throws the
  /// error of a Failure, broker_gone, and timed_out at `deadline`; a reply after that is dropped,
  /// and its grants are returned.
  [[nodiscard]] reply request(wire::body body,
                              const subject& about,
                              steady_time deadline,
                              std::span<const int> descriptors = {});
  /// Receives a `Waiting` that has the segment about which the broker asks the exporter; must not
  /// throw.
  using offer_taker = std::function<void(reply offer)>;
  /// As `request`, but returns a Failure as a reply. Waits for a late reply, unless `stop` is
  /// requested: then it cancels the request at the broker and throws cancelled. `taker` receives
  /// the offered segment before the wait.
  [[nodiscard]] reply open(wire::open request,
                           const subject& about,
                           steady_time deadline,
                           const std::stop_token& stop = {},
                           const offer_taker& taker = {});
  /// Returns one reply per name, in the order of arrival, without those whose wait was stopped.
  /// Replies that would exceed the limit of descriptors come without: `FetchChunks` gets them.
  [[nodiscard]] std::vector<reply> open_many(wire::open_many request,
                                             const subject& about,
                                             steady_time deadline,
                                             const std::stop_token& stop = {},
                                             const offer_taker& taker = {});
  /// Returns the replies about the names that were requested with the connection, in the order of
  /// arrival, without those that wait for an exporter, which it cancels; nullopt if they were not
  /// requested, or are taken already. Throws as `open_many`.
  [[nodiscard]] std::optional<std::vector<reply>> take_early(const subject& about,
                                                             steady_time deadline);
  /// A request whose reply is received later; the lane is free for other requests meanwhile.
  class ahead {
   public:
    ahead(const ahead&) = delete;
    ahead& operator=(const ahead&) = delete;
    /// Drops a reply that was not received when it arrives.
    ~ahead();
    /// Call once. Throws as `request`.
    [[nodiscard]] reply get(const subject& about, steady_time deadline);

   private:
    friend class connection;
    explicit ahead(connection& connection) noexcept : of_(connection) {}
    void ask(wire::body body,
             const subject& about,
             steady_time deadline,
             std::span<const int> descriptors);

    connection& of_;
    std::optional<late_replies::waiter> place_;
    bool is_in_flight_ = false;
  };
  /// Sends the request. This object must outlive the result; `descriptors` stay the caller's.
  [[nodiscard]] std::unique_ptr<ahead> request_ahead(wire::body body,
                                                     const subject& about,
                                                     steady_time deadline,
                                                     std::span<const int> descriptors = {});
  /// Subscribes `sink`, which must exist until `unsubscribe`; `present` receives the existing
  /// segments. Returns the id of the subscription.
  [[nodiscard]] std::uint64_t subscribe(const std::string& prefix,
                                        event_sink& sink,
                                        wire::subscribed& present,
                                        steady_time deadline);
  void unsubscribe(std::uint64_t subscription) noexcept;

  /// For work that calls the driver.
  [[nodiscard]] lease_worker& worker() noexcept { return worker_; }

  /// Returns leases of replies. Does not throw or block: the connection's thread sends what the
  /// socket does not accept now.
  void release(gpushm::generation generation,
               std::uint32_t count,
               bool never_mapped) noexcept override;

  /// Counts an open for the broker, which the connection's thread reports within a second. `took`:
  /// from the call to the mapping; `import`: the part of that after the broker's reply. Not for
  /// opens that the cache served.
  void opened_in(std::chrono::nanoseconds took, std::chrono::nanoseconds import) noexcept;
  /// Counts an open that failed after the broker had that returned a segment.
  void open_failed(errc why) noexcept;
  /// Counts an open that the import cache served; reported with the next of the above, or at the
  /// end. No system call. Calls must not run concurrently.
  void opened_from_cache() noexcept { reports_.add_cached(); }
  /// Counts an item of a channel, in a slot of `bytes`. No system call, except once a second.
  void published_item(std::uint64_t bytes) noexcept;

  /// True once the end of a socket was detected. No system call.
  [[nodiscard]] bool broken() const noexcept;
  /// Not broken, and the broker is alive according to the state table, which shows its end before
  /// the socket does. No system call.
  [[nodiscard]] bool alive() const noexcept { return !broken() && table_.broker_alive(); }
  [[nodiscard]] segment_state state(std::uint32_t slot,
                                    gpushm::generation generation) const noexcept;
  /// Whether states read afterwards are the broker's present ones. False between two brokers, when
  /// the next one may have changed them already. No system call, unless the broker has died: then
  /// waits until a table that the next one has sent is mapped.
  [[nodiscard]] bool has_current_states() const noexcept {
    return table_.has_writer() || has_next_table();
  }
  /// As `state`, also of a broker that is gone: what it was last.
  [[nodiscard]] segment_state last_state(std::uint32_t slot,
                                         gpushm::generation generation) const noexcept {
    return table_.state(slot, generation);
  }
  /// Whether the segment has not been freed, as far as known: false only when it has been. No
  /// system call.
  [[nodiscard]] bool may_exist(std::uint32_t slot, gpushm::generation generation) const noexcept {
    return !table_.broker_alive() || table_.exists(slot, generation);
  }
  [[nodiscard]] const broker_info& broker() const noexcept { return info_; }
  [[nodiscard]] std::uint64_t forks() const noexcept { return forks_; }

  /// The broker has given this connection the leases of its predecessor: call `keep`.
  [[nodiscard]] bool resumed() const noexcept { return resumed_; }
  /// Whether the broker registers descriptors; an earlier one would end the connection.
  [[nodiscard]] bool takes_descriptors() const noexcept { return takes_descriptors_; }
  /// Whether the broker has versions of names.
  [[nodiscard]] bool knows_versions() const noexcept { return knows_versions_; }
  /// Sends which of those leases are kept, each with its number of grants.
  void keep(std::span<const std::pair<gpushm::generation, std::uint32_t>> grants,
            steady_time deadline);
  /// Its leases belong to a successor from now on; grants after this are not recorded.
  void hand_over() noexcept { handed_over_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool handed_over() const noexcept {
    return handed_over_.load(std::memory_order_relaxed);
  }

 private:
  class held_turn;
  class exchange;

  explicit connection(handshake&& done);

  void lose_lane() noexcept;
  [[nodiscard]] reply receive_reply(const held_turn& turn,
                                    std::uint64_t id,
                                    const subject& about,
                                    steady_time deadline);
  [[nodiscard]] reply to_reply(packet packet);
  void bound_descriptors(reply& reply);
  [[nodiscard]] std::optional<reply> wait_for_late(late_replies::waiter& late,
                                                   const subject& about,
                                                   steady_time deadline,
                                                   const std::stop_token& stop);
  void send_unawaited(wire::body body) noexcept;
  void read_events();
  bool read_available();
  void dispatch(packet packet);
  void follow(const packet& successor);
  [[nodiscard]] bool has_next_table() const noexcept;
  [[nodiscard]] bool may_have_unread_events() const noexcept;
  void wake_thread() noexcept;
  void send_report() noexcept;
  void flush(send_queue& queue) noexcept;
  void push(send_queue& queue, const wire::message& message) noexcept;
  void note_dropped(const wire::failure& why);
  [[nodiscard]] bool drop_abandoned() noexcept;
  void read_drop_reason() noexcept;
  [[nodiscard]] bool was_dropped() const;
  void break_down() noexcept;
  void close_all() noexcept;
  [[nodiscard]] error gone(const subject& about) const;

  std::uint64_t forks_ = fork_count();
  broker_info info_;
  base::unique_mapping table_mapping_;
  wire::state_table_view table_;
  std::mutex wake_mutex_;  // held for a write that does not block; acquired last
  base::guarded_fd wake_;

  bool takes_reports_ = false;
  bool resumed_ = false;
  bool takes_descriptors_ = false;
  bool knows_versions_ = false;
  std::atomic<bool> handed_over_{false};
  wire::session_token token_{};
  open_reports reports_;

  request_lane requests_;
  base::guarded_fd events_;              ///< read by the connection's thread only
  mutable std::mutex events_end_mutex_;  ///< held while `events_` is closed; acquired last
  std::atomic<bool> is_reading_events_{false};
  wire::packet_buffer buffer_;
  send_queue event_queue_{events_.get()};
  /// The id of the request that was sent with the hello, and the number of its replies.
  static constexpr std::uint64_t early_id = 1;
  std::size_t early_replies_ = 0;
  std::atomic<std::uint64_t> next_id_{early_id + 1};
  held_descriptors held_;
  late_replies late_;

  mutable std::mutex mutex_;  // guards all members below; acquired after other locks
  std::unordered_map<std::uint64_t, event_sink*> sinks_;
  /// The reason that the broker sent before it closed the connection; empty: none.
  std::string drop_reason_;
  bool stopping_ = false;
  std::atomic<bool> broken_{false};

  lease_worker worker_;
  std::jthread thread_;
};

}  // namespace gpushm::client_detail
