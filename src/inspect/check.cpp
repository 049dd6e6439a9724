// SPDX-License-Identifier: Apache-2.0
#include "inspect/check.hpp"

namespace gpushm::inspect {

std::string_view to_string(verdict value) noexcept {
  switch (value) {
    case verdict::ok:
      return "ok";
    case verdict::warning:
      return "warning";
    case verdict::problem:
      return "problem";
    case verdict::not_applicable:
      return "not applicable";
  }
  return "unknown";
}

}  // namespace gpushm::inspect
