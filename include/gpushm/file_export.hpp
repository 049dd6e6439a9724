// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "gpushm/client.hpp"
#include "gpushm/exchange.hpp"
#include "gpushm/export.hpp"

namespace gpushm {

struct file_export_options {
  /// Who may read the file and connect to the socket beside it.
  unsigned int file_mode = 0644;
  unsigned int socket_mode = 0666;
  /// As `broker_options::accept_fake_chunks`.
  bool accept_fake_chunks = false;
};

/// Sharing through a directory that two containers both have mounted, and nothing else: a broker in
/// this process on the socket `PATH.sock`, and a file at PATH that leads to it. Whatever can be
/// shared or created can be exported. Everything ends with the object. Move-only; a moved-from
/// object is empty: everything but destroying and assigning throws `errc::invalid_argument`. In a
/// forked child the export stays the parent's, as `broker` and `client` do.
///
///     auto out = gpushm::file_export::begin("/shared/weights");
///     auto shared = out.client().share("weights", pointer, size_bytes);
///     out.write(shared);
///
/// Distinct objects: safe. Shared objects: unsafe.
class GPUSHM_API file_export {
 public:
  /// Starts the broker; the file comes with `write`. Throws `error`: address_in_use (a living
  /// exporter's), permission_denied, invalid_argument (a path that no socket address can hold),
  /// system_error.
  [[nodiscard]] static file_export begin(const std::string& path,
                                         const file_export_options& options = {});
  file_export(file_export&&) noexcept;
  file_export& operator=(file_export&&) noexcept;
  file_export(const file_export&) = delete;
  file_export& operator=(const file_export&) = delete;
  ~file_export();

  /// Connected to the broker of this export.
  [[nodiscard]] gpushm::client& client();
  /// Writes the file, or replaces it: it describes `what`, a published segment of `client()`.
  /// Throws as `export_segment` and `ticket_file`.
  void write(const segment& what);
  [[nodiscard]] const std::string& path() const;

 private:
  class impl;
  explicit file_export(std::unique_ptr<impl> made) noexcept;
  [[nodiscard]] impl& filled() const;
  std::unique_ptr<impl> impl_;
};

}  // namespace gpushm
