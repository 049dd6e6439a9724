// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/guarded_fd.hpp"
#include "base/unique_fd.hpp"
#include "transport/packet_socket.hpp"

namespace gpushm::broker_detail {

/// Receives packets that carry descriptors, where a foreign descriptor does no harm. Merely having
/// one can cost a process its life: the close of a socket with SO_LINGER, or of a file whose FUSE
/// server is silent, blocks as long as its owner likes, and a thread that is blocked so cannot be
/// killed and keeps every descriptor of its process open. So these packets are received by threads
/// with a table of descriptors of their own (CLOSE_RANGE_UNSHARE); only what is of
/// a harmless kind is handed over, and the rest is closed there. One principal's packets are taken
/// one after the other: it only blocks itself.
///
/// Distinct objects: safe. Shared objects: unsafe; runs on the broker's strand.
class porter {
 public:
  struct parcel {
    std::uint64_t session = 0;
    transport::receive_status status = transport::receive_status::would_block;
    std::vector<std::byte> packet;
    std::vector<base::guarded_fd> descriptors;  ///< of kinds that members have a reason to send
    std::size_t foreign = 0;                    ///< others that came; closed
    bool failed = false;                        ///< the socket said something unexpected
    /// Set by the thread that filled it, read by the one that takes it: the kernel orders the two,
    /// of which neither the language nor ThreadSanitizer knows.
    std::atomic<bool> complete = false;
  };

  /// Throws `errc::system_error`.
  porter();
  porter(const porter&) = delete;
  porter& operator=(const porter&) = delete;
  /// Does not wait for threads that are blocked.
  ~porter();

  /// Readable when `next` has something.
  [[nodiscard]] int descriptor() const noexcept { return ours_.get(); }
  /// One packet of `socket` is to be received; `next` gives it later. False: not now, try again
  /// later.
  [[nodiscard]] bool fetch(std::uint64_t session, const std::string& principal, int socket);
  /// Closes a socket that may have unread descriptors in it. Where that cannot be arranged the
  /// socket stays open, which only costs its number.
  void bury(const std::string& principal, base::unique_fd socket) noexcept;
  /// Null when nothing has come.
  [[nodiscard]] std::unique_ptr<parcel> next();

 private:
  struct job;
  class office;
  base::guarded_fd ours_;
};

enum class next_packet : unsigned char {
  none,
  plain,  ///< or the end of the connection, or an error
  with_descriptors,
};

/// What would be received from `socket`. Does not take it, and installs no descriptors.
[[nodiscard]] next_packet peek_packet(int socket) noexcept;

/// Takes packets without descriptors off a socket that was shut down; true when nothing is left, so
/// that closing it cannot block.
[[nodiscard]] bool drain(int socket) noexcept;

}  // namespace gpushm::broker_detail
