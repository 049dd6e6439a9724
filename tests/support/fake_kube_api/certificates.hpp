// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace gpushm::testing {

struct identity_pem {
  std::string certificate;
  std::string key;
};

/// A certificate authority for one test. Throws `std::runtime_error`.
/// Thread-safety: distinct objects: safe; shared objects: safe.
class test_authority {
 public:
  explicit test_authority(const std::string& name);
  ~test_authority();

  [[nodiscard]] const std::string& pem() const noexcept { return pem_; }
  /// Issues a server certificate for these DNS names and addresses.
  [[nodiscard]] identity_pem issue_server(const std::vector<std::string>& names) const;
  /// Issues a client certificate with the common name `name`.
  [[nodiscard]] identity_pem issue_client(const std::string& name) const;

 private:
  struct parts;
  std::unique_ptr<parts> parts_;
  std::string pem_;
};

}  // namespace gpushm::testing
