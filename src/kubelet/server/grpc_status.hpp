// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/status.h>

#include <exception>
#include <string_view>

#include "gpushm/error.hpp"

namespace gpushm::kubelet {

/// What a call that ended with `failure` answers: the text of a `gpushm::error`, whole up to 2,000
/// bytes, under the code that tells the caller whether trying again can help; INTERNAL for any
/// other exception.
struct failed_call {
  grpc::Status status;
  std::string_view outcome;  ///< the errc's name, for counters
};
[[nodiscard]] failed_call failed_call_of(const std::exception_ptr& failure);

/// The other direction: why a call to somebody else failed. `who` is "the kubelet at PATH".
[[nodiscard]] error error_of(const grpc::Status& status,
                             std::string_view operation,
                             std::string_view object,
                             std::string_view who,
                             std::string_view next_step);

}  // namespace gpushm::kubelet
