// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "client/ticket/tickets.hpp"

namespace gpushm::client_detail {

/// A file with a ticket, which this process has locked; removed with the object. See
/// gpushm_ticket_file_create.
///
/// Thread-safety: distinct objects: safe; shared objects: not safe.
class ticket_file {
 public:
  /// Throws as gpushm_ticket_file_create.
  ticket_file(std::string path, std::span<const std::byte> ticket, unsigned int mode);
  ticket_file(const ticket_file&) = delete;
  ticket_file& operator=(const ticket_file&) = delete;
  ~ticket_file();

  /// See gpushm_ticket_file_replace.
  void replace(std::span<const std::byte> ticket);

 private:
  std::string path_;
  unsigned int mode_;
  base::guarded_fd file_;  // holds the lock
};

/// See gpushm_read_ticket_file.
[[nodiscard]] std::vector<std::byte> read_ticket(const std::string& path,
                                                 std::chrono::milliseconds timeout,
                                                 const std::stop_token& stop);
/// See gpushm_import_file.
[[nodiscard]] segment_ptr import_ticket_file(const std::string& path,
                                             const import_options& options);

}  // namespace gpushm::client_detail
