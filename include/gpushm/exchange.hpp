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

/// Sharing without a node broker: a ticket is bytes (at most 4,096) that another process on the
/// same machine imports; transfer them by a file, a message or a rank exchange. docs/ticket.md
/// specifies the format, docs/sharing.md compares the ways to share.
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
/// handle that works in every PID namespace. `pointer` may be anywhere in the allocation. The
/// caller keeps ownership; importers can open the memory until it is freed or this process dies.
/// Freeing and reallocating it is not detected: notify the importers first. Importers get the whole
/// allocation, not only this range. To have each import checked, and for other memory, share it
/// through a broker and use `export_segment`.
///
/// Does not block. Thread-safe. Throws `error`: invalid_argument, not_exportable (also for memory
/// that is shared as file descriptors), driver_error, forked.
[[nodiscard]] inline std::vector<std::byte> export_memory(void* pointer, std::uint64_t size_bytes) {
  auto ticket = glue::sized<gpushm_ticket>();
  glue::check(gpushm_export_memory(pointer, size_bytes, &ticket));
  return glue::bytes_of(ticket);
}

/// Describes a published segment: importers connect to its broker, which has the file descriptors.
/// `socket_path` is the path by which importers reach the broker's socket; empty: its absolute path
/// here; a name without a slash: in the directory of the ticket's file. The segment must exist
/// until they have imported it. Throws `error`: invalid_argument (an empty segment, or one without
/// a broker).
[[nodiscard]] inline std::vector<std::byte> export_segment(const segment& what,
                                                           std::string_view socket_path = {}) {
  auto ticket = glue::sized<gpushm_ticket>();
  glue::check(gpushm_export_segment(what.handle(), glue::text(socket_path), &ticket));
  return glue::bytes_of(ticket);
}

struct import_options {
  gpushm::access access = gpushm::access::read;
  /// The GPU that will use the memory, as in `open_options::device`.
  std::string device = {};
  /// `import_file`: how long to wait for the file of a live exporter. Zero: do not wait.
  std::chrono::milliseconds timeout{0};
  /// Directory of a socket that the ticket names without a slash; empty: the working directory.
  /// `import_file` uses the file's directory.
  std::string directory = {};
  /// Cancels the wait of `import_file` with `errc::cancelled`, within about ten milliseconds.
  std::stop_token stop = {};
};

namespace glue {

[[nodiscard]] inline gpushm_import_options options_of(const import_options& options,
                                                      const stop_bridge& stop) noexcept {
  auto result = sized<gpushm_import_options>();
  result.access = static_cast<gpushm_access>(options.access);
  result.stop = stop.handle();
  result.device = text(options.device);
  result.directory = text(options.directory);
  return result;
}

}  // namespace glue

/// Maps the memory that a ticket describes: only through its broker if it names one, else by the
/// handle in it. In the process that exported a handle, the result has the original pointer. A
/// segment that was imported by handle has no name, its state is `unknown`, and access is always
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

/// The contents of a ticket.
struct ticket_info {
  gpushm::backend backend = gpushm::backend::host;
  std::uint64_t size_bytes = 0;
  std::uint64_t allocated_bytes = 0;
  device_id device;
  std::int32_t exporter_pid = 0;  ///< as the exporter's PID namespace numbers it
  bool has_handle = false;        ///< importable without a broker, if the ticket names none
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
/// renamed. The file is locked as long as this object exists (an open file description lock), by
/// which readers in any container distinguish a live exporter from a dead one. The destructor
/// removes the file; in a forked child the object does nothing, and the child does not keep the
/// lock. Move-only; a moved-from object is empty, and everything but destroying and assigning
/// throws `errc::invalid_argument`.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class ticket_file {
 public:
  /// Replaces a dead exporter's file; if several processes try concurrently, one succeeds. `mode`
  /// is the file's mode, regardless of the umask. Blocks for at most two seconds, while another
  /// process replaces the file. Throws `error`: address_in_use (a live exporter's file),
  /// permission_denied, system_error.
  ticket_file(const std::string& path, std::span<const std::byte> ticket, unsigned int mode = 0644)
      : path_(path) {
    gpushm_ticket_file* created = nullptr;
    glue::check(
        gpushm_ticket_file_create(glue::text(path), ticket.data(), ticket.size(), mode, &created));
    handle_.reset(created);
  }

  /// Puts another ticket in the place of the file's: readers see either, at each moment. Throws
  /// `error`: permission_denied, system_error; the former ticket remains then.
  void replace(std::span<const std::byte> ticket) {
    glue::check(gpushm_ticket_file_replace(filled(), ticket.data(), ticket.size()));
  }

  [[nodiscard]] const std::string& path() const {
    static_cast<void>(filled());
    return path_;
  }

 private:
  [[nodiscard]] gpushm_ticket_file* filled() const {
    if (!handle_) {
      throw error(errc::invalid_argument,
                  "ticket_file",
                  {},
                  "this ticket_file object is empty",
                  "export first; a moved-from object is empty");
    }
    return handle_.get();
  }

  std::string path_;
  std::unique_ptr<gpushm_ticket_file, glue::deleter<&gpushm_ticket_file_close>> handle_;
};

/// Imports the ticket in the file at `path`, waiting up to `options.timeout` for a live exporter's
/// file. Throws `error`: no_such_segment (the file does not exist), peer_died (the exporter that
/// wrote it has died), cancelled, and as `import_memory`.
[[nodiscard]] inline segment import_file(const std::string& path,
                                         const import_options& options = {}) {
  const glue::stop_bridge stop(options.stop);
  const gpushm_import_options wanted = glue::options_of(options, stop);
  gpushm_segment* imported = nullptr;
  glue::check(gpushm_import_file(glue::text(path), &wanted, options.timeout.count(), &imported));
  return segment(imported);
}

/// Reads the ticket in the file of a live exporter; waits and throws as `import_file`.
[[nodiscard]] inline std::vector<std::byte> read_ticket_file(const std::string& path,
                                                             std::chrono::milliseconds timeout = {},
                                                             const std::stop_token& stop = {}) {
  const glue::stop_bridge bridge(stop);
  auto ticket = glue::sized<gpushm_ticket>();
  glue::check(gpushm_read_ticket_file(glue::text(path), timeout.count(), bridge.handle(), &ticket));
  return glue::bytes_of(ticket);
}

}  // namespace v1
}  // namespace gpushm
