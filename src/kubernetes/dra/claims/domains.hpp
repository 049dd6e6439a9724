// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpushm::dra {

/// Opens and closes sharing domains; implemented by the agent's brokers.
///
/// Thread-safety: shared objects: safe.
class domains {
 public:
  domains() = default;
  domains(const domains&) = delete;
  domains& operator=(const domains&) = delete;
  virtual ~domains() = default;

  /// Once this returns, clients that have the domain's directory mounted can connect. No effect on
  /// an open domain. Returns the directory's path on the host. Throws `error`.
  virtual std::string open(const std::string& domain) = 0;
  /// Closes its clients' connections, frees its segments, removes its directory. For a domain that
  /// is not open, only removes a leftover directory. Throws `error` (system_error).
  virtual void close(const std::string& domain) = 0;
  /// Open domains and those with a leftover directory.
  [[nodiscard]] virtual std::vector<std::string> list() const = 0;
};

}  // namespace gpushm::dra
