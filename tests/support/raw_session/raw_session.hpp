// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/messages.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_testing {

/// A reply, or the end of the connection.
struct raw_reply {
  bool closed = false;
  std::optional<gpushm::wire::message> message;  ///< nullopt: closed, or no reply in time
  std::vector<gpushm::base::unique_fd> descriptors;
};

/// A connection to a broker that sends any message or bytes with any descriptors, well-formed or
/// not. It reads only in `receive`, `request` and `closed_within`: the request lane first, then the
/// event lane. Move-only.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class raw_session {
 public:
  /// Connects and sends nothing. Throws `gpushm::error`.
  explicit raw_session(const std::string& socket_path);
  /// Connects and greets; throws `harness_error` when the broker sends no welcome.
  [[nodiscard]] static raw_session greeted(const std::string& socket_path);
  /// Greets on a connected session, with this hello and its descriptors.
  void greet(const gpushm::wire::hello& hello, std::span<const int> descriptors = {});

  /// Sends a message, with the next id, on the lane that it belongs to. Blocks at most five
  /// seconds. False when the broker has disconnected or does not read.
  bool send(gpushm::wire::body body, std::span<const int> descriptors = {});
  /// As `send`, with an explicit id.
  bool send_as(std::uint64_t id, gpushm::wire::body body, std::span<const int> descriptors = {});
  /// Sends bytes unchanged on the request lane; otherwise as `send`.
  bool send_bytes(std::span<const std::byte> packet, std::span<const int> descriptors = {});
  /// Sends once and does not block. Returns `would_block` for too many descriptors in flight.
  gpushm::transport::send_result try_send(std::span<const std::byte> packet,
                                          std::span<const int> descriptors = {});
  /// As `try_send`, on the event lane.
  gpushm::transport::send_result try_send_event(std::span<const std::byte> packet);

  /// Returns the next packet but for state tables of successors, which it takes. Blocks at most
  /// `timeout`.
  [[nodiscard]] raw_reply receive(std::chrono::milliseconds timeout = std::chrono::seconds(5));
  /// Sends, then returns the next packet, whichever request it replies to. Skips lease events
  /// (their id is 0) and the notice that an open waits: it returns the result of that open.
  [[nodiscard]] raw_reply request(gpushm::wire::body body, std::span<const int> descriptors = {});
  /// Reads and drops packets until the broker hangs up (true) or `timeout` passes.
  [[nodiscard]] bool closed_within(std::chrono::milliseconds timeout);

  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  /// The event lane; -1 before the welcome.
  [[nodiscard]] int events() const noexcept { return events_.get(); }
  /// The last state table that it has received; -1 before the welcome.
  [[nodiscard]] int state_table() const noexcept { return state_table_.get(); }
  void hang_up() {
    socket_.reset();
    events_.reset();
  }
  void hang_up_events() { events_.reset(); }

 private:
  [[nodiscard]] raw_reply receive_before(clock::time_point deadline);
  [[nodiscard]] raw_reply receive_joined(clock::time_point deadline);

  gpushm::base::unique_fd socket_;
  gpushm::base::unique_fd events_;
  gpushm::base::unique_fd state_table_;
  std::uint64_t last_id_ = 0;
};

/// A memfd of `size_bytes` zero bytes, sealed as a host chunk must be unless `sealed` is false.
[[nodiscard]] gpushm::base::unique_fd make_chunk(std::uint64_t size_bytes, bool sealed = true);

/// A reservation of `chunk_count` host chunks of one page each.
[[nodiscard]] gpushm::wire::reserve reserve_pages(const std::string& name,
                                                  std::uint32_t chunk_count);

/// A reservation of one byte of legacy GPU memory: it needs neither descriptors nor a GPU.
[[nodiscard]] gpushm::wire::reserve reserve_exported(const std::string& name);

/// The error code of a reply that must be a failure; nullopt for any other reply.
[[nodiscard]] std::optional<gpushm::errc> failure_of(const raw_reply& reply);

/// The body of a reply if it is of this kind; else null.
template <typename Body>
[[nodiscard]] const Body* body_of(const raw_reply& reply) {
  return reply.message ? std::get_if<Body>(&reply.message->body) : nullptr;
}

/// Reserves, attaches chunks of one page (for host memory) and publishes. Returns the generation,
/// or 0 when the broker refuses a step.
gpushm::generation publish_segment(raw_session& session,
                                   const gpushm::wire::reserve& reservation,
                                   std::size_t metadata_bytes = 0);

}  // namespace gpushm_testing
