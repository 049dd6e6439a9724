// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/fake_kube_api/http_server.hpp"
#include "tests/support/fake_kube_api/store.hpp"

namespace gpushm::testing {

/// Handles a request: records it, applies failures, checks the token, replies. False if the
/// connection must be closed.
bool serve_request(kube_state& state, const http_request& request, http_answer& answer);

}  // namespace gpushm::testing
