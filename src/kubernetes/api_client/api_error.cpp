// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/api_client/client.hpp"

namespace gpushm::api_client {

namespace {

errc code_of(int status, const std::string& reason) {
  if (reason == "AlreadyExists") {
    return errc::already_exists;
  }
  switch (status) {
    case 401:
    case 403:
      return errc::permission_denied;
    case 404:
    case 409:
    case 410:
      return errc::gone_or_replaced;
    case 408:
    case 504:
      return errc::timed_out;
    case 429:
      return errc::too_many_requests;
    case 500:
    case 502:
    case 503:
      return errc::peer_unreachable;
    default:
      return status >= 400 && status < 500 ? errc::invalid_argument : errc::protocol_error;
  }
}

}  // namespace

api_error::api_error(int status,
                     std::string reason,
                     std::string_view operation,
                     std::string_view path,
                     std::string_view cause,
                     std::string_view next_step,
                     std::chrono::seconds retry_after,
                     std::string object_name)
    : error(code_of(status, reason), operation, path, cause, next_step),
      status_(status),
      reason_(std::move(reason)),
      retry_after_(retry_after),
      object_name_(std::move(object_name)) {}

}  // namespace gpushm::api_client
