// SPDX-License-Identifier: Apache-2.0
#include "gpushm/exchange.hpp"

#include <deque>
#include <filesystem>
#include <mutex>
#include <utility>

#include "base/fork_guard.hpp"
#include "base/log.hpp"
#include "client/client_impl.hpp"
#include "client/client_registry.hpp"
#include "client/remote_ticket.hpp"
#include "client/segment_access.hpp"
#include "memory/source.hpp"

namespace gpushm {

namespace {

using detail::client_registry;
using detail::segment_access;
using detail::segment_impl;

/// How many exports by `export_memory` this process believes when their bytes come back to it.
constexpr std::size_t max_remembered_exports = 4'096;

/// Never destroyed, as is what it uses.
struct export_list {
  base::fork_safe_mutex mutex;
  std::deque<std::shared_ptr<const memory::source>> remembered;
};
export_list& exports() {
  static auto* const made = new export_list;  // NOLINT(cppcoreguidelines-owning-memory): see above
  return *made;
}

void remember_export(std::shared_ptr<const memory::source> exported) {
  std::shared_ptr<const memory::source> forgotten;  // ends without the lock
  export_list& all = exports();
  const std::lock_guard lock(all.mutex);
  all.remembered.push_back(std::move(exported));
  if (all.remembered.size() > max_remembered_exports) {
    forgotten = std::move(all.remembered.front());
    all.remembered.pop_front();
  }
}

// Made when the library is loaded: a forked child must not find them half made.
[[maybe_unused]] const export_list& exports_made_at_load = exports();

std::string socket_of(const wire::broker_reference& broker, const std::string& directory) {
  if (broker.socket_path.find('/') != std::string::npos || directory.empty()) {
    return broker.socket_path;
  }
  return directory + "/" + broker.socket_path;
}

error exporter_is_gone(const std::string& name, const std::string& cause) {
  return {errc::peer_died,
          "import",
          name,
          "the process that exported it is gone: " + cause,
          "export it again from a living process"};
}

segment import_through_broker(const wire::ticket& described, const import_options& options) {
  memory::check_same_machine({}, described.exporter);
  const wire::broker_reference& broker = *described.broker;
  const std::string socket = socket_of(broker, options.directory);
  const auto client = client_registry::instance().get(socket);
  if (client->broker()->broker().epoch != broker.epoch) {
    throw exporter_is_gone(broker.name, "another broker answers at " + socket);
  }
  open_options wanted;
  wanted.access = options.access;
  wanted.device = options.device;
  auto opened = client->open_generation(broker.name, broker.generation, wanted);
  opened->keep(client);
  return segment_access::make(std::move(opened));
}

segment import_by_handle(const wire::ticket& described, const import_options& options) {
  const auto memory = detail::remote_of(described);
  if (!memory || memory->kind != backend::cuda_ipc) {
    throw error(errc::invalid_ticket,
                "import",
                {},
                "this memory travels as file descriptors, and the ticket names no broker",
                "export it through a broker (export_segment)");
  }
  wire::segment facts;
  facts.size_bytes = described.size_bytes;
  facts.allocated_bytes = described.allocated_bytes;
  facts.offset_bytes = described.offset_bytes;
  facts.device = described.device;
  facts.backend = described.backend;
  std::shared_ptr<memory::region> region;
  device_id user = facts.device;
  if (memory::is_own(*memory)) {
    region = memory::open_own({}, *memory);
  } else {
    if (base::has_ended(memory->exporter)) {
      throw exporter_is_gone({},
                             "its process " + std::to_string(memory->exporter.pid) + " has ended");
    }
    const driver::gpu& gpu = memory::gpu_for_open(memory->device, options.device);
    region = memory::open_remote({}, *memory, {}, gpu);
    user = gpu.id;
  }
  auto mapped =
      std::make_shared<detail::mapping>(std::move(facts), std::move(region), options.access, user);
  return segment_access::make(std::make_shared<segment_impl>(
      nullptr, std::move(mapped), connect_options().request_timeout));
}

}  // namespace

std::vector<std::byte> export_memory(void* pointer, std::uint64_t size_bytes) {
  base::held_log_lines lines;
  const std::shared_ptr<const memory::source> found = memory::find_source({}, pointer, size_bytes);
  if (found->kind() != backend::cuda_ipc) {
    throw error(errc::not_exportable,
                "export",
                {},
                "this memory travels as file descriptors, which bytes cannot carry",
                "share it through a broker and export the segment (client::share, "
                "export_segment), or through a file (file_export)");
  }
  auto bytes = wire::encode_ticket(detail::describe(*found));
  remember_export(found);
  return bytes;
}

std::vector<std::byte> export_segment(const segment& what, std::string_view socket_path) {
  const segment_impl& impl = segment_access::impl(what);
  detail::check_not_forked(impl.forks(), "export", impl.info().name);
  const detail::segment_lease& lease = impl.lease("export");
  const wire::segment& info = impl.info();
  wire::ticket described;
  if (const auto shared = lease.shared_memory()) {
    described = detail::describe(*shared);
  } else if (!lease.ticket().empty()) {  // somebody else's: what it says of itself
    described = wire::decode_ticket(lease.ticket());
  } else {
    described.backend = info.backend;
    described.size_bytes = info.size_bytes;
    described.offset_bytes = info.offset_bytes;
    described.allocated_bytes = info.allocated_bytes;
    described.device = info.device;
    described.exporter = base::this_process();
  }
  const broker_info& broker = lease.broker().broker();
  described.broker = wire::broker_reference{
      socket_path.empty() ? std::filesystem::absolute(broker.socket_path).string()
                          : std::string(socket_path),
      broker.epoch,
      info.name,
      info.generation};
  return wire::encode_ticket(described);
}

segment import_memory(std::span<const std::byte> ticket, const import_options& options) {
  base::held_log_lines lines;
  const wire::ticket described = wire::decode_ticket(ticket);
  if (!described.broker) {
    return import_by_handle(described, options);
  }
  try {
    return import_through_broker(described, options);
  } catch (const error& why) {
    if (why.code() != errc::broker_unreachable) {
      throw;
    }
    if (!described.legacy) {
      throw exporter_is_gone(described.broker->name, why.cause());
    }
    base::log(log_level::warning,
              "import \"" + described.broker->name + "\": " + why.cause() +
                  "; using the legacy handle, whose memory nobody checks");
  }
  return import_by_handle(described, options);
}

ticket_info describe_ticket(std::span<const std::byte> ticket) {
  const wire::ticket described = wire::decode_ticket(ticket);
  ticket_info info;
  info.backend = described.backend;
  info.size_bytes = described.size_bytes;
  info.allocated_bytes = described.allocated_bytes;
  info.device = described.device;
  info.exporter_pid = described.exporter.pid;
  info.has_handle = described.legacy.has_value();
  if (described.broker) {
    info.socket_path = described.broker->socket_path;
    info.name = described.broker->name;
    info.generation = described.broker->generation;
  }
  return info;
}

}  // namespace gpushm
