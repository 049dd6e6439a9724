// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/server/grpc_status.hpp"

#include <string>

namespace gpushm::device_plugin {

namespace {

grpc::StatusCode code_of(errc code) {
  switch (code) {
    case errc::invalid_argument:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case errc::device_not_found:
    case errc::no_such_segment:
      return grpc::StatusCode::NOT_FOUND;
    case errc::permission_denied:
      return grpc::StatusCode::PERMISSION_DENIED;
    case errc::timed_out:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case errc::quota_exceeded:
    case errc::out_of_memory:
    case errc::too_many_segments:
    case errc::too_many_descriptors:
    case errc::too_many_connections:
    case errc::too_many_requests:
    case errc::message_too_large:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case errc::broker_unreachable:
    case errc::broker_gone:
    case errc::driver_unavailable:
    case errc::peer_unreachable:
      return grpc::StatusCode::UNAVAILABLE;
    case errc::device_not_visible:
    case errc::gone_or_replaced:
      return grpc::StatusCode::FAILED_PRECONDITION;
    default:
      return grpc::StatusCode::INTERNAL;
  }
}

/// Messages are sent in a trailer, of which clients accept 8 KiB and where each non-ASCII byte
/// takes three bytes.
std::string shortened(std::string text) {
  constexpr std::size_t max_bytes = 2'000;
  constexpr unsigned continues_mask = 0xC0;
  constexpr unsigned continues = 0x80;
  if (text.size() > max_bytes) {
    std::size_t end = max_bytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & continues_mask) == continues) {
      --end;
    }
    text.resize(end);
    text.append("…");
  }
  return text;
}

}  // namespace

failed_call failed_call_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const error& known) {
    return {{code_of(known.code()), shortened(known.what())}, to_string(known.code())};
  } catch (const std::exception& other) {
    return {{grpc::StatusCode::INTERNAL, shortened(other.what())}, to_string(errc::system_error)};
  }
}

error error_of(const grpc::Status& status,
               std::string_view operation,
               std::string_view object,
               std::string_view peer,
               std::string_view next_step) {
  std::string cause(peer);
  errc code = errc::protocol_error;
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      code = errc::peer_unreachable;
      cause.append(" cannot be reached");
      break;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      // gRPC's message adds no information.
      return {
          errc::timed_out, operation, object, cause.append(" did not reply in time"), next_step};
    default:
      cause.append(" refused");
      break;
  }
  if (!status.error_message().empty()) {
    cause.append(": ").append(status.error_message());
  }
  return {code, operation, object, cause, next_step};
}

}  // namespace gpushm::device_plugin
