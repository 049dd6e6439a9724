// SPDX-License-Identifier: Apache-2.0
#include "client/session/reply_check.hpp"

#include "base/segments/exporter_bound.hpp"
#include "base/segments/versioned_names.hpp"
#include "gpushm/error.hpp"

namespace gpushm::client_detail {

namespace {

bool has_sane_numbers(const wire::segment& segment) {
  return segment.generation != 0 && segment.generation <= max_generation &&
         segment.size_bytes != 0 && segment.size_bytes <= segment.allocated_bytes &&
         segment.offset_bytes <= segment.allocated_bytes - segment.size_bytes &&
         base::is_on_host(segment.backend) == (segment.device.kind == device_kind::host);
}

bool has_fitting_chunks(const wire::opened& reply) {
  const wire::segment& segment = reply.segment;
  const bool bound = base::ends_with_creator(segment.backend);
  const auto fixed = base::fixed_chunks(segment.backend);
  if (fixed ? segment.chunk_count != *fixed : segment.chunk_count == 0) {
    return false;
  }
  if (base::has_ticket(segment.backend) == reply.ticket.empty() ||
      reply.chunk_bytes.size() > segment.chunk_count) {
    return false;
  }
  std::uint64_t left = segment.allocated_bytes;
  for (const std::uint64_t bytes : reply.chunk_bytes) {
    if (bytes == 0 || bytes > left) {
      return false;
    }
    left -= bytes;
  }
  // Chunks are never empty: either all have arrived, or there are bytes left for the others.
  return (reply.chunk_bytes.size() == segment.chunk_count) == (left == 0) || bound;
}

/// An open by alias is answered as one by the version's number.
bool is_of(const wire::opened& reply, std::string_view name) {
  if (reply.alias_generation == 0) {
    return reply.segment.name == name;
  }
  if (!base::is_versioned_name(name) || !base::is_versioned_name(reply.segment.name)) {
    return false;
  }
  const auto asked = base::parse_versioned_name("open", name);
  const auto got = base::parse_versioned_name("open", reply.segment.name);
  return asked.number == 0 && got.number != 0 && got.base == asked.base && got.part == asked.part &&
         reply.alias_generation <= max_generation;
}

}  // namespace

void check_opened(const wire::opened& reply,
                  std::size_t descriptors,
                  std::string_view name,
                  std::uint64_t expected_size_bytes) {
  const bool matches_request =
      is_of(reply, name) &&
      (expected_size_bytes == 0 || expected_size_bytes == reply.segment.size_bytes);
  if (!matches_request || descriptors != reply.chunk_bytes.size() ||
      reply.metadata.size() > max_metadata_bytes || !has_sane_numbers(reply.segment) ||
      !has_fitting_chunks(reply)) {
    throw error(errc::protocol_error,
                "open",
                name,
                "the broker's reply contradicts itself or its request",
                "use a broker of the same version; a hostile broker may also send such replies");
  }
}

}  // namespace gpushm::client_detail
