// SPDX-License-Identifier: Apache-2.0
#include "client/session/subject.hpp"

namespace gpushm::client_detail {

error from_wire(const wire::failure& failure, const subject& about) {
  return {failure.code,
          about.operation,
          about.object,
          failure.cause,
          failure.next_step,
          {.pid = failure.pid}};
}

error unexpected_reply(const subject& about) {
  return {errc::protocol_error,
          about.operation,
          about.object,
          "the broker's reply does not match this request",
          "use a broker of the same version"};
}

error cancelled(const subject& about) {
  return {errc::cancelled,
          about.operation,
          about.object,
          "the stop token of this wait was requested to stop",
          "call again with another token"};
}

}  // namespace gpushm::client_detail
