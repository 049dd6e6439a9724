// SPDX-License-Identifier: Apache-2.0
#include "client/session/fork_guard.hpp"

#include "gpushm/error.hpp"

namespace gpushm::client_detail {

void throw_forked(std::string_view operation, std::string_view object) {
  throw error(errc::forked,
              operation,
              object,
              "this process was forked from the one that connected",
              "connect in the child, and open what it needs there");
}

}  // namespace gpushm::client_detail
