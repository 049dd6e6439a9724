// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "client/session/send_queue.hpp"
#include "protocol/wire/messages.hpp"
#include "protocol/wire/packet_buffer.hpp"

namespace gpushm::client_detail {

using steady_time = std::chrono::steady_clock::time_point;

/// A packet as received.
struct packet {
  wire::message message;
  std::vector<base::guarded_fd> descriptors;
  bool descriptors_lost = false;  ///< this process had no room for them
};

/// The result of one receive.
struct received_packet {
  enum class kind : unsigned char { packet, nothing, closed, malformed };
  kind what = kind::nothing;
  std::optional<client_detail::packet> one;  ///< if `what` is `packet`
};

/// Receives one packet without blocking. `buffer`: of a `packet_buffer`. Throws
/// `errc::system_error`.
[[nodiscard]] received_packet receive_one(int socket, std::span<std::byte> buffer);

/// The socket for a client's requests and their immediate replies. One thread has the turn: it
/// sends its request and receives until its reply has arrived; no other thread reads the socket.
/// Any thread may send messages that need no reply at any time (`queue`).
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
class request_lane {
 public:
  explicit request_lane(base::guarded_fd socket);

  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  [[nodiscard]] send_queue& queue() noexcept { return queue_; }

  /// The right to receive. Move-only.
  class turn {
   public:
    turn() = default;
    turn(turn&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    turn& operator=(turn&&) = delete;
    ~turn() { end(); }
    void end() noexcept {
      if (request_lane* const ended = std::exchange(of_, nullptr)) {
        ended->end_turn();
      }
    }
    explicit operator bool() const noexcept { return of_ != nullptr; }
    /// Returns the next packet: spins briefly, then sleeps until `deadline`; then `nothing`. Throws
    /// `errc::system_error`.
    [[nodiscard]] received_packet receive(steady_time deadline) const {
      return of_->receive(deadline);
    }

    /// Closes the socket. No later turn may use it.
    void close_lane() const noexcept {
      of_->queue_.close();
      of_->socket_.reset();
    }

   private:
    friend class request_lane;
    explicit turn(request_lane& lane) noexcept : of_(&lane) {}
    request_lane* of_ = nullptr;
  };
  /// Blocks until `deadline` while another thread has it; empty: it still has it.
  [[nodiscard]] turn take_turn(steady_time deadline);

 private:
  [[nodiscard]] received_packet receive(steady_time deadline);
  void end_turn() noexcept;

  base::guarded_fd socket_;
  send_queue queue_{socket_.get()};
  wire::packet_buffer buffer_;  ///< used by the thread that has the turn
  std::mutex mutex_;
  std::condition_variable free_;
  bool taken_ = false;
};

}  // namespace gpushm::client_detail
