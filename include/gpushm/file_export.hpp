// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gpushm/broker.h"
#include "gpushm/client.hpp"
#include "gpushm/exchange.hpp"

namespace gpushm {
inline namespace v1 {

struct file_export_options {
  /// Permissions of the file and of the socket next to it.
  unsigned int file_mode = 0644;
  unsigned int socket_mode = 0666;
  /// As `broker_options::accept_fake_chunks`.
  bool accept_fake_chunks = false;
};

/// Sharing through a directory that two containers both have mounted, and nothing else: an
/// in-process broker on the socket `PATH.sock`, and a file at PATH that refers to it. All memory
/// that can be shared or created can be exported. The export ends when the object is destroyed.
/// Move-only; a moved-from object is empty: everything but destroying and assigning throws
/// `errc::invalid_argument`. In a forked child the export belongs to the parent, as do `broker`
/// and `client`.
///
///     auto out = gpushm::file_export::begin("/shared/weights");
///     auto shared = out.client().share("weights", pointer, size_bytes);
///     out.write(shared);
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class file_export {
 public:
  /// Starts the broker; `write` writes the file. As `gpushm_file_export_begin`.
  [[nodiscard]] static file_export begin(const std::string& path,
                                         const file_export_options& options = {}) {
    auto wanted = glue::sized<gpushm_file_export_options>();
    wanted.file_mode = options.file_mode;
    wanted.socket_mode = options.socket_mode;
    wanted.accept_fake_chunks = options.accept_fake_chunks;
    gpushm_file_export* created = nullptr;
    glue::check(gpushm_file_export_begin(glue::text(path), &wanted, &created));
    file_export result(created, path);
    gpushm_client* client = nullptr;
    glue::check(gpushm_client_dup(gpushm_file_export_client(created), &client));
    result.client_.emplace(client);
    return result;
  }

  file_export(file_export&&) noexcept = default;
  file_export& operator=(file_export&& other) noexcept {
    file_export taken(std::move(other));
    client_.swap(taken.client_);
    handle_.swap(taken.handle_);
    path_.swap(taken.path_);
    return *this;  // `taken` destroys the previous export
  }
  file_export(const file_export&) = delete;
  file_export& operator=(const file_export&) = delete;
  ~file_export() = default;

  /// Connected to the broker of this export.
  [[nodiscard]] gpushm::client& client() {
    static_cast<void>(filled());
    return *client_;
  }
  /// Writes or replaces the file, which describes `segment`, a published segment of `client()`.
  /// Throws as `export_segment` and `ticket_file`.
  void write(const segment& segment) {
    glue::check(gpushm_file_export_write(filled(), segment.handle()));
  }
  [[nodiscard]] const std::string& path() const {
    static_cast<void>(filled());
    return path_;
  }

 private:
  file_export(gpushm_file_export* handle, std::string path)
      : path_(std::move(path)), handle_(handle) {}
  [[nodiscard]] gpushm_file_export* filled() const {
    if (!handle_) {
      throw error(errc::invalid_argument,
                  "file_export",
                  {},
                  "this file_export object is empty",
                  "begin an export first; a moved-from object is empty");
    }
    return handle_.get();
  }

  std::string path_;
  std::unique_ptr<gpushm_file_export, glue::deleter<&gpushm_file_export_end>> handle_;
  std::optional<gpushm::client> client_;  // destroyed first, while its broker still runs
};

}  // namespace v1
}  // namespace gpushm
