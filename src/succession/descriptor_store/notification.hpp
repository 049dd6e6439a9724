// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpushm::keeper {

/// The largest name of a stored descriptor, and the name of those sent without one (systemd,
/// sd_pid_notify_with_fds(3)).
inline constexpr std::size_t max_name_bytes = 255;
inline constexpr std::string_view default_name = "stored";
/// The largest notification that is read; systemd reads 4 KiB.
inline constexpr std::size_t max_notification_bytes = 4'096;

/// One datagram of the notification protocol (sd_notify(3)): assignments, one per line. Only those
/// that a keeper acts on are kept.
struct notification {
  bool store = false;   ///< FDSTORE=1: its descriptors are to be kept
  bool remove = false;  ///< FDSTOREREMOVE=1: those with `name` are to be closed
  /// BARRIER=1: its descriptor is to be closed after everything before it. With a name: the reply
  /// is whether that is stored (systemd ignores the name, and logs that).
  bool barrier = false;
  bool ready = false;  ///< READY=1
  bool alive = false;  ///< WATCHDOG=1
  std::string name{default_name};
  bool has_name = false;  ///< FDNAME=, with a valid name
};

/// Unknown assignments and invalid values are ignored, an invalid name is replaced by the default
/// one, as systemd does. Throws std::bad_alloc only.
[[nodiscard]] notification parse_notification(std::string_view text);

/// 1 to 255 printable ASCII characters without a colon.
[[nodiscard]] bool is_valid_name(std::string_view name) noexcept;

}  // namespace gpushm::keeper
