// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/status.h>

#include <exception>
#include <string_view>

#include "gpushm/error.hpp"

namespace gpushm::device_plugin {

/// The status of a call that failed with `failure`: the text of a `gpushm::error`, up to 2,000
/// bytes, with a code that shows the caller whether a retry can help; INTERNAL for any other
/// exception.
struct failed_call {
  grpc::Status status;
  std::string_view outcome;  ///< the errc's name, for counters
};
[[nodiscard]] failed_call failed_call_of(const std::exception_ptr& failure);

/// The opposite direction: why an outgoing call failed. `peer` is "the kubelet at PATH".
[[nodiscard]] error error_of(const grpc::Status& status,
                             std::string_view operation,
                             std::string_view object,
                             std::string_view peer,
                             std::string_view next_step);

}  // namespace gpushm::device_plugin
