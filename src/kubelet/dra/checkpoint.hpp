// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "base/unique_fd.hpp"
#include "kubelet/dra/claim.hpp"

namespace gpushm::dra {

/// What is prepared, and in which boot of the machine.
struct checkpoint {
  std::string boot_id;
  std::map<std::string, prepared_claim> claims;  ///< by UID
  bool operator==(const checkpoint&) const = default;
};

/// The text of a checkpoint, with version and checksum; `from_text` gives an equal one back.
[[nodiscard]] std::string to_text(const checkpoint& state);
/// `path` is for the messages. Throws `error`: unsupported_version for that of a newer gpushm,
/// invalid_argument for anything but a whole checkpoint.
[[nodiscard]] checkpoint from_text(const std::string& text, const std::string& path);

/// The checkpoint in its directory: `dra-checkpoint.json`, replaced by rename after an fsync, and
/// `dra-checkpoint.json.bak`, the same once more, for the case that the first gets damaged.
///
/// One process at a time has it: a lock goes with the object, and with its process.
///
/// Distinct objects: safe. Shared objects: unsafe.
class checkpoint_file {
 public:
  /// Makes the directory (0750) when there is none. Throws `error`: address_in_use while another
  /// process has it.
  explicit checkpoint_file(const std::string& directory);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Empty when there is none yet. A damaged file is kept aside (`.damaged`), and the second one
  /// taken instead, `warning` then says so. Throws `error` when neither can be used, or the first
  /// is of a newer version: then nothing has been changed.
  [[nodiscard]] checkpoint load(std::string& warning);
  /// When this returns `state` survives the process; after a power cut it, or the one before, is
  /// there and whole. Throws `error`; then the old one is still there.
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
