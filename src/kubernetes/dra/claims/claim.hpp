// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace gpushm::dra {

/// A ResourceClaim as a kubelet names it.
struct claim_reference {
  std::string name_space;
  std::string name;
  std::string uid;
  bool operator==(const claim_reference&) const = default;
};

/// "namespace/name", for messages.
[[nodiscard]] std::string to_string(const claim_reference& claim);

/// Throws `error` (invalid_argument) unless namespace, name and UID, which come from another
/// program, are safe as path components.
void check(const claim_reference& claim);

/// Whether `text` is a valid claim UID and safe as a path component.
[[nodiscard]] bool may_be_uid(const std::string& text);

/// A slot in a domain allocated to a claim, and how the kubelet passes it to containers.
struct prepared_device {
  std::vector<std::string> requests;  ///< of the claim, without subrequests
  std::string pool;
  std::string device;
  std::vector<std::string> cdi_devices;  ///< qualified names
  std::optional<std::string> share_id;
  bool ipc = false;  ///< preloads the library for unchanged programs
  bool operator==(const prepared_device&) const = default;
};

struct prepared_claim {
  claim_reference claim;
  std::string domain;  ///< one for the claim, however many devices
  std::vector<prepared_device> devices;
  bool operator==(const prepared_claim&) const = default;
};

}  // namespace gpushm::dra
