// SPDX-License-Identifier: Apache-2.0
// The functions of gpushm.h and timeline.h about tickets and files with tickets.
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "base/report/c_interface.hpp"
#include "base/report/log.hpp"
#include "client/c/c_handles.hpp"
#include "client/ticket/ticket_file.hpp"
#include "client/ticket/tickets.hpp"
#include "client/timeline/timeline_impl.hpp"
#include "protocol/wire/ticket.hpp"

using gpushm::base::bytes_in;
using gpushm::base::c_call;
using gpushm::base::out;
using gpushm::base::text_in;
using gpushm::base::text_out;
using gpushm::base::timeout_in;

namespace {

gpushm_ticket& ticket_to(gpushm_ticket* where, std::string_view operation) {
  gpushm_ticket& result = gpushm::base::out(where, operation);
  gpushm::base::check_struct_size(result.struct_size, operation);
  return result;
}

/// Throws message_too_large: the caller's structure has less room.
void ticket_out(std::span<const std::byte> bytes,
                gpushm_ticket& where,
                std::string_view operation) {
  constexpr std::size_t head = offsetof(gpushm_ticket, bytes);
  const std::size_t room = where.struct_size > head ? where.struct_size - head : 0;
  if (bytes.size() > std::min(room, sizeof where.bytes)) {
    throw gpushm::error(gpushm::errc::message_too_large,
                        operation,
                        {},
                        "the ticket has " + std::to_string(bytes.size()) +
                            " bytes, and the structure for " + "it room for " +
                            std::to_string(room),
                        "set its struct_size to sizeof(gpushm_ticket) (GPUSHM_INIT)");
  }
  where.size = bytes.size();
  std::memcpy(where.bytes, bytes.data(), bytes.size());
}

constexpr std::chrono::milliseconds no_wait{0};

gpushm::import_options options_from(const gpushm_import_options* given, std::int64_t timeout_ms) {
  const auto from = gpushm::base::options_in(given, "import");
  gpushm::import_options result;
  result.access = gpushm::base::enum_in(from.access, gpushm::access::read_write, "import");
  result.device = text_in(from.device, "import");
  result.timeout = timeout_in(timeout_ms, "import", no_wait);
  result.directory = text_in(from.directory, "import");
  result.stop = gpushm::client_detail::token_of(from.stop);
  return result;
}

}  // namespace

gpushm_errc gpushm_export_memory(void* pointer, uint64_t size_bytes, gpushm_ticket* ticket) {
  return c_call([&] {
    gpushm_ticket& result = ticket_to(ticket, "export");
    ticket_out(gpushm::client_detail::export_memory(pointer, size_bytes), result, "export");
  });
}

gpushm_errc gpushm_export_segment(const gpushm_segment* segment,
                                  gpushm_string socket_path,
                                  gpushm_ticket* ticket) {
  return c_call([&] {
    const gpushm_segment& exported = gpushm::client_detail::filled(segment);
    gpushm_ticket& result = ticket_to(ticket, "export");
    ticket_out(gpushm::client_detail::export_segment(exported, text_in(socket_path, "export")),
               result,
               "export");
  });
}

gpushm_errc gpushm_timeline_create_local(gpushm_timeline** timeline) {
  return c_call([&] {
    gpushm_timeline*& result = out(timeline, "create");
    result = gpushm::client_detail::create_local_timeline().release();
  });
}

gpushm_errc gpushm_export_timeline(const gpushm_timeline* timeline,
                                   gpushm_string socket_path,
                                   gpushm_ticket* ticket) {
  return c_call([&] {
    const gpushm_timeline& exported = gpushm::client_detail::filled_timeline(timeline);
    gpushm_ticket& result = ticket_to(ticket, "export");
    ticket_out(gpushm::wire::encode_ticket(exported.describe(text_in(socket_path, "export"))),
               result,
               "export");
  });
}

