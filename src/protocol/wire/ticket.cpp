// SPDX-License-Identifier: Apache-2.0
#include "protocol/wire/ticket.hpp"

#include <algorithm>
#include <string_view>

#include "base/segments/names.hpp"
#include "gpushm/error.hpp"
#include "protocol/wire/crc32.hpp"
#include "protocol/wire/ticket_fields.hpp"

namespace gpushm::wire {

using namespace ticket_detail;

namespace {

// ---- layout, see docs/ticket.md: never renumber ----

constexpr std::array<std::uint8_t, 8> magic{'G', 'P', 'U', 'S', 'H', 'M', 'D', '\n'};
constexpr std::size_t version_at = 8;
constexpr std::size_t oldest_reader_at = 10;
constexpr std::size_t length_at = 12;
constexpr std::size_t crc_at = 16;
constexpr std::size_t header_bytes = 20;

namespace field {
constexpr std::uint16_t kind = 1;
constexpr std::uint16_t size = 2;
constexpr std::uint16_t offset = 3;
constexpr std::uint16_t allocated = 4;
constexpr std::uint16_t device = 5;
constexpr std::uint16_t exporter = 6;
constexpr std::uint16_t address = 7;
constexpr std::uint16_t buffer_id = 8;
constexpr std::uint16_t legacy = 16;
constexpr std::uint16_t pool = 17;
constexpr std::uint16_t broker = 18;
constexpr std::uint16_t word = 20;
}  // namespace field
namespace device_field {
constexpr std::uint16_t kind = 1;
constexpr std::uint16_t uuid = 2;
constexpr std::uint16_t pci_address = 3;
constexpr std::uint16_t minor = 4;
}  // namespace device_field
namespace exporter_field {
constexpr std::uint16_t boot_id = 1;
constexpr std::uint16_t pid_namespace = 2;
constexpr std::uint16_t pid = 3;
constexpr std::uint16_t start_time = 4;
constexpr std::uint16_t epoch = 5;
}  // namespace exporter_field
namespace legacy_field {
constexpr std::uint16_t bytes = 1;
constexpr std::uint16_t pid_offset = 2;
}  // namespace legacy_field
namespace pool_field {
constexpr std::uint16_t bytes = 1;
constexpr std::uint16_t pool = 2;
}  // namespace pool_field
namespace broker_field {
constexpr std::uint16_t socket_path = 1;
constexpr std::uint16_t epoch = 2;
constexpr std::uint16_t name = 3;
constexpr std::uint16_t generation = 4;
}  // namespace broker_field
namespace word_field {
constexpr std::uint16_t file = 1;
constexpr std::uint16_t file_system = 2;
constexpr std::uint16_t inode = 3;
constexpr std::uint16_t life_pipe = 4;
constexpr std::uint16_t word = 5;
}  // namespace word_field

/// A group of fields, as named in errors.
namespace place {
constexpr std::string_view top;
constexpr std::string_view device = "the device";
constexpr std::string_view exporter = "the exporter";
constexpr std::string_view legacy = "the legacy handle";
constexpr std::string_view pool = "the pool pointer";
constexpr std::string_view broker = "the broker reference";
constexpr std::string_view word = "the word reference";
}  // namespace place

constexpr std::size_t max_device_text_bytes = 128;
constexpr std::size_t max_boot_id_bytes = 64;
constexpr std::size_t no_limit = std::string::npos;  // except the ticket's
constexpr std::uint16_t max_pid_offset = 60;
constexpr std::uint32_t max_word = 511;
constexpr std::uint64_t word_bytes = 8;

// ---- validation ----

[[noreturn]] void unsupported(std::string_view cause) {
  throw error(errc::unsupported_version,
              "read ticket",
              {},
              cause,
              "update gpushm here, or export with version " + std::to_string(ticket_version));
}

/// The problem of a string, or an empty string.
std::string text_problem(std::string_view text,
                         std::string_view where,
                         std::uint16_t number,
                         std::size_t limit) {
  if (text.size() > limit) {
    return in_words(number, where) + " is " + bytes_long(text.size()) + ", the limit is " +
           std::to_string(limit);
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (std::any_of(text.begin(), text.end(), is_control)) {
    return in_words(number, where) + " contains a control character";
  }
  return {};
}

std::string broker_problem(const broker_reference& value) {
  if (value.socket_path.empty()) {
    return "the broker reference has no socket path";
  }
  if (auto cause =
          text_problem(value.socket_path, place::broker, broker_field::socket_path, no_limit);
      !cause.empty()) {
    return cause;
  }
  if (value.name.empty()) {
    return "the broker reference has no segment name";
  }
  if (auto cause = text_problem(value.name, place::broker, broker_field::name, max_name_bytes);
      !cause.empty()) {
    return cause;
  }
  if (!base::is_utf8(value.name)) {
    return in_words(broker_field::name, place::broker) + " is not UTF-8";
  }
  if (value.generation == 0 || value.generation > max_generation) {
    return "the generation is " + std::to_string(value.generation) + ", not from 1 to " +
           std::to_string(max_generation);
  }
  return {};
}

std::string device_problem(const device_id& value) {
  if (auto cause =
          text_problem(value.uuid, place::device, device_field::uuid, max_device_text_bytes);
      !cause.empty()) {
    return cause;
  }
  if (auto cause = text_problem(
          value.pci_address, place::device, device_field::pci_address, max_device_text_bytes);
      !cause.empty()) {
    return cause;
  }
  if (value.minor < -1) {
    return "the device's minor is " + std::to_string(value.minor);
  }
  if (value.kind != device_kind::host && value.uuid.empty()) {
    return "the device has no UUID";
  }
  return {};
}

/// The problem of the ways to open it.
std::string reference_problem(const ticket& value) {
  const bool is_timeline = value.backend == backend::timeline;
  if (is_timeline && (value.legacy || value.pool)) {
    return "it is a timeline with a handle of memory";
  }
  if (is_timeline && value.size_bytes != word_bytes) {
    return "it is a timeline of " + std::to_string(value.size_bytes) + " bytes";
  }
  if (!is_timeline && value.word) {
    return "it is memory with a word reference";
  }
  if (!value.legacy && !value.pool && !value.broker && !value.word) {
    return "there is no way to open it: fields 16, 17, 18 and 20 are missing";
  }
  if (value.legacy && value.legacy->pid_offset.value_or(0) > max_pid_offset) {
    return "the PID's offset in the legacy handle is " + std::to_string(*value.legacy->pid_offset) +
           ", the limit is " + std::to_string(max_pid_offset);
  }
  if (value.word && (value.word->file < 0 || value.word->life_pipe < 0)) {
    return "the word reference has a negative descriptor";
  }
  if (value.word && value.word->word > max_word) {
    return "the word reference has word " + std::to_string(value.word->word) +
           ", the last one is " + std::to_string(max_word);
  }
  return value.broker ? broker_problem(*value.broker) : std::string{};
}

/// The problem of the values, wherever they come from: readers and writers reject the same.
std::string problem(const ticket& value) {
  if (value.size_bytes == 0) {
    return "the size is 0";
  }
  if (value.size_bytes > value.allocated_bytes ||
      value.offset_bytes > value.allocated_bytes - value.size_bytes) {
    return std::to_string(value.size_bytes) + " bytes at offset " +
           std::to_string(value.offset_bytes) + " are not within an allocation of " +
           std::to_string(value.allocated_bytes);
  }
  if (auto cause = device_problem(value.device); !cause.empty()) {
    return cause;
  }
  const bool is_host = value.backend == backend::host || value.backend == backend::timeline;
  if (is_host && value.device.kind != device_kind::host) {
    return "it is host memory on a device";
  }
  if (!is_host && value.device.kind == device_kind::host) {
    return "it is device memory on the host";
  }
  if (auto cause = text_problem(
          value.exporter.boot_id, place::exporter, exporter_field::boot_id, max_boot_id_bytes);
      !cause.empty()) {
    return cause;
  }
  if (value.exporter.pid < 0) {
    return "the exporter's PID is " + std::to_string(value.exporter.pid);
  }
  return reference_problem(value);
}

// ---- writing ----

field_writer written(const device_id& value) {
  field_writer out;
  out.number_unless(std::uint8_t{0}, device_field::kind, static_cast<std::uint8_t>(value.kind));
  out.text(device_field::uuid, value.uuid);
  out.text(device_field::pci_address, value.pci_address);
  out.number_unless(std::int32_t{-1}, device_field::minor, value.minor);
  return out;
}

field_writer written(const base::process_identity& value) {
  field_writer out;
  out.text(exporter_field::boot_id, value.boot_id);
  out.number_unless(std::uint64_t{0}, exporter_field::pid_namespace, value.pid_namespace);
  out.number_unless(std::int32_t{0}, exporter_field::pid, value.pid);
  out.number_unless(std::uint64_t{0}, exporter_field::start_time, value.start_time);
  out.bytes(exporter_field::epoch, value.epoch);
  return out;
}

field_writer written(const legacy_handle& value) {
  field_writer out;
  out.bytes(legacy_field::bytes, value.bytes);
  if (value.pid_offset) {
    out.number(legacy_field::pid_offset, *value.pid_offset);
  }
  return out;
}

field_writer written(const pool_pointer& value) {
  field_writer out;
  out.bytes(pool_field::bytes, value.bytes);
  out.number_unless(std::uint64_t{0}, pool_field::pool, value.pool);
  return out;
}

field_writer written(const broker_reference& value) {
  field_writer out;
  out.text(broker_field::socket_path, value.socket_path);
  out.bytes(broker_field::epoch, value.epoch);
  out.text(broker_field::name, value.name);
  out.number(broker_field::generation, value.generation);
  return out;
}

field_writer written(const word_reference& value) {
  field_writer out;
  out.number(word_field::file, value.file);
  out.number(word_field::file_system, value.file_system);
  out.number(word_field::inode, value.inode);
  out.number(word_field::life_pipe, value.life_pipe);
  out.number(word_field::word, value.word);
  return out;
}

field_writer written(const ticket& value) {
  constexpr std::uint64_t none = 0;
  field_writer out;
  out.number(field::kind, static_cast<std::uint8_t>(value.backend));
  out.number(field::size, value.size_bytes);
  out.number_unless(none, field::offset, value.offset_bytes);
  out.number(field::allocated, value.allocated_bytes);
  out.fields(field::device, written(value.device));
  out.fields(field::exporter, written(value.exporter));
  out.number_unless(none, field::address, value.address);
  out.number_unless(none, field::buffer_id, value.buffer_id);
  if (value.legacy) {
    out.fields(field::legacy, written(*value.legacy));
  }
  if (value.pool) {
    out.fields(field::pool, written(*value.pool));
  }
  if (value.broker) {
    out.fields(field::broker, written(*value.broker));
  }
  if (value.word) {
    out.fields(field::word, written(*value.word));
  }
  return out;
}

/// Returns the checksum of all bytes except its own four.
std::uint32_t crc_of(std::span<const std::byte> bytes) {
  return crc32(bytes.subspan(header_bytes), crc32(bytes.first(crc_at)));
}

// ---- reading ----

device_id read_device(const field_reader& reader) {
  device_id result;
  const auto kind = reader.number<std::uint8_t>(device_field::kind);
  if (kind > static_cast<std::uint8_t>(device_kind::mig)) {
    unsupported("device kind " + std::to_string(kind) + " is not supported");
  }
  result.kind = static_cast<device_kind>(kind);
  result.uuid = reader.text(device_field::uuid);
  result.pci_address = reader.text(device_field::pci_address);
  result.minor = reader.number<std::int32_t>(device_field::minor, -1);
  return result;
}

base::process_identity read_exporter(const field_reader& reader) {
  base::process_identity result;
  result.boot_id = reader.text(exporter_field::boot_id);
  result.pid_namespace = reader.number<std::uint64_t>(exporter_field::pid_namespace);
  result.pid = reader.number<std::int32_t>(exporter_field::pid);
  result.start_time = reader.number<std::uint64_t>(exporter_field::start_time);
  reader.copy(exporter_field::epoch, result.epoch);
  return result;
}

legacy_handle read_legacy(const field_reader& reader) {
  legacy_handle result;
  reader.copy(legacy_field::bytes, result.bytes);
  if (reader.has(legacy_field::pid_offset)) {
    result.pid_offset = reader.required_number<std::uint16_t>(legacy_field::pid_offset);
  }
  return result;
}

pool_pointer read_pool(const field_reader& reader) {
  pool_pointer result;
  reader.copy(pool_field::bytes, result.bytes);
  result.pool = reader.number<std::uint64_t>(pool_field::pool);
  return result;
}

broker_reference read_broker(const field_reader& reader) {
  broker_reference result;
  result.socket_path = reader.text(broker_field::socket_path);
  reader.copy(broker_field::epoch, result.epoch);
  result.name = reader.text(broker_field::name);
  result.generation = reader.required_number<std::uint64_t>(broker_field::generation);
  return result;
}

word_reference read_word(const field_reader& reader) {
  word_reference result;
  result.file = reader.required_number<std::int32_t>(word_field::file);
  result.file_system = reader.required_number<std::uint64_t>(word_field::file_system);
  result.inode = reader.required_number<std::uint64_t>(word_field::inode);
  result.life_pipe = reader.required_number<std::int32_t>(word_field::life_pipe);
  result.word = reader.required_number<std::uint32_t>(word_field::word);
  return result;
}

void check_header(std::span<const std::byte> bytes) {
  const auto same = [](std::uint8_t expected, std::byte read) {
    return std::byte{expected} == read;
  };
  if (bytes.size() < magic.size() || !std::equal(magic.begin(), magic.end(), bytes.begin(), same)) {
    invalid("it does not begin with a ticket's magic number");
  }
  if (bytes.size() < header_bytes) {
    invalid("it is " + bytes_long(bytes.size()) + ", the header requires " +
            std::to_string(header_bytes));
  }
  if (bytes.size() > max_ticket_bytes) {
    invalid("it is " + bytes_long(bytes.size()) + ", the limit is " +
            std::to_string(max_ticket_bytes));
  }
  if (const auto length = number_at<std::uint32_t>(bytes, length_at); length != bytes.size()) {
    invalid("it is " + bytes_long(bytes.size()) + ", its header specifies " +
            std::to_string(length));
  }
  if (number_at<std::uint32_t>(bytes, crc_at) != crc_of(bytes)) {
    invalid("the checksum does not match");
  }
  const auto oldest = number_at<std::uint16_t>(bytes, oldest_reader_at);
  if (oldest > ticket_version) {
    unsupported("its version is " + std::to_string(number_at<std::uint16_t>(bytes, version_at)) +
                ", which requires a reader of version " + std::to_string(oldest) +
                " or newer; this reader has version " + std::to_string(ticket_version));
  }
}

}  // namespace

std::vector<std::byte> encode_ticket(const ticket& value) {
  if (const std::string cause = problem(value); !cause.empty()) {
    throw error(errc::invalid_argument,
                "write ticket",
                {},
                cause,
                "docs/ticket.md specifies what a ticket can contain");
  }
  const field_writer fields = written(value);
  const std::size_t length = header_bytes + fields.written().size();
  if (length > max_ticket_bytes) {
    throw error(
        errc::message_too_large,
        "write ticket",
        {},
        "it would be " + bytes_long(length) + ", the limit is " + std::to_string(max_ticket_bytes),
        "use a shorter socket path");
  }
  std::vector<std::byte> bytes;
  bytes.reserve(length);
  for (const std::uint8_t each : magic) {
    bytes.push_back(std::byte{each});
  }
  append(bytes, ticket_version);
  append(bytes, oldest_ticket_reader);
  append(bytes, static_cast<std::uint32_t>(length));
  const std::uint32_t crc = crc32(fields.written(), crc32(bytes));
  append(bytes, crc);
  bytes.insert(bytes.end(), fields.written().begin(), fields.written().end());
  return bytes;
}

ticket decode_ticket(std::span<const std::byte> bytes) {
  check_header(bytes);
  const field_reader in(bytes.subspan(header_bytes), place::top);
  const auto kind = in.required_number<std::uint8_t>(field::kind);
  if (kind > static_cast<std::uint8_t>(backend::cuda_pool) &&
      kind != static_cast<std::uint8_t>(backend::timeline)) {
    unsupported("memory kind " + std::to_string(kind) + " is not supported");
  }
  ticket result;
  result.backend = static_cast<gpushm::backend>(kind);
  result.size_bytes = in.required_number<std::uint64_t>(field::size);
  result.offset_bytes = in.number<std::uint64_t>(field::offset);
  result.allocated_bytes = in.required_number<std::uint64_t>(field::allocated);
  result.device = read_device({in.required(field::device), place::device});
  result.exporter = read_exporter({in.required(field::exporter), place::exporter});
  result.address = in.number<std::uint64_t>(field::address);
  result.buffer_id = in.number<std::uint64_t>(field::buffer_id);
  if (in.has(field::legacy)) {
    result.legacy = read_legacy({in.required(field::legacy), place::legacy});
  }
  if (in.has(field::pool)) {
    result.pool = read_pool({in.required(field::pool), place::pool});
  }
  if (in.has(field::broker)) {
    result.broker = read_broker({in.required(field::broker), place::broker});
  }
  if (in.has(field::word)) {
    result.word = read_word({in.required(field::word), place::word});
  }
  if (const std::string cause = problem(result); !cause.empty()) {
    invalid(cause);
  }
  return result;
}

}  // namespace gpushm::wire
