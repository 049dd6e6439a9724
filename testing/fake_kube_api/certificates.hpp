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

/// A certificate authority made for one test. Throws `std::runtime_error`.
///
/// Distinct objects: safe. Shared objects: safe.
class test_authority {
 public:
  explicit test_authority(const std::string& name);
  ~test_authority();

  [[nodiscard]] const std::string& pem() const noexcept { return pem_; }
  /// For a server with these DNS names and addresses.
  [[nodiscard]] identity_pem issue_server(const std::vector<std::string>& names) const;
  /// For a client that calls itself `name`.
  [[nodiscard]] identity_pem issue_client(const std::string& name) const;

 private:
  struct parts;
  std::unique_ptr<parts> parts_;
  std::string pem_;
};

}  // namespace gpushm::testing
