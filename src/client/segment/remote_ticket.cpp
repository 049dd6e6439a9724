// SPDX-License-Identifier: Apache-2.0
#include "client/segment/remote_ticket.hpp"

#include <filesystem>
#include <string>
#include <utility>

#include "gpushm/error.hpp"

namespace gpushm::client_detail {

std::optional<memory::remote_memory> remote_of(const wire::ticket& described) {
  memory::remote_memory result;
  result.kind = described.backend;
  result.size_bytes = described.size_bytes;
  result.offset_bytes = described.offset_bytes;
  result.allocated_bytes = described.allocated_bytes;
  result.device = described.device;
  result.exporter = described.exporter;
  result.address = described.address;
  result.buffer_id = described.buffer_id;
  if (described.backend == backend::cuda_ipc && described.legacy) {
    result.handle = described.legacy->bytes;
    result.pid_offset = described.legacy->pid_offset;
    return result;
  }
  if (described.backend == backend::cuda_pool && described.pool) {
    result.handle = described.pool->bytes;
    result.pool = described.pool->pool;
    return result;
  }
  return std::nullopt;
}

memory::remote_memory remote_for(const wire::segment& segment, std::span<const std::byte> ticket) {
  auto remote = remote_of(wire::decode_ticket(ticket));
  if (!remote || remote->kind != segment.backend || remote->size_bytes != segment.size_bytes) {
    throw error(errc::invalid_ticket,
                "open",
                segment.name,
                "the exporter's ticket does not match its segment",
                "the exporter is broken or hostile; report it");
  }
  return *std::move(remote);
}

wire::ticket describe(const memory::source& source) {
  wire::ticket result;
  result.backend = source.kind();
  result.size_bytes = source.size_bytes();
  result.offset_bytes = source.offset_bytes();
  result.allocated_bytes = source.allocated_bytes();
  result.device = source.device();
  result.exporter = base::this_process();
  result.address = source.address();
  if (const auto remote = source.remote()) {
    result.buffer_id = remote->buffer_id;
    if (remote->kind == backend::cuda_ipc) {
      result.legacy = wire::legacy_handle{remote->handle, remote->pid_offset};
    } else {
      result.pool = wire::pool_pointer{remote->handle, remote->pool};
    }
  }
  return result;
}

wire::broker_reference broker_reference_of(const segment_lease& lease,
                                           std::string_view socket_path) {
  const auto connected = lease.broker();
  const broker_info& broker = connected->broker();
  return {socket_path.empty() ? std::filesystem::absolute(broker.socket_path).string()
                              : std::string(socket_path),
          broker.epoch,
          lease.info().name,
          lease.generation()};
}

}  // namespace gpushm::client_detail
