// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/describe.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/output.hpp"
#include "base/segments/names.hpp"
#include "base/text/hex.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text.hpp"
#include "base/text/text_layout.hpp"

namespace gpushm::cli {

namespace {

std::string creator_text(const segment_info& info) {
  return fmt::format("uid {}{}{}",
                     info.creator_uid,
                     info.creator_pid != 0 ? fmt::format(", pid {}", info.creator_pid) : "",
                     info.creator_alive ? "" : " (gone)");
}

std::string yes_no(bool value) {
  return value ? "yes" : "no";
}

std::string state_text(const segment_info& info) {
  if (info.ending != 0) {
    return "ending";
  }
  return info.published ? std::string(to_string(info.state)) : "unpublished";
}

/// The leases of processes that disconnected without a goodbye: their number, the process, how long
/// ago it disconnected, and what the broker waits for.
std::string ending_text(const segment_info& info) {
  if (info.ending == 0) {
    return "none";
  }
  std::string text =
      fmt::format("{} {} of {}, disconnected without a goodbye {} ms ago; waiting for ",
                  info.ending,
                  info.ending == 1 ? "lease" : "leases",
                  info.ending_pid == 0 ? "a process" : fmt::format("pid {}", info.ending_pid),
                  info.ending_for.count());
  switch (info.ending_waits) {
    case fence_wait::process:
      return text + "the end of the process";
    case fence_wait::descendant:
      return text + "a descendant of the exited process";
    case fence_wait::delay:
      return text + "the fence delay";
  }
  return text + "an unknown condition";
}

}  // namespace

std::string epoch_text(const epoch& value) {
  return base::hex_text(value);
}

std::string device_text(const device_id& device) {
  std::string text = device.text();
  std::string place = device.pci_address;
  if (device.minor >= 0) {
    place += fmt::format("{}/dev/nvidia{}", place.empty() ? "" : ", ", device.minor);
  }
  return place.empty() ? text : fmt::format("{} ({})", text, place);
}

fields segment_fields(const segment& mapped) {
  return {{"size", exact_size_text(mapped.size_bytes())},
          {"device", device_text(mapped.device())},
          {"backend", std::string(to_string(mapped.backend()))},
          {"lifetime", std::string(to_string(mapped.lifetime()))},
          {"generation", mapped.generation() == 0 ? "none" : std::to_string(mapped.generation())}};
}

std::string writer_text(bool is_writable) {
  return is_writable ? "advisory (peer is root, or has the broker's uid)" : "enforced";
}

std::string internal_text(std::string_view name) {
  if (name.starts_with("~signals-")) {
    return "the words of a process's timelines";
  }
  const auto at = name.rfind("/~");
  if (at == std::string_view::npos) {
    return {};
  }
  const std::string_view last = name.substr(at + 2);
  const auto is_of = [&](const char* kind) {
    return fmt::format("{} \"{}\"", kind, name.substr(0, at));
  };
  return last == "producer"               ? is_of("the producer's words of the channel")
         : last.starts_with("page-")      ? is_of("a producer's page of the channel")
         : last.starts_with("consumer-")  ? is_of("a consumer's words of the channel")
         : last.starts_with("timelines-") ? is_of("the timelines of the segment")
                                          : std::string();
}

void check_is_own(const std::string& name, std::string_view operation) {
  if (const std::string purpose = internal_text(name); !purpose.empty()) {
    throw usage_error(errc::invalid_argument,
                      operation,
                      name,
                      "the library uses such names for " + purpose + ", and gpushm ls hides them",
                      "choose a name without a component that begins with ~");
  }
}

std::string segments_text(const std::vector<segment_info>& segments) {
  using align = base::table::align;
  base::table table({{"NAME"},
                     {"SIZE", align::right},
                     {"DEVICE"},
                     {"LIFETIME"},
                     {"LEASES", align::right},
                     {"STATE"},
                     {"CREATOR"}});
  for (const segment_info& info : segments) {
    // The first digits of a UUID distinguish the GPUs of a node; `stat` shows all of it.
    table.add({info.name,
               base::size_text(info.size_bytes),
               info.device.text().substr(0, 12),
               std::string(to_string(info.lifetime)),
               std::to_string(info.leases),
               state_text(info),
               creator_text(info)});
  }
  return table.text();
}

std::string segment_text(const segment_info& info, const fields& more) {
  fields lines{
      {"size", exact_size_text(info.size_bytes)},
      {"allocated", exact_size_text(info.allocated_bytes)},
      {"chunks", std::to_string(info.chunks)},
      {"device", device_text(info.device)},
      {"backend", std::string(to_string(info.backend))},
      {"lifetime", std::string(to_string(info.lifetime))},
      {"state", std::string(to_string(info.state))},
      {"published", yes_no(info.published)},
      {"leases", std::to_string(info.leases)},
      {"ending", ending_text(info)},
      {"generation", std::to_string(info.generation)},
      {"metadata", exact_size_text(info.metadata_bytes)},
      {"creator uid", std::to_string(info.creator_uid)},
      {"creator pid", info.creator_pid == 0 ? "unknown" : std::to_string(info.creator_pid)},
      {"creator alive", yes_no(info.creator_alive)}};
  if (const std::string internal = internal_text(info.name); !internal.empty()) {
    lines.emplace_back("internal", internal);
  }
  lines.insert(lines.end(), more.begin(), more.end());
  return base::printable(info.name) + "\n" + base::fields_text(lines, 2);
}

std::string as_text(std::span<const std::byte> bytes) {
  std::string text(bytes.size(), '\0');
  std::transform(bytes.begin(), bytes.end(), text.begin(), [](std::byte value) {
    return static_cast<char>(value);
  });
  return text;
}

bool is_text(std::span<const std::byte> bytes) {
  const std::string text = as_text(bytes);
  return base::is_utf8(text) && std::none_of(text.begin(), text.end(), [](char c) {
           const auto value = static_cast<unsigned char>(c);
           return (value < 0x20 && c != '\n' && c != '\t') || value == 0x7F;
         });
}

std::string base64(std::span<const std::byte> bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8U | (k < count ? std::to_integer<std::uint32_t>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += k <= count ? digits[group >> (18U - 6U * k) & 63U] : '=';
    }
  }
  return text;
}

}  // namespace gpushm::cli
