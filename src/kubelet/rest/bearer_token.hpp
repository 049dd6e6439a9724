// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <ctime>
#include <mutex>
#include <string>

#include "kubelet/rest/client.hpp"

namespace gpushm::kube {

/// The token of a client, read again when its file has changed: the kubelet replaces those of pods
/// some time before they expire.
///
/// Shared objects: safe.
class bearer_token {
 public:
  explicit bearer_token(const server_access& access)
      : file_(access.token_file), value_(access.token_file.empty() ? access.token : "") {}

  /// Empty: there is none. Reads when the file has changed. A file that cannot be read now leaves
  /// the last token in use. Throws `error` (permission_denied, invalid_argument, system_error) when
  /// there was none yet.
  [[nodiscard]] std::string current();
  /// Reads whatever the file looks like; whether the token is another than `used`.
  [[nodiscard]] bool is_other_than(const std::string& used);

 private:
  struct look {
    dev_t device = 0;
    ino_t inode = 0;
    std::int64_t seconds = 0;
    std::int64_t nanoseconds = 0;
    off_t size_bytes = -1;
    friend bool operator==(const look&, const look&) = default;
  };
  [[nodiscard]] look look_at_file() const;
  void read();

  std::string file_;
  std::mutex mutex_;
  std::string value_;
  look seen_;
};

}  // namespace gpushm::kube
