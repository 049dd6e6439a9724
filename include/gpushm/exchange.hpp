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

/// Describes memory of this process that bytes alone can carry. As `gpushm_export_memory`.
/// Thread-safe.
[[nodiscard]] inline std::vector<std::byte> export_memory(void* pointer, std::uint64_t size_bytes) {
  auto ticket = glue::sized<gpushm_ticket>();
  glue::check(gpushm_export_memory(pointer, size_bytes, &ticket));
  return glue::bytes_of(ticket);
}

/// Describes a published segment: importers connect to its broker. As `gpushm_export_segment`.
[[nodiscard]] inline std::vector<std::byte> export_segment(const segment& segment,
                                                           std::string_view socket_path = {}) {
  auto ticket = glue::sized<gpushm_ticket>();
  glue::check(gpushm_export_segment(segment.handle(), glue::text(socket_path), &ticket));
  return glue::bytes_of(ticket);
}

/// Members without a comment are as in `gpushm_import_options`.
struct import_options {
  gpushm::access access = gpushm::access::read;
  std::string device = {};
  /// `import_file`: how long to wait for the file of a live exporter. Zero: do not wait.
  std::chrono::milliseconds timeout{0};
  std::string directory = {};
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

/// Maps the memory that a ticket describes. As `gpushm_import_memory`.
[[nodiscard]] inline segment import_memory(std::span<const std::byte> ticket,
                                           const import_options& options = {}) {
  const glue::stop_bridge stop(options.stop);
  const gpushm_import_options wanted = glue::options_of(options, stop);
  gpushm_segment* imported = nullptr;
  glue::check(gpushm_import_memory(ticket.data(), ticket.size(), &wanted, &imported));
  return segment(imported);
}

/// The contents of a ticket. As `gpushm_ticket_info`.
struct ticket_info {
  gpushm::backend backend = gpushm::backend::host;
  std::uint64_t size_bytes = 0;
  std::uint64_t allocated_bytes = 0;
  device_id device;
  std::int32_t exporter_pid = 0;
  bool has_handle = false;
  std::string socket_path;
  std::string name;
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
  /// Replaces a dead exporter's file. As `gpushm_ticket_file_create`.
  ticket_file(const std::string& path, std::span<const std::byte> ticket, unsigned int mode = 0644)
      : path_(path) {
    gpushm_ticket_file* created = nullptr;
    glue::check(
        gpushm_ticket_file_create(glue::text(path), ticket.data(), ticket.size(), mode, &created));
    handle_.reset(created);
  }

  /// Puts another ticket in the place of the file's. As `gpushm_ticket_file_replace`.
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
/// file. As `gpushm_import_file`.
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