gpushm_errc gpushm_import_timeline(const void* ticket,
                                   size_t ticket_size,
                                   gpushm_string directory,
                                   gpushm_timeline** timeline) {
  return c_call([&] {
    gpushm_timeline*& imported = out(timeline, "import");
    imported = gpushm::client_detail::import_timeline(bytes_in(ticket, ticket_size, "import"),
                                                      std::string(text_in(directory, "import")))
                   .release();
  });
}

gpushm_errc gpushm_import_memory(const void* ticket,
                                 size_t ticket_size,
                                 const gpushm_import_options* options,
                                 gpushm_segment** segment) {
  return c_call([&] {
    gpushm_segment*& imported = out(segment, "import");
    imported = gpushm::client_detail::import_ticket(bytes_in(ticket, ticket_size, "import"),
                                                    options_from(options, 0))
                   .release();
  });
}

gpushm_errc gpushm_import_file(gpushm_string path,
                               const gpushm_import_options* options,
                               int64_t timeout_ms,
                               gpushm_segment** segment) {
  return c_call([&] {
    gpushm_segment*& imported = out(segment, "import");
    imported = gpushm::client_detail::import_ticket_file(std::string(text_in(path, "import")),
                                                         options_from(options, timeout_ms))
                   .release();
  });
}

gpushm_errc gpushm_describe_ticket(const void* ticket,
                                   size_t ticket_size,
                                   gpushm_ticket_info* info) {
  return c_call([&] {
    const gpushm::wire::ticket described =
        gpushm::wire::decode_ticket(bytes_in(ticket, ticket_size, "describe"));
    gpushm_ticket_info result{};
    result.backend = static_cast<gpushm_backend>(described.backend);
    result.size_bytes = described.size_bytes;
    result.allocated_bytes = described.allocated_bytes;
    result.device = gpushm::client_detail::device_out(described.device);
    result.exporter_pid = described.exporter.pid;
    result.has_handle = described.legacy.has_value();
    if (described.broker) {
      text_out(described.broker->socket_path, result.socket_path, result.socket_path_size);
      text_out(described.broker->name, result.name, result.name_size);
      result.generation = described.broker->generation;
    }
    gpushm::base::result_out(result, info, "describe");
  });
}

gpushm_errc gpushm_read_ticket_file(gpushm_string path,
                                    int64_t timeout_ms,
                                    gpushm_stop* stop,
                                    gpushm_ticket* ticket) {
  return c_call([&] {
    gpushm_ticket& result = ticket_to(ticket, "import");
    const auto timeout = timeout_in(timeout_ms, "import", no_wait);
    ticket_out(
        gpushm::client_detail::read_ticket(
            std::string(text_in(path, "import")), timeout, gpushm::client_detail::token_of(stop)),
        result,
        "import");
  });
}

// ---- files ----

struct gpushm_ticket_file : gpushm::client_detail::ticket_file {
  using ticket_file::ticket_file;
};

gpushm_errc gpushm_ticket_file_create(gpushm_string path,
                                      const void* ticket,
                                      size_t ticket_size,
                                      uint32_t mode,
                                      gpushm_ticket_file** file) {
  return c_call([&] {
    gpushm_ticket_file*& result = out(file, "export");
    result =
        std::make_unique<gpushm_ticket_file>(
            std::string(text_in(path, "export")), bytes_in(ticket, ticket_size, "export"), mode)
            .release();
  });
}

gpushm_errc gpushm_ticket_file_replace(gpushm_ticket_file* file,
                                       const void* ticket,
                                       size_t ticket_size) {
  return c_call([&] {
    const auto bytes = bytes_in(ticket, ticket_size, "export");
    if (file == nullptr) {
      gpushm::base::throw_invalid("export", "there is no file", "create one first");
    }
    file->replace(bytes);
  });
}

void gpushm_ticket_file_close(gpushm_ticket_file* file) {
  const gpushm::base::held_log_lines lines;
  const std::unique_ptr<gpushm_ticket_file> ended(file);
}
