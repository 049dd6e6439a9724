// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/fake_kube_api/http_server.hpp"
#include "tests/support/fake_kube_api/reply.hpp"
#include "tests/support/fake_kube_api/store.hpp"

namespace gpushm::testing {

/// Replies to requests for objects and collections, except watches. Precondition: the state's mutex
/// is locked.
[[nodiscard]] reply answer_object_request(kube_state& state,
                                          const object_path& path,
                                          const http_request& request);

}  // namespace gpushm::testing
