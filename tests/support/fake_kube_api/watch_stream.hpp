// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/fake_kube_api/http_server.hpp"
#include "tests/support/fake_kube_api/store.hpp"

namespace gpushm::testing {

/// Serves one watch until its end. False if the connection must be closed.
bool serve_watch(kube_state& state,
                 const object_path& path,
                 const field_selector& selector,
                 const http_request& request,
                 http_answer& answer);

}  // namespace gpushm::testing
