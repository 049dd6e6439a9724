// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "testing/fake_kube_api/http_server.hpp"
#include "testing/fake_kube_api/store.hpp"

namespace gpushm::testing {

/// Meets a request: records it, lets failures happen, asks for the token, answers. False when the
/// connection is to be closed.
bool serve_request(kube_state& state, const http_request& request, http_answer& answer);

}  // namespace gpushm::testing
