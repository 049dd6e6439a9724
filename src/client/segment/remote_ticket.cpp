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

memory::remote_memory remote_for(const wire::segment& what, std::span<const std::byte> ticket) {
  auto found = remote_of(wire::decode_ticket(ticket));
  if (!found || found->kind != what.backend || found->size_bytes != what.size_bytes) {
    throw error(errc::invalid_ticket,
                "open",
                what.name,
                "the exporter's ticket does not match its segment",
                "the exporter is broken or hostile; report it");
  }
  return *std::move(found);
}

wire::ticket describe(const memory::source& found) {
  wire::ticket result;
  result.backend = found.kind();
  result.size_bytes = found.size_bytes();
  result.offset_bytes = found.offset_bytes();
  result.allocated_bytes = found.allocated_bytes();
  result.device = found.device();
  result.exporter = base::this_process();
  result.address = found.address();
  if (const auto remote = found.remote()) {
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
          lease.info().generation};
}

}  // namespace gpushm::client_detail
