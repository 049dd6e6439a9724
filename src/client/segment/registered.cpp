// SPDX-License-Identifier: Apache-2.0
// Registered descriptors: files that processes of a domain fetch by number.
#include "client/segment/registered.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/files/file.hpp"
#include "base/process/process.hpp"
#include "base/segments/registered_names.hpp"
#include "client/segment/client_impl.hpp"
#include "client/session/reply_check.hpp"

namespace gpushm::client_detail {

namespace {

static_assert(GPUSHM_DESCRIPTOR_NUMBERS == base::registered_numbers);

/// docs/protocol.md has the layout: little-endian, the byte order of the machine.
struct facts_layout {
  std::uint64_t tag;
  std::uint64_t pid_namespace;
  std::int32_t pid;
  std::uint32_t kind;
  std::array<char, 16> comm;
};
static_assert(sizeof(facts_layout) == 40 && std::is_trivially_copyable_v<facts_layout>);

/// Random numbers that are tried: with a million registered ones, one in a thousand is taken.
constexpr int number_attempts = 8;

registered_facts facts_of(const struct stat& file, std::uint64_t tag) {
  const auto self = base::this_process();
  const std::string_view name = program_invocation_short_name;
  constexpr std::size_t longest = sizeof(facts_layout::comm) - 1;
  return {tag,
          self.pid_namespace,
          self.pid,
          S_ISCHR(file.st_mode) ? GPUSHM_DESCRIPTOR_GPU_MEMORY : GPUSHM_DESCRIPTOR_FILE,
          std::string(name.substr(0, longest))};
}

void check_number(std::string_view operation, std::uint32_t number, std::uint32_t smallest) {
  if (number < smallest || number >= base::registered_numbers) {
    throw error(errc::invalid_argument,
                operation,
                std::to_string(number),
                "this is not the number of a registered descriptor",
                "use a number from 1 to 1073741823");
  }
}

std::uint32_t random_number() {
  std::uint32_t number = 0;
  while (number == 0) {
    std::array<std::uint8_t, sizeof number> bytes{};
    base::random_bytes(bytes);
    std::memcpy(&number, bytes.data(), sizeof number);
    number %= base::registered_numbers;
  }
  return number;
}

bool is_taken(errc why) {
  return why == errc::already_exists || why == errc::writer_ending;
}

/// This process's copy, for a broker that is started again.
std::optional<segment_lease::kept_chunks> copy_to_keep(segment_lease& lease, int file) {
  auto kept = lease.begin_keeping();
  if (kept) {
    auto copy = base::guarded_fd::open([&] { return ::fcntl(file, F_DUPFD_CLOEXEC, 0); });
    if (!copy) {
      return std::nullopt;  // no room: it is not handed back
    }
    kept->bytes.push_back(lease.info().allocated_bytes);
    kept->files.push_back(std::move(copy));
  }
  return kept;
}

}  // namespace

std::vector<std::byte> encode(const registered_facts& facts) {
  facts_layout raw{
      facts.tag, facts.pid_namespace, facts.pid, static_cast<std::uint32_t>(facts.kind), {}};
  std::memcpy(raw.comm.data(), facts.comm.data(), std::min(facts.comm.size(), sizeof raw.comm - 1));
  std::vector<std::byte> result(sizeof raw);
  std::memcpy(result.data(), &raw, sizeof raw);
  return result;
}

std::optional<registered_facts> decode_facts(std::span<const std::byte> bytes) {
  facts_layout raw{};
  if (bytes.size() < sizeof raw) {
    return std::nullopt;
  }
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.kind != GPUSHM_DESCRIPTOR_GPU_MEMORY && raw.kind != GPUSHM_DESCRIPTOR_FILE) {
    return std::nullopt;
  }
  return registered_facts{
      raw.tag,
      raw.pid_namespace,
      raw.pid,
      static_cast<gpushm_descriptor_kind>(raw.kind),
      std::string(raw.comm.data(), ::strnlen(raw.comm.data(), sizeof raw.comm - 1))};
}

