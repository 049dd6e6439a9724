// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kubernetes/api_client/transfer.hpp"

namespace gpushm::api_client {

/// Throws the error for a failed transfer. `detail` is libcurl's message.
[[noreturn]] void throw_failure(CURLcode failure,
                                CURL* easy,
                                const dialled_url& server,
                                const client_options& options,
                                const http_request& request,
                                std::string_view detail);

/// "1.5 s".
[[nodiscard]] std::string seconds_text(std::chrono::milliseconds time);

}  // namespace gpushm::api_client
