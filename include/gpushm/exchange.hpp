// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpushm/export.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/types.hpp"

/// Sharing without a broker of the node: a ticket is bytes (at most 4,096) that another process
/// on the machine imports, brought there by a file, a message or a rank exchange.
/// docs/ticket.md is their format, docs/sharing.md says which way is for whom.
namespace gpushm {

/// Describes memory of this process that bytes alone can carry: cudaMalloc memory, as a legacy
/// handle that works in every PID namespace. `pointer` may lie anywhere in the allocation. The
/// memory stays the caller's; importers can open it until it is freed or this process dies, and
/// nobody notices when it is freed and allocated anew: say so to the importers first. Importers get
/// the whole allocation, not only this range. For a check on each import, and for other memory,
/// share it through a broker and use `export_segment`.
///
/// Does not block. Thread-safe. Throws `error`: invalid_argument, not_exportable (also for memory
/// that travels as file descriptors), driver_error, forked.
[[nodiscard]] GPUSHM_API std::vector<std::byte> export_memory(void* pointer,
                                                              std::uint64_t size_bytes);

/// Describes a published segment: importers connect to its broker, which has what travels as file
/// descriptors. `socket_path` is how importers reach the broker's socket; empty: its absolute path
/// here; a name without a slash: beside the ticket's file. The segment must live until they
/// have imported it. Throws `error`: invalid_argument (an empty segment, one without a broker).
[[nodiscard]] GPUSHM_API std::vector<std::byte> export_segment(const segment& what,
                                                               std::string_view socket_path = {});

struct import_options {
  gpushm::access access = gpushm::access::read;
  /// The GPU that will use the memory, as in `open_options::device`.
  std::string device = {};
  /// `import_file`: how long to wait for the file of a living exporter. Zero: do not wait.
  std::chrono::milliseconds timeout{0};
  /// Where a socket lies that the ticket names without a slash; empty: the working directory.
  /// `import_file` uses the file's.
  std::string directory = {};
};

/// Maps what a ticket describes: through its broker when it names one, else by the handle that
/// it carries. In the process that exported a handle, the result is the pointer itself. A segment
/// that was imported by its handle has no name, its state is `unknown`, and access is always
/// read-write in the driver. Throws `error`: invalid_ticket, unsupported_version, peer_unreachable,
/// peer_died, gone_or_replaced, pid_collision, device_not_visible, and as `client::open`.
[[nodiscard]] GPUSHM_API segment import_memory(std::span<const std::byte> ticket,
                                               const import_options& options = {});

/// What a ticket says.
struct ticket_info {
  gpushm::backend backend = gpushm::backend::host;
  std::uint64_t size_bytes = 0;
  std::uint64_t allocated_bytes = 0;
  device_id device;
  std::int32_t exporter_pid = 0;  ///< as the exporter's PID namespace numbers it
  bool has_handle = false;        ///< importable without a broker
  std::string socket_path;        ///< of the broker; empty: none
  std::string name;               ///< of the broker's segment
  gpushm::generation generation = 0;
};
/// Throws `error`: invalid_ticket, unsupported_version.
[[nodiscard]] GPUSHM_API ticket_info describe_ticket(std::span<const std::byte> ticket);

/// A ticket in a file. Readers see the whole file or none: it is written under another name and
/// renamed. As long as this object lives the file is locked (an open file description lock), which
/// is how readers in any container tell a living exporter from a dead one. Removes the file at its
/// end; in a forked child the object does nothing, and neither keeps the lock. Move-only; a
/// moved-from object is empty, and everything but destroying and assigning throws
/// `errc::invalid_argument`.
///
/// Distinct objects: safe. Shared objects: unsafe.
class GPUSHM_API ticket_file {
 public:
  /// A dead exporter's file is replaced; of several processes that try at once, one wins. `mode` is
  /// the file's, whatever the umask. Blocks for at most two seconds, while another process replaces
  /// the file. Throws `error`: address_in_use (a living exporter's file), permission_denied,
  /// system_error.
  ticket_file(const std::string& path, std::span<const std::byte> ticket, unsigned int mode = 0644);
  ticket_file(ticket_file&&) noexcept;
  ticket_file& operator=(ticket_file&&) noexcept;
  ticket_file(const ticket_file&) = delete;
  ticket_file& operator=(const ticket_file&) = delete;
  ~ticket_file();

  [[nodiscard]] const std::string& path() const;

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

/// Imports what the file at `path` describes, waiting up to `options.timeout` for a living
/// exporter's file. Throws `error`: no_such_segment (there is no file), peer_died (the exporter
/// that wrote it has died), and as `import_memory`.
[[nodiscard]] GPUSHM_API segment import_file(const std::string& path,
                                             const import_options& options = {});

/// Reads the ticket in the file of a living exporter; waits and throws as `import_file`.
[[nodiscard]] GPUSHM_API std::vector<std::byte> read_ticket_file(
    const std::string& path, std::chrono::milliseconds timeout = {});

}  // namespace gpushm
