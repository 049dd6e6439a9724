// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cdi/document/document.hpp"
#include "kubelet/dra/claim.hpp"

namespace gpushm::dra {

/// The kind of devices that lead to the domain of a claim.
inline constexpr std::string_view claim_kind = "gpushm.dev/claim";

/// Of a claim's device, unique among all claims: runtimes cache documents by name.
[[nodiscard]] std::string cdi_device_name(const std::string& claim_uid, const std::string& device);

/// A document with a device for each of the claim's, all of which mount `directory` (of the host)
/// where clients look for domains, read-only.
[[nodiscard]] cdi::document claim_document(const prepared_claim& claim,
                                           const std::string& directory);

/// The transient documents of claims in a directory that others use too.
///
/// Shared objects: safe for different claims.
class claim_documents {
 public:
  explicit claim_documents(std::string directory) : directory_(std::move(directory)) {}

  [[nodiscard]] std::string path_of(const std::string& claim_uid) const;
  /// By rename; nothing when the file says that already. Throws `error`.
  void write(const prepared_claim& claim, const std::string& domain_directory) const;
  /// Nothing when there is none. Throws `error`.
  void remove(const std::string& claim_uid) const;
  /// What a process that died over writing it left. Throws `error`.
  void remove_unfinished(const std::string& claim_uid) const;
  /// UIDs of claims that have one. Throws `error`.
  [[nodiscard]] std::vector<std::string> list() const { return list(true); }
  /// UIDs of claims that have one without its name yet. Throws `error`.
  [[nodiscard]] std::vector<std::string> unfinished() const { return list(false); }

 private:
  [[nodiscard]] std::vector<std::string> list(bool finished) const;

  std::string directory_;
};

}  // namespace gpushm::dra
