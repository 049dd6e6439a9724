// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpushm::dra {

/// Opens and closes sharing domains; the agent's broker stands behind it.
///
/// Shared objects: safe.
class domains {
 public:
  domains() = default;
  domains(const domains&) = delete;
  domains& operator=(const domains&) = delete;
  virtual ~domains() = default;

  /// From when this returns clients that have the domain's directory mounted can connect. Again for
  /// one that is open: nothing. The directory, as the host sees it. Throws `error`.
  virtual std::string open(const std::string& domain) = 0;
  /// Ends its clients' connections, frees its segments, removes its directory. One that is not
  /// open: only a directory that was left behind. Throws `error` (system_error).
  virtual void close(const std::string& domain) = 0;
  /// What is open now and whose directory was left behind.
  [[nodiscard]] virtual std::vector<std::string> list() const = 0;
};

}  // namespace gpushm::dra
