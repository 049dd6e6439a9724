// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/files/unique_fd.hpp"
#include "gpushm/error.hpp"

namespace gpushm::keeper {

/// How many descriptors the keeper stores: set by systemd since version 254, and by `keeper`.
inline constexpr std::string_view capacity_variable = "FDSTORE";

/// Why `keeper` has started its program; not set: neither the first nor the last.
inline constexpr std::string_view start_variable = "GPUSHM_KEEPER_START";
enum class start_reason : std::uint8_t {
  ordinary,         ///< the keeper's own start, or the program has ended
  takeover,         ///< from another keeper
  failed_takeover,  ///< another keeper was to take over, and has failed
};
/// The value of the variable; empty for an ordinary start.
[[nodiscard]] std::string_view to_string(start_reason why) noexcept;

/// This program's side of the notification protocol: descriptors that systemd or `keeper` keeps
/// while it is replaced.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class descriptor_store {
 public:
  /// The store that $NOTIFY_SOCKET names; nullopt if it is not set. Throws `error`:
  /// broker_unreachable if no process reads it, invalid_argument.
  [[nodiscard]] static std::optional<descriptor_store> from_environment();

  /// How many descriptors the store of this program's keeper has room for, of all names together.
  /// 0: not known. Does not block.
  [[nodiscard]] static std::uint64_t capacity() noexcept;
  /// Why this program was started; ordinary if its keeper does not say. Does not block.
  [[nodiscard]] static start_reason reason_of_start() noexcept;

  /// Sends descriptors (at most 253), which this program also keeps. They are all stored under
  /// `name`, in no particular order. Blocks while the keeper's queue is full, at most `timeout`.
  /// Throws `error`: timed_out, invalid_argument (the name), too_many_descriptors, system_error
  /// (the keeper is gone).
  void put(std::string_view name,
           std::span<const int> descriptors,
           std::chrono::milliseconds timeout);
  /// Closes the store's descriptors with this name. Blocks and throws as `put`.
  void remove(std::string_view name, std::chrono::milliseconds timeout);
  /// Blocks until everything sent before has been processed. Throws `error`: timed_out;
  /// too_many_descriptors if the keeper could not store some of it (systemd does not report that).
  void barrier(std::chrono::milliseconds timeout);
  /// The same, but returns what the keeper could not store since the last barrier of any sender:
  /// everything sent before has then been processed. Throws `error`: timed_out, system_error,
  /// too_many_descriptors (this process has none left).
  [[nodiscard]] std::optional<error> flush(std::chrono::milliseconds timeout);
  /// The same, but returns only whether `name` is stored now: the error if it is not. systemd and
  /// keepers of earlier versions do not look at the name. Blocks and throws as `flush`.
  [[nodiscard]] std::optional<error> confirm(std::string_view name,
                                             std::chrono::milliseconds timeout);
  /// The same without blocking: returns a pipe that is readable once the keeper has replied; what
  /// it says is `reply_in` it. Throws `error`: timed_out if the keeper's queue is full, and as
  /// `flush`.
  [[nodiscard]] base::unique_fd begin_confirm(std::string_view name);
  /// The reply to `begin_confirm`, as of `confirm`. Precondition: the pipe is readable.
  [[nodiscard]] static std::optional<error> reply_in(int pipe);
  /// Tells the keeper that this program has started (READY=1).
  void ready(std::chrono::milliseconds timeout);
  /// Whether no process reads the notification socket any longer: the keeper has ended. Does not
  /// block. Throws as `ready`.
  [[nodiscard]] bool is_keeper_gone();
  /// Tells the keeper that this program works (WATCHDOG=1), if its queue has room. Does not block.
  /// Throws as `ready`.
  void alive();

 private:
  [[nodiscard]] base::unique_fd ask(std::string_view barrier, std::chrono::milliseconds timeout);
  [[nodiscard]] std::optional<error> reply_to(std::string_view barrier,
                                              std::chrono::milliseconds timeout);
  explicit descriptor_store(base::unique_fd socket) : socket_(std::move(socket)) {}
  void send(std::string_view text,
            std::span<const int> descriptors,
            std::chrono::milliseconds timeout);

  base::unique_fd socket_;
};

/// After how long without `alive` the keeper, or systemd, kills this program ($WATCHDOG_USEC,
/// sd_watchdog_enabled(3)); empty: it does not. Call before threads exist. Throws `error`:
/// invalid_argument if the variables are not numbers.
[[nodiscard]] std::optional<std::chrono::microseconds> watchdog_timeout();

}  // namespace gpushm::keeper
