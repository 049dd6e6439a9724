// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "base/files/unique_fd.hpp"
#include "kubernetes/dra/claims/claim.hpp"

namespace gpushm::dra {

/// The prepared claims and the boot of the machine in which they were prepared.
struct checkpoint {
  std::string boot_id;
  std::map<std::string, prepared_claim> claims;  ///< by UID
  bool operator==(const checkpoint&) const = default;
};

/// The text of a checkpoint, with version and checksum; `from_text` returns an equal one.
[[nodiscard]] std::string to_text(const checkpoint& state);
/// `path` is for the messages. Throws `error`: unsupported_version for a checkpoint of a newer
/// gpushm, invalid_argument for a damaged checkpoint.
[[nodiscard]] checkpoint from_text(const std::string& text, const std::string& path);

/// The checkpoint in its directory: `dra-checkpoint.json`, replaced by rename after an fsync, and
/// `dra-checkpoint.json.bak`, a copy in case the first is damaged.
///
/// One process at a time uses the directory: the object holds a lock until it is destroyed or its
/// process exits.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class checkpoint_file {
 public:
  /// Creates the directory (0750) if it does not exist. Throws `error`: address_in_use while
  /// another process holds the lock.
  explicit checkpoint_file(const std::string& directory);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Returns an empty checkpoint if none exists yet. A damaged file is renamed (`.damaged`) and the
  /// copy used instead, with a `warning`. Throws `error` when neither is usable, or the first has a
  /// newer version: then nothing has been changed.
  [[nodiscard]] checkpoint load(std::string& warning);
  /// Once this returns, `state` survives the process; after a power loss it or the previous one is
  /// intact. Throws `error`; then the previous one remains.
  void save(const checkpoint& state);

 private:
  void remove_unfinished();
  void write(const std::string& path, const std::string& text, bool durable);

  std::string directory_;
  std::string path_;
  std::string second_path_;
  base::unique_fd lock_;
};

}  // namespace gpushm::dra