std::shared_ptr<segment_lease> client_impl::register_number(
    const std::shared_ptr<connection>& connected,
    int file,
    std::uint32_t number,
    std::span<const std::byte> facts,
    steady_time deadline) {
  wire::reserve wanted;
  wanted.name = base::registered_name(number);
  wanted.size_bytes = wanted.allocated_bytes = 1;
  wanted.chunk_count = 1;
  wanted.backend = backend::descriptor;
  const std::string name = wanted.name;
  const subject about{"register", name};
  reply got = connected->request(wanted, about, deadline);
  const auto* const reserved = std::get_if<wire::reserved>(&got.body);
  if (reserved == nullptr || !got.descriptors.empty() || reserved->generation == 0 ||
      reserved->generation > max_generation) {
    throw unexpected_reply(about);
  }
  wire::segment info{std::move(static_cast<base::segment_facts&>(wanted))};
  info.generation = reserved->generation;
  info.slot = reserved->slot;
  // From here on an exception releases the lease, which ends the reservation.
  auto lease = leases_->take(
      connected, {std::move(info), {}, {}, reserved->receipt, true}, got.granted, "register");
  auto kept = copy_to_keep(*lease, file);
  // Both are sent before the first reply: a round trip less.
  const std::array files{file};
  const auto attached = connected->request_ahead(
      wire::attach{lease->info().generation, 0, {1}}, about, deadline, files);
  std::exception_ptr unpublished;
  try {
    lease->publish(facts, "register", deadline);
  } catch (const error&) {
    unpublished = std::current_exception();
  }
  static_cast<void>(attached->get(about, deadline));  // a refusal of this is the cause of the other
  if (unpublished) {
    std::rethrow_exception(unpublished);
  }
  if (kept) {
    lease->finish_keeping(std::move(*kept));
  }
  return lease;
}

std::unique_ptr<gpushm_descriptor> client_impl::register_descriptor(int file,
                                                                    std::uint32_t number,
                                                                    std::uint64_t tag) {
  check_number("register", number, 0);
  struct stat info {};
  if (::fstat(file, &info) != 0) {
    throw error(errc::invalid_argument,
                "register",
                std::to_string(file),
                "this is not an open descriptor",
                "pass a descriptor of this process");
  }
  const auto deadline = request_deadline();
  const auto connected = broker();
  if (!connected->takes_descriptors()) {
    throw error(errc::unsupported_version,
                "register",
                connected->broker().socket_path,
                "this broker does not register descriptors",
                "update the broker");
  }
  const auto facts = encode(facts_of(info, tag));
  for (int left = number == 0 ? number_attempts : 1;; --left) {
    const std::uint32_t chosen = number == 0 ? random_number() : number;
    try {
      auto lease = register_number(connected, file, chosen, facts, deadline);
      return std::make_unique<gpushm_descriptor>(leases_, std::move(lease), chosen);
    } catch (const error& why) {
      if (left == 1 || !is_taken(why.code())) {
        throw;
      }
    }
  }
}

resolved_descriptor client_impl::resolve_descriptor(std::uint32_t number, std::uint64_t tag) {
  check_number("resolve", number, 1);
  const std::string name = base::registered_name(number);
  const subject about{"resolve", name};
  const auto connected = broker();
  const auto absent = [&](std::string_view cause) {
    return error(errc::no_such_segment,
                 about.operation,
                 about.object,
                 std::string(cause) + " in domain " + connected->broker().domain,
                 "its process has closed it, or uses another domain");
  };
  reply got = connected->open(wire::open{name, 0, 0, 0}, about, request_deadline());
  if (const auto* const failure = std::get_if<wire::failure>(&got.body)) {
    if (failure->code == errc::no_such_segment) {
      throw absent("no descriptor is registered under this number");
    }
    throw from_wire(*failure, about);
  }
  const auto* const opened = std::get_if<wire::opened>(&got.body);
  if (opened == nullptr || opened->segment.backend != backend::descriptor) {
    throw unexpected_reply(about);
  }
  check_opened(*opened, got.descriptors.size(), name, 0);
  auto facts = decode_facts(opened->metadata);
  if (!facts) {
    throw error(errc::protocol_error,
                about.operation,
                about.object,
                "its process has described it in a format that this version does not read",
                "update this program's libgpushm");
  }
  if (tag != 0 && facts->tag != tag) {
    throw absent("another descriptor is registered under this number");
  }
  if (got.descriptors.empty()) {
    throw absent("the descriptor was lost when the broker was replaced");
  }
  return {got.descriptors.front().release(),
          std::move(*facts),
          opened->segment.creator_pid,
          opened->segment.creator_uid};
}

}  // namespace gpushm::client_detail
