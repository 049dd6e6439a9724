// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace gpushm::cli {

/// What pods are called, by their uids: what the API server knows, and the broker does not.
class pod_names {
 public:
  pod_names() = default;
  /// Reads lines of UID, namespace and name, as `kubectl get pods -A -o
  /// custom-columns=UID:.metadata.uid,NS:.metadata.namespace,NAME:.metadata.name` prints them, with
  /// or without its line of headings. Throws `error`: invalid_file for other lines, and as
  /// `read_input`.
  explicit pod_names(const std::string& file);

  /// "NAMESPACE/NAME" of the principal "pod UID"; empty: not a pod, or not known.
  [[nodiscard]] std::string_view name_of(std::string_view principal) const;
  /// "pod NAMESPACE/NAME" where it is known, else the principal.
  [[nodiscard]] std::string text_of(std::string_view principal) const;

 private:
  std::map<std::string, std::string, std::less<>> by_principal_;
};

}  // namespace gpushm::cli
