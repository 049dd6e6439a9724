// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "containers/cdi/document/document.hpp"
#include "containers/cdi/document/share_device.hpp"
#include "kubernetes/dra/claims/claim.hpp"

namespace gpushm::dra {

/// The CDI kind of devices that give access to a claim's domain.
inline constexpr std::string_view claim_kind = "gpushm.dev/claim";

/// The name of a claim's device, unique among all claims: runtimes cache documents by name.
[[nodiscard]] std::string cdi_device_name(const std::string& claim_uid, const std::string& device);

/// A document with a device for each of the claim's devices. All mount the host's `directory`
/// read-only where clients search for domains. Those with `prepared_device::ipc` also preload the
/// library for unchanged programs from `files`. Throws `error` (system_error) if `files` is needed
/// and null.
[[nodiscard]] cdi::document claim_document(const prepared_claim& claim,
                                           const std::string& directory,
                                           const cdi::ipc_files* files = nullptr);

/// The transient documents of claims in a directory that other programs also use.
///
/// Thread-safety: shared objects: safe for different claims.
class claim_documents {
 public:
  explicit claim_documents(std::string directory, std::optional<cdi::ipc_files> files = {})
      : directory_(std::move(directory)), files_(std::move(files)) {}

  [[nodiscard]] std::string path_of(const std::string& claim_uid) const;
  /// Writes by rename; no effect when the file already has this content. Throws `error`.
  void write(const prepared_claim& claim, const std::string& domain_directory) const;
  /// No effect when the document does not exist. Throws `error`.
  void remove(const std::string& claim_uid) const;
  /// Removes the temporary file of a process that exited while writing. Throws `error`.
  void remove_unfinished(const std::string& claim_uid) const;
  /// UIDs of claims with a document. Throws `error`.
  [[nodiscard]] std::vector<std::string> list() const { return list(true); }
  /// UIDs of claims with a temporary file. Throws `error`.
  [[nodiscard]] std::vector<std::string> unfinished() const { return list(false); }

 private:
  [[nodiscard]] std::vector<std::string> list(bool finished) const;

  std::string directory_;
  std::optional<cdi::ipc_files> files_;
};

}  // namespace gpushm::dra
