// SPDX-License-Identifier: Apache-2.0
#include "broker/hub/outbox.hpp"

#include <algorithm>
#include <utility>

#include "protocol/wire/codec.hpp"

namespace gpushm::broker_detail {

std::vector<std::byte> outgoing::encode() const {
  if (!packet.empty()) {
    return packet;
  }
  if (const auto* reply = std::get_if<wire::opened>(&late.body); reply != nullptr && metadata) {
    wire::opened whole = *reply;
    whole.metadata = metadata->bytes;
    return wire::encode({late.id, std::move(whole)});
  }
  return wire::encode(late);
}

std::uint64_t outgoing::cost() const noexcept {
  constexpr std::uint64_t bytes_per_descriptor = 16;
  std::uint64_t text = packet.size();
  if (const auto* reply = std::get_if<wire::opened>(&late.body);
      packet.empty() && reply != nullptr) {
    text += sizeof(wire::opened) + reply->segment.name.size() + reply->ticket.size();
  }
  return core::cost::packet + text + descriptors.size() * bytes_per_descriptor;
}

prepared prepare(std::uint64_t id, wire::body body, outgoing packet) {
  const bool is_late = packet.metadata || packet.subscription;
  packet.late = {id, std::move(body)};
  if (!is_late) {
    packet.packet = wire::encode(packet.late);
    packet.late = {};
  }
  prepared result;
  result.push_back(std::move(packet));
  return result;
}

std::vector<std::uint64_t> carry_chunks(outgoing& packet, std::size_t first) {
  const segment_files& files = *packet.files;
  const std::size_t end = std::min(files.chunk_bytes.size(), first + wire::max_batch);
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = first; i < end; ++i) {
    packet.descriptors.push_back(files.chunks[i].get());
    packet.ids.push_back(files.chunks[i].id);
    sizes.push_back(files.chunk_bytes[i]);
  }
  return sizes;
}

wire::segment fields_of(const core::segment& segment) {
  wire::segment result{static_cast<const base::segment_facts&>(segment)};
  result.generation = segment.generation;
  result.slot = segment.slot;
  result.published = segment.published;
  result.state = segment.state();
  result.leases = static_cast<std::uint32_t>(segment.leases.size());
  result.creator_uid = segment.creator.uid;
  result.creator_pid = segment.creator.pid;
  result.creator_alive = segment.creator_session != 0;
  result.metadata_bytes = segment.metadata_bytes();
  return result;
}

error unknown_kind() {
  return {
      errc::no_such_segment,
      {},
      {},
      "this is a timeline or a registered descriptor, which this version of the client does not "
      "know",
      "update the client"};
}

}  // namespace gpushm::broker_detail
