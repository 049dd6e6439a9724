// SPDX-License-Identifier: Apache-2.0
#include "client/session/connection.hpp"

#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/process/thread.hpp"
#include "base/report/log.hpp"
#include "base/segments/exporter_bound.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"

namespace gpushm::client_detail {

namespace {

using std::chrono::milliseconds;

/// The generation that a packet grants; 0: none. To return what was not granted could end the
/// lease of a creator that opens its own.
gpushm::generation granted_by(const wire::body& body) noexcept {
  if (const auto* opened = std::get_if<wire::opened>(&body)) {
    return base::is_only_fetched(opened->segment.backend) ? 0 : opened->segment.generation;
  }
  if (const auto* reserved = std::get_if<wire::reserved>(&body)) {
    return reserved->generation;
  }
  return 0;
}

error timed_out(const subject& about) {
  return {errc::timed_out,
          about.operation,
          about.object,
          "the broker did not answer in time",
          "check whether it is stopped or overloaded, or use a longer request timeout"};
}

base::guarded_fd new_eventfd(const std::string& path) {
  return base::guarded_fd::open([&] {
    return base::checked(
        "connect", path, "eventfd", [] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  });
}

}  // namespace

std::size_t max_held_descriptors() {
  rlimit limit{};
  constexpr rlim_t fewest = 64;
  constexpr rlim_t most = 16'384;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return fewest;
  }
  return std::clamp(limit.rlim_cur / 4, fewest, most);
}

// ---- construction and destruction ----

connection::connection(handshake&& done)
    : info_(std::move(done.info)),
      table_mapping_(std::move(done.table)),
      table_(done.view),
      wake_(new_eventfd(info_.socket_path)),
      takes_reports_(done.welcome.takes_reports),
      resumed_(done.welcome.resumed),
      takes_descriptors_(done.welcome.known_kinds >
                         static_cast<std::uint32_t>(backend::descriptor)),
      knows_versions_(done.welcome.knows_versions),
      token_(done.welcome.token),
      requests_(std::move(done.requests)),
      events_(std::move(done.events)),
      held_(max_held_descriptors()),
      worker_([this](wire::confirmed confirmed) {
        push(event_queue_, {0, std::move(confirmed)});
      }) {}

std::shared_ptr<connection> connection::establish(const std::string& path,
                                                  milliseconds timeout,
                                                  const connection* predecessor,
                                                  std::span<const std::string> names) {
  std::vector<std::byte> request;
  if (!names.empty()) {
    request = wire::encode({early_id, wire::open_many{{names.begin(), names.end()}, 0, 0}});
  }
  handshake done = shake_hands(
      path, timeout, predecessor == nullptr ? wire::session_token{} : predecessor->token_, request);
  const std::size_t early_replies = done.has_sent_request ? names.size() : 0;
  std::shared_ptr<connection> result(new connection(std::move(done)));
  result->early_replies_ = early_replies;
  result->worker_.start();
  result->thread_ =
      base::start_thread("gpushm-client", [raw = result.get()] { raw->read_events(); });
  return result;
}

connection::~connection() {
  late_.end();
  try {
    if (!broken()) {
      requests_.queue().clear();  // leases end with the connection
      while (takes_reports_) {
        auto report = reports_.take();
        if (!report || event_queue_.try_send(wire::encode({0, std::move(*report)}), {}) !=
                           transport::send_result::sent) {
          break;
        }
      }
      static_cast<void>(requests_.queue().try_send(wire::encode({0, wire::bye{}}), {}));
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_thread();
}

bool connection::broken() const noexcept {
  return broken_.load(std::memory_order_acquire);
}

segment_state connection::state(std::uint32_t slot, gpushm::generation generation) const noexcept {
  static_cast<void>(has_current_states());
  if (!alive()) {
    return segment_state::broker_gone;
  }
  return table_.state(slot, generation);
}

error connection::gone(const subject& about) const {
  const std::lock_guard lock(mutex_);
  if (!drop_reason_.empty()) {
    return {errc::broker_gone,
            about.operation,
            about.object,
            "the broker at " + info_.socket_path + " has ended this connection: " + drop_reason_,
            "existing mappings stay valid; the next request reconnects"};
  }
  if (table_.broker_alive()) {
    return {errc::broker_gone,
            about.operation,
            about.object,
            "the broker at " + info_.socket_path + " has ended this connection",
            "see the broker's log for the reason; existing mappings stay valid; the next request "
            "reconnects"};
  }
  return {errc::broker_gone,
          about.operation,
          about.object,
          "the broker at " + info_.socket_path + " is gone",
          "existing mappings stay valid; the next request connects to its successor"};
}

// ---- requests ----

/// A turn on the request lane. Throws broker_gone, and timed_out at `deadline`.
class connection::held_turn {
 public:
  held_turn(connection& connection, const subject& about, steady_time deadline)
      : of_(connection), turn_(connection.requests_.take_turn(deadline)) {
    if (of_.broken()) {
      throw of_.gone(about);
    }
    if (!turn_) {
      throw timed_out(about);
    }
  }
  held_turn(const held_turn&) = delete;
  held_turn& operator=(const held_turn&) = delete;
  ~held_turn() {
    turn_.end();
    if (of_.late_.any_abandoned()) {
      of_.wake_thread();  // to drain them in its own turn
    }
  }
  [[nodiscard]] received_packet receive(steady_time deadline) const {
    return turn_.receive(deadline);
  }

 private:
  connection& of_;
  request_lane::turn turn_;
};

/// One request and its immediate replies, in a turn that begins before it is sent.
class connection::exchange {
 public:
  exchange(connection& connection, const subject& about, steady_time deadline)
      : of_(connection),
        about_(about),
        deadline_(deadline),
        turn_(connection, about, deadline),
        id_(connection.next_id_.fetch_add(1, std::memory_order_relaxed)) {}
  /// Continues the exchange of a request that was already sent.
  exchange(connection& connection,
           const subject& about,
           steady_time deadline,
           std::uint64_t id,
           std::size_t replies)
      : of_(connection),
        about_(about),
        deadline_(deadline),
        turn_(connection, about, deadline),
        id_(id),
        left_(replies) {}
  exchange(const exchange&) = delete;
  exchange& operator=(const exchange&) = delete;
  ~exchange() { of_.late_.abandon(id_, left_); }

  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }

  /// Blocks until it is sent. `replies`: the number of replies that it will have.
  void send(wire::body body, std::span<const int> descriptors, std::size_t replies = 1) {
    const std::vector<std::byte> packet = wire::encode({id_, std::move(body)});
    for (;;) {
      try {
        switch (of_.requests_.queue().try_send(packet, descriptors)) {
          case transport::send_result::sent:
            left_ = replies;
            return;
          case transport::send_result::closed:
            end();
          case transport::send_result::would_block:
            if (!transport::wait_writable(of_.requests_.socket(), time_left(deadline_))) {
              throw error(errc::timed_out,
                          about_.operation,
                          about_.object,
                          "the broker does not read its socket",
                          "check whether it is stopped or overloaded");
            }
        }
      } catch (const error& why) {
        // The kernel limits unread descriptors per uid; other processes may read some soon. No
        // event reports that.
        if (why.code() != errc::too_many_descriptors || descriptors.empty() ||
            std::chrono::steady_clock::now() >= deadline_) {
          throw;
        }
        base::pause_before_retry(inflight_poll);
      }
    }
  }

  /// Returns the next reply to the request.
  [[nodiscard]] reply next() {
    reply one = of_.receive_reply(turn_, id_, about_, deadline_);
    --left_;
    return one;
  }

  /// Does not receive the remaining replies: they are delivered to their waiter elsewhere.
  void leave() noexcept { left_ = 0; }

 private:
  /// The socket accepts no more data; the broker may have sent the reason before.
  [[noreturn]] void end() {
    try {
      for (;;) {
        static_cast<void>(of_.receive_reply(turn_, id_, about_, deadline_));
      }
    } catch (const error& why) {
      if (why.code() == errc::broker_gone) {
        throw;
      }
    }
    of_.lose_lane();
    throw of_.gone(about_);
  }

  connection& of_;
  const subject& about_;
  steady_time deadline_;
  held_turn turn_;
  std::uint64_t id_;
  std::size_t left_ = 0;  ///< replies still to come
};

void connection::lose_lane() noexcept {
  broken_.store(true, std::memory_order_release);
  wake_thread();
}

/// Receives the next reply to that request; delivers replies to other requests to their waiters.
reply connection::receive_reply(const held_turn& turn,
                                std::uint64_t id,
                                const subject& about,
                                steady_time deadline) {
  for (;;) {
    received_packet got = turn.receive(deadline);
    switch (got.what) {
      case received_packet::kind::nothing:
        throw timed_out(about);
      case received_packet::kind::malformed:
        note_dropped({0, errc::protocol_error, "it sent a malformed packet", {}});
        [[fallthrough]];
      case received_packet::kind::closed:
        lose_lane();
        throw gone(about);
      case received_packet::kind::packet:
        break;
    }
    const std::uint64_t request_id = got.one->message.id;
    if (const auto* failure = std::get_if<wire::failure>(&got.one->message.body);
        failure != nullptr && (request_id == 0 || failure->code == errc::protocol_error)) {
      note_dropped(*failure);
    }
    reply one = to_reply(std::move(*got.one));
    if (request_id == id) {
      return one;
    }
    // A request sent ahead has a waiter; without one, the grants of the reply are returned.
    static_cast<void>(late_.deliver(request_id, one));
  }
}

// ---- requests sent ahead ----

void connection::ahead::ask(wire::body body,
                            const subject& about,
                            steady_time deadline,
                            std::span<const int> descriptors) {
  exchange call(of_, about, deadline);
  place_.emplace(of_.late_, call.id());
  call.send(std::move(body), descriptors);
  call.leave();
  is_in_flight_ = true;
}

connection::ahead::~ahead() {
  if (is_in_flight_) {
    place_->abandon();
    of_.wake_thread();
  }
}

reply connection::ahead::get(const subject& about, steady_time deadline) {
  auto got = place_->poll();
  if (!got) {
    const held_turn turn(of_, about, deadline);
    got = place_->poll();  // the previous owner of the turn may have received it
    if (!got) {
      got = of_.receive_reply(turn, place_->id(), about, deadline);
    }
  }
  is_in_flight_ = false;
  if (const auto* failure = std::get_if<wire::failure>(&got->body)) {
    throw from_wire(*failure, about);
  }
  return std::move(*got);
}

std::unique_ptr<connection::ahead> connection::request_ahead(wire::body body,
                                                             const subject& about,
                                                             steady_time deadline,
                                                             std::span<const int> descriptors) {
  std::unique_ptr<ahead> result(new ahead(*this));
  result->ask(std::move(body), about, deadline, descriptors);
  return result;
}

// ---- replies ----

/// If this process had no room for the descriptors, the reply becomes a failure that grants
/// nothing.
reply connection::to_reply(packet packet) {
  const gpushm::generation generation = granted_by(packet.message.body);
  grant granted = generation == 0 ? grant() : grant(*this, generation);
  if (packet.descriptors_lost) {
    const auto* opened = std::get_if<wire::opened>(&packet.message.body);
    return {wire::failure{opened == nullptr ? 0 : opened->index,
                          errc::too_many_descriptors,
                          "this process has no room for the segment's descriptors",
                          "raise its open file limit (ulimit -n)"}};
  }
  return {std::move(packet.message.body), std::move(packet.descriptors), std::move(granted)};
}

/// Limits descriptors of replies that wait to be mapped: a reply keeps all of its descriptors or
/// none.
void connection::bound_descriptors(reply& reply) {
  auto* const opened = std::get_if<wire::opened>(&reply.body);
  if (opened == nullptr || reply.descriptors.empty()) {
    return;
  }
  reply.held = held_.try_hold(reply.descriptors.size());
  if (!reply.held) {
    reply.descriptors.clear();
    opened->chunk_bytes.clear();
  }
}

reply connection::request(wire::body body,
                          const subject& about,
                          steady_time deadline,
                          std::span<const int> descriptors) {
  exchange call(*this, about, deadline);
  call.send(std::move(body), descriptors);
  reply got = call.next();
  if (const auto* failure = std::get_if<wire::failure>(&got.body)) {
    throw from_wire(*failure, about);
  }
  return got;
}

reply connection::open(wire::open request,
                       const subject& about,
                       steady_time deadline,
                       const std::stop_token& stop,
                       const offer_taker& taker) {
  std::optional<exchange> call(std::in_place, *this, about, deadline);
  late_replies::waiter late(late_, call->id());
  call->send(std::move(request), {});
  reply got = call->next();
  call.reset();
  const auto* const waits = std::get_if<wire::waiting>(&got.body);
  if (waits == nullptr) {
    return got;
  }
  if (waits->segment && taker) {
    taker(std::move(got));
    late.spin();
  }
  auto waited = wait_for_late(late, about, deadline, stop);
  if (!waited) {
    throw cancelled(about);
  }
  return std::move(*waited);
}

std::vector<reply> connection::open_many(wire::open_many request,
                                         const subject& about,
                                         steady_time deadline,
                                         const std::stop_token& stop,
                                         const offer_taker& taker) {
  const std::size_t count = request.names.size();
  std::vector<reply> replies;
  replies.reserve(count);
  std::vector<reply> offers;
  std::optional<exchange> call(std::in_place, *this, about, deadline);
  late_replies::waiter late(late_, call->id());
  call->send(std::move(request), {}, count);
  for (std::size_t i = 0; i < count; ++i) {
    reply got = call->next();
    const auto* const waits = std::get_if<wire::waiting>(&got.body);
    if (waits == nullptr) {
      bound_descriptors(got);
      replies.push_back(std::move(got));
    } else if (waits->segment && taker) {
      got.held = held_.try_hold(got.descriptors.size());
      if (got.held) {
        offers.push_back(std::move(got));
      }
    }
  }
  call.reset();
  for (reply& offer : offers) {
    taker(std::move(offer));
  }
  while (replies.size() < count) {
    auto waited = wait_for_late(late, about, deadline, stop);
    if (!waited) {
      break;
    }
    replies.push_back(std::move(*waited));
  }
  return replies;
}

std::optional<std::vector<reply>> connection::take_early(const subject& about,
                                                         steady_time deadline) {
  const std::size_t count = std::exchange(early_replies_, 0);
  if (count == 0) {
    return std::nullopt;
  }
  std::vector<reply> replies;
  replies.reserve(count);
  bool some_wait = false;
  {
    exchange call(*this, about, deadline, early_id, count);
    for (std::size_t i = 0; i < count; ++i) {
      reply got = call.next();
      if (std::holds_alternative<wire::waiting>(got.body)) {
        some_wait = true;
      } else {
        bound_descriptors(got);
        replies.push_back(std::move(got));
      }
    }
  }
  if (some_wait) {
    send_unawaited(wire::cancel{early_id});
  }
  return replies;
}

/// Returns nullopt if it was stopped, and cancels the request at the broker. The broker's reply to
/// that, and any grant before it, have no waiter: a stopped broker must not block the caller.
std::optional<reply> connection::wait_for_late(late_replies::waiter& late,
                                               const subject& about,
                                               steady_time deadline,
                                               const std::stop_token& stop) {
  auto got = late.next(deadline, stop);
  if (got) {
    return got;
  }
  if (broken()) {
    throw gone(about);
  }
  if (!stop.stop_requested()) {
    throw timed_out(about);
  }
  send_unawaited(wire::cancel{late.id()});
  return std::nullopt;
}

/// Sends a request whose reply the connection's thread drops. Does not block.
void connection::send_unawaited(wire::body body) noexcept {
  const std::uint64_t id = next_id_.fetch_add(1, std::memory_order_relaxed);
  late_.abandon(id, 1);
  push(requests_.queue(), {id, std::move(body)});
  wake_thread();
}

void connection::release(gpushm::generation generation,
                         std::uint32_t count,
                         bool never_mapped) noexcept {
  try {
    if (!broken() && requests_.queue().release(generation, count, never_mapped)) {
      wake_thread();
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
}

// ---- resuming after the broker ended the connection ----

void connection::keep(std::span<const std::pair<gpushm::generation, std::uint32_t>> grants,
                      steady_time deadline) {
  do {
    const auto now = grants.subspan(0, std::min(grants.size(), wire::max_keep));
    grants = grants.subspan(now.size());
    wire::keep part{{}, {}, !grants.empty()};
    for (const auto& [generation, count] : now) {
      part.generations.push_back(generation);
      part.counts.push_back(count);
    }
    static_cast<void>(request(std::move(part), {"connect", info_.socket_path}, deadline));
  } while (!grants.empty());
}

// ---- subscriptions ----

std::uint64_t connection::subscribe(const std::string& prefix,
                                    event_sink& sink,
                                    wire::subscribed& present,
                                    steady_time deadline) {
  const subject about{"subscribe", prefix};
  exchange call(*this, about, deadline);
  const std::uint64_t id = call.id();
  {
    const std::lock_guard lock(mutex_);
    sinks_.emplace(id, &sink);
  }
  bool may_exist = false;  // at the broker
  try {
    call.send(wire::subscribe{prefix}, {});
    may_exist = true;
    reply got = call.next();
    if (const auto* failure = std::get_if<wire::failure>(&got.body)) {
      throw from_wire(*failure, about);
    }
    auto* const subscribed = std::get_if<wire::subscribed>(&got.body);
    if (subscribed == nullptr) {
      throw unexpected_reply(about);
    }
    present = std::move(*subscribed);
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      sinks_.erase(id);
    }
    // A reply that comes later than the deadline would leave events without a reader, charged to
    // this process. The broker ignores an unknown subscription.
    if (may_exist) {
      send_unawaited(wire::unsubscribe{id});
    }
    throw;
  }
  return id;
}

void connection::unsubscribe(std::uint64_t subscription) noexcept {
  {
    const std::lock_guard lock(mutex_);
    sinks_.erase(subscription);
  }
  send_unawaited(wire::unsubscribe{subscription});
}

}  // namespace gpushm::client_detail
