// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "gpushm/gpushm.h"
#include "gpushm/segment.hpp"
#include "gpushm/types.hpp"

/// Sharing without a broker of the node: a ticket is bytes (at most 4,096) that another process
/// on the machine imports, brought there by a file, a message or a rank exchange.
/// docs/ticket.md is their format, docs/sharing.md says which way is for whom.
namespace gpushm {
inline namespace v1 {

namespace glue {

[[nodiscard]] inline std::vector<std::byte> bytes_of(const gpushm_ticket& ticket) {
  const auto all = std::as_bytes(std::span(ticket.bytes));
  const auto used = all.first(ticket.size);
  return {used.begin(), used.end()};
}

}  // namespace glue

/// Describes memory of this process that bytes alone can carry: cudaMalloc memory, as a legacy
/// handle that works in every PID namespace. `pointer` may lie anywhere in the allocation. The
/// memory stays the caller's; importers can open it until it is freed or this process dies, and
/// nobody notices when it is freed and allocated anew: say so to the importers first. Importers get
/// the whole allocation, not only this range. For a check on each import, and for other memory,
/// share it through a broker and use `export_segment`.
///
/// Does not block. Thread-safe. Throws `error`: invalid_argument, not_exportable (also for memory
/// that travels as file descriptors), driver_error, forked.
[[nodiscard]] inline std::vector<std::byte> export_memory(void* pointer, std::uint64_t size_bytes) {
  gpushm_ticket ticket;
  glue::check(gpushm_export_memory(pointer, size_bytes, &ticket));
  return glue::bytes_of(ticket);
}

/// Describes a published segment: importers connect to its broker, which has what travels as file
/// descriptors. `socket_path` is how importers reach the broker's socket; empty: its absolute path
/// here; a name without a slash: beside the ticket's file. The segment must live until they
/// have imported it. Throws `error`: invalid_argument (an empty segment, one without a broker).
[[nodiscard]] inline std::vector<std::byte> export_segment(const segment& what,
                                                           std::string_view socket_path = {}) {
  gpushm_ticket ticket;
  glue::check(gpushm_export_segment(what.handle(), glue::text(socket_path), &ticket));
  return glue::bytes_of(ticket);
}

struct import_options {
  gpushm::access access = gpushm::access::read;
  /// The GPU that will use the memory, as in `open_options::device`.
  std::string device = {};
  /// `import_file`: how long to wait for the file of a living exporter. Zero: do not wait.
  std::chrono::milliseconds timeout{0};
  /// Where a socket lies that the ticket names without a slash; empty: the working directory.
  /// `import_file` uses the file's.
  std::string directory = {};
  /// Ends the wait of `import_file`, within some ten milliseconds: `errc::cancelled`.
  std::stop_token stop = {};
};

namespace glue {

[[nodiscard]] inline gpushm_import_options options_of(const import_options& options,
                                                      const stop_bridge& stop) noexcept {
  auto made = sized<gpushm_import_options>();
  made.access = static_cast<gpushm_access>(options.access);
  made.timeout_ms = options.timeout.count();
  made.stop = stop.handle();
  made.device = text(options.device);
  made.directory = text(options.directory);
  return made;
}

}  // namespace glue

/// Maps what a ticket describes: through its broker when it names one, else by the handle that
/// it carries. In the process that exported a handle, the result is the pointer itself. A segment
/// that was imported by its handle has no name, its state is `unknown`, and access is always
/// read-write in the driver. Throws `error`: invalid_ticket, unsupported_version, peer_unreachable,
/// peer_died, gone_or_replaced, pid_collision, device_not_visible, and as `client::open`.
[[nodiscard]] inline segment import_memory(std::span<const std::byte> ticket,
                                           const import_options& options = {}) {
  const glue::stop_bridge stop(options.stop);
  const gpushm_import_options wanted = glue::options_of(options, stop);
  gpushm_segment* imported = nullptr;
  glue::check(gpushm_import_memory(ticket.data(), ticket.size(), &wanted, &imported));
  return segment(imported);
}

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
[[nodiscard]] inline ticket_info describe_ticket(std::span<const std::byte> ticket) {
  auto got = glue::sized<gpushm_ticket_info>();
  glue::check(gpushm_describe_ticket(ticket.data(), ticket.size(), &got));
  ticket_info info;
  info.backend = static_cast<gpushm::backend>(got.backend);
  info.size_bytes = got.size_bytes;
  info.allocated_bytes = got.allocated_bytes;
  info.device = glue::device_from(got.device);
  info.exporter_pid = got.exporter_pid;
  info.has_handle = got.has_handle;
  info.socket_path.assign(got.socket_path, got.socket_path_size);
  info.name.assign(got.name, got.name_size);
  info.generation = got.generation;
  return info;
}

/// A ticket in a file. Readers see the whole file or none: it is written under another name and
/// renamed. As long as this object lives the file is locked (an open file description lock), which
/// is how readers in any container tell a living exporter from a dead one. Removes the file at its
/// end; in a forked child the object does nothing, and neither keeps the lock. Move-only; a
/// moved-from object is empty, and everything but destroying and assigning throws
/// `errc::invalid_argument`.
///
/// Distinct objects: safe. Shared objects: unsafe.
class ticket_file {
 public:
  /// A dead exporter's file is replaced; of several processes that try at once, one wins. `mode` is
  /// the file's, whatever the umask. Blocks for at most two seconds, while another process replaces
  /// the file. Throws `error`: address_in_use (a living exporter's file), permission_denied,
  /// system_error.
  ticket_file(const std::string& path, std::span<const std::byte> ticket, unsigned int mode = 0644)
      : path_(path) {
    gpushm_ticket_file* made = nullptr;
    glue::check(
        gpushm_ticket_file_create(glue::text(path), ticket.data(), ticket.size(), mode, &made));
    handle_.reset(made);
  }

  [[nodiscard]] const std::string& path() const {
    if (!handle_) {
      throw error(errc::invalid_argument,
                  "ticket_file",
                  {},
                  "this ticket_file object is empty",
                  "export first; a moved-from object is empty");
    }
    return path_;
  }

 private:
  std::string path_;
  std::unique_ptr<gpushm_ticket_file, glue::ender<&gpushm_ticket_file_close>> handle_;
};

/// Imports what the file at `path` describes, waiting up to `options.timeout` for a living
/// exporter's file. Throws `error`: no_such_segment (there is no file), peer_died (the exporter
/// that wrote it has died), cancelled, and as `import_memory`.
[[nodiscard]] inline segment import_file(const std::string& path,
                                         const import_options& options = {}) {
  const glue::stop_bridge stop(options.stop);
  const gpushm_import_options wanted = glue::options_of(options, stop);
  gpushm_segment* imported = nullptr;
  glue::check(gpushm_import_file(glue::text(path), &wanted, &imported));
  return segment(imported);
}

/// Reads the ticket in the file of a living exporter; waits and throws as `import_file`.
[[nodiscard]] inline std::vector<std::byte> read_ticket_file(const std::string& path,
                                                             std::chrono::milliseconds timeout = {},
                                                             const std::stop_token& stop = {}) {
  const glue::stop_bridge bridge(stop);
  gpushm_ticket ticket;
  glue::check(gpushm_read_ticket_file(glue::text(path), timeout.count(), bridge.handle(), &ticket));
  return glue::bytes_of(ticket);
}

}  // namespace v1
}  // namespace gpushm
