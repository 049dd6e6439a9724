// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "wire/messages.hpp"

namespace gpushm_tests {

/// An answer, or the end of the connection.
struct raw_answer {
  bool closed = false;
  std::optional<gpushm::wire::message> message;  ///< nothing: closed, or no answer in time
  std::vector<gpushm::base::unique_fd> descriptors;
};

/// A client that sends whatever a test wants, well-formed or not. It reads only when told to.
/// Distinct objects: safe. Shared objects: unsafe.
class raw_client {
 public:
  /// Connects and says nothing. Throws `gpushm::error`.
  explicit raw_client(const std::string& socket_path);
  /// Connects and greets; throws `harness_error` when the broker does not welcome.
  [[nodiscard]] static raw_client greeted(const std::string& socket_path);

  /// Sends a message; its id is counted up. False when the broker has hung up or does not read.
  bool send(gpushm::wire::body body, std::span<const int> descriptors = {});
  /// Sends bytes as they are.
  bool send_bytes(std::span<const std::byte> packet, std::span<const int> descriptors = {});
  /// The next packet. Blocks at most `timeout`.
  [[nodiscard]] raw_answer receive(std::chrono::milliseconds timeout = std::chrono::seconds(5));
  /// Sends and receives.
  [[nodiscard]] raw_answer ask(gpushm::wire::body body, std::span<const int> descriptors = {});
  /// Reads and drops packets until the broker hangs up (true) or `timeout` passes.
  [[nodiscard]] bool closed_within(std::chrono::milliseconds timeout);

  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  /// The state table that came with the welcome; empty before it.
  [[nodiscard]] int state_table() const noexcept { return state_table_.get(); }
  void hang_up() { socket_.reset(); }

 private:
  gpushm::base::unique_fd socket_;
  gpushm::base::unique_fd state_table_;
  std::uint64_t last_id_ = 0;
};

/// A memfd of `size_bytes` zero bytes, sealed as a host chunk must be unless `sealed` is false.
[[nodiscard]] gpushm::base::unique_fd make_chunk(std::uint64_t size_bytes, bool sealed = true);

/// A reservation of `chunk_count` host chunks of one page each.
[[nodiscard]] gpushm::wire::reserve reserve_pages(const std::string& name,
                                                  std::uint32_t chunk_count);

/// The error code of an answer that must be a failure; nothing when it is something else.
[[nodiscard]] std::optional<gpushm::errc> failure_of(const raw_answer& answer);

}  // namespace gpushm_tests
