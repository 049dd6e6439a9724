// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <ctime>
#include <mutex>
#include <string>

#include "kubernetes/api_client/client.hpp"

namespace gpushm::api_client {

/// The token of a client, reread when its file has changed: the kubelet replaces the tokens of pods
/// before they expire.
///
/// Thread-safety: shared objects: safe.
class bearer_token {
 public:
  explicit bearer_token(const server_access& access)
      : file_(access.token_file), value_(access.token_file.empty() ? access.token : "") {}

  /// Empty if there is no token. Rereads a changed file. If the file cannot be read, the last token
  /// stays in use; without one, throws `error` (permission_denied, invalid_argument, system_error).
  [[nodiscard]] std::string current();
  /// Rereads the file unconditionally; returns whether the token differs from `used`.
  [[nodiscard]] bool differs_from(const std::string& used);

 private:
  struct file_state {
    dev_t device = 0;
    ino_t inode = 0;
    std::int64_t seconds = 0;
    std::int64_t nanoseconds = 0;
    off_t size_bytes = -1;
    friend bool operator==(const file_state&, const file_state&) = default;
  };
  [[nodiscard]] file_state stat_file() const;
  void read();

  std::string file_;
  std::mutex mutex_;
  std::string value_;
  file_state seen_;
};

}  // namespace gpushm::api_client
