// SPDX-License-Identifier: Apache-2.0
#include "client/ticket/tickets.hpp"

#include <deque>
#include <filesystem>
#include <mutex>
#include <utility>

#include "base/files/fork_guard.hpp"
#include "base/report/log.hpp"
#include "client/lease/socket_path.hpp"
#include "client/segment/remote_ticket.hpp"
#include "client/ticket/client_registry.hpp"
#include "client/timeline/local_pages.hpp"
#include "client/timeline/timeline_impl.hpp"
#include "gpu/memory/sources/source.hpp"

namespace gpushm::client_detail {

namespace {

/// Upper bound of the exports by `export_memory` that this process recognizes on import.
constexpr std::size_t max_remembered_exports = 4'096;

/// Never destroyed, nor are the objects that it uses.
struct export_list {
  base::fork_safe_mutex mutex;
  std::deque<std::shared_ptr<const memory::source>> remembered;
};
export_list& exports() {
  static auto* const all = new export_list;  // NOLINT(cppcoreguidelines-owning-memory): see above
  return *all;
}

void remember_export(std::shared_ptr<const memory::source> exported) {
  std::shared_ptr<const memory::source> oldest;  // destroyed after the lock is released
  export_list& list = exports();
  const std::lock_guard lock(list.mutex);
  list.remembered.push_back(std::move(exported));
  if (list.remembered.size() > max_remembered_exports) {
    oldest = std::move(list.remembered.front());
    list.remembered.pop_front();
  }
}

// Created when the library is loaded: a forked child must not find them half constructed.
[[maybe_unused]] const export_list& exports_created_at_load = exports();

std::string socket_of(const wire::broker_reference& broker, const std::string& directory) {
  if (broker.socket_path.find('/') != std::string::npos || directory.empty()) {
    return broker.socket_path;
  }
  return directory + "/" + broker.socket_path;
}

error exporter_gone_error(const std::string& name, const std::string& cause, std::int32_t pid) {
  return {errc::peer_died,
          "import",
          name,
          "the process that exported it is gone: " + cause,
          "export it again from a running process",
          {.pid = pid}};
}

std::shared_ptr<timelines> timelines_of(const wire::ticket& described,
                                        const std::string& directory) {
  memory::check_same_machine({}, described.exporter);
  const wire::broker_reference& broker = *described.broker;
  const std::string socket = absolute_socket_path(socket_of(broker, directory));
  auto connected = client_registry::instance().get(socket);
  if (connected->client().broker()->broker().epoch != broker.epoch) {
    throw exporter_gone_error(
        broker.name, "another broker answers at " + socket, described.exporter.pid);
  }
  return connected;
}

segment_ptr import_through_broker(const wire::ticket& described, const import_options& options) {
  const auto connected = timelines_of(described, options.directory);
  const wire::broker_reference& broker = *described.broker;
  open_options opening;
  opening.access = options.access;
  opening.device = options.device;
  auto opened = connected->client().open_generation(broker.name, broker.generation, opening);
  opened->keep(connected);
  return opened;
}

segment_ptr import_by_handle(const wire::ticket& described, const import_options& options) {
  const auto memory = remote_of(described);
  if (!memory || memory->kind != backend::cuda_ipc) {
    throw error(errc::invalid_ticket,
                "import",
                {},
                "this memory is shared as file descriptors, and the ticket names no broker",
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
      throw exporter_gone_error(
          {},
          "its process " + std::to_string(memory->exporter.pid) + " has ended",
          memory->exporter.pid);
    }
    const driver::gpu& gpu = memory::gpu_for_open(memory->device, options.device);
    region = memory::open_remote({}, *memory, {}, gpu);
    user = gpu.id;
  }
  auto mapped =
      std::make_shared<mapping>(std::move(facts), std::move(region), options.access, user);
  return segment_ptr(
      new gpushm_segment(nullptr, std::move(mapped), connect_options().request_limit));
}

}  // namespace

std::vector<std::byte> export_memory(void* pointer, std::uint64_t size_bytes) {
  const std::shared_ptr<const memory::source> source = memory::find_source({}, pointer, size_bytes);
  if (source->kind() != backend::cuda_ipc) {
    throw error(errc::not_exportable,
                "export",
                {},
                "this memory is shared as file descriptors, which bytes cannot carry",
                "share it through a broker and export the segment (client::share, "
                "export_segment), or through a file (file_export)");
  }
  auto bytes = wire::encode_ticket(describe(*source));
  remember_export(source);
  return bytes;
}

std::vector<std::byte> export_segment(const gpushm_segment& segment, std::string_view socket_path) {
  check_not_forked(segment.forks(), "export", segment.info().name);
  const segment_lease& lease = segment.lease("export");
  const wire::segment& info = segment.info();
  wire::ticket described;
  if (const auto shared = lease.shared_memory()) {
    described = describe(*shared);
  } else if (!lease.ticket().empty()) {  // shared by another process: its own ticket
    described = wire::decode_ticket(lease.ticket());
  } else {
    described.backend = info.backend;
    described.size_bytes = info.size_bytes;
    described.offset_bytes = info.offset_bytes;
    described.allocated_bytes = info.allocated_bytes;
    described.device = info.device;
    described.exporter = base::this_process();
  }
  described.broker = broker_reference_of(lease, socket_path);
  return wire::encode_ticket(described);
}

std::unique_ptr<gpushm_timeline> import_timeline(std::span<const std::byte> ticket,
                                                 const std::string& directory) {
  const wire::ticket described = wire::decode_ticket(ticket);
  if (described.backend != backend::timeline) {
    throw error(errc::invalid_ticket,
                "import",
                described.broker ? described.broker->name : std::string(),
                "it is a ticket of memory",
                "import it as memory (gpushm_import_memory)");
  }
  if (described.broker) {
    return timelines_of(described, directory)
        ->open(described.broker->name, {}, described.broker->generation);
  }
  return std::make_unique<gpushm_timeline>(
      local_pages::instance().open(described), gpushm_timeline::role::waiter, described);
}

std::unique_ptr<gpushm_timeline> create_local_timeline() {
  auto [range, described] = local_pages::instance().take();
  sync::timeline_writer(range.page->own_page(), range.first).reset(0);
  return std::make_unique<gpushm_timeline>(
      std::move(range), gpushm_timeline::role::signaler, std::move(described));
}

segment_ptr import_ticket(std::span<const std::byte> ticket, const import_options& options) {
  const wire::ticket described = wire::decode_ticket(ticket);
  if (described.backend == backend::timeline) {
    throw error(errc::invalid_ticket,
                "import",
                described.broker ? described.broker->name : std::string(),
                "it is a ticket of a timeline",
                "import it as a timeline (gpushm_import_timeline)");
  }
  if (!described.broker) {
    return import_by_handle(described, options);
  }
  try {
    return import_through_broker(described, options);
  } catch (const error& why) {
    if (why.code() != errc::broker_unreachable) {
      throw;
    }
    // A legacy handle in the ticket is not used: without its broker nothing tells whether it is
    // still the same memory.
    throw exporter_gone_error(described.broker->name, why.cause(), described.exporter.pid);
  }
}

}  // namespace gpushm::client_detail
