// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/registrations.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>

#include "base/text/text.hpp"
#include "base/text/text_layout.hpp"
#include "gpushm/descriptor.h"

namespace gpushm::cli {

namespace {

constexpr std::string_view prefix = ".fd/";

std::optional<std::uint32_t> number_in(std::string_view name) {
  std::uint32_t number = 0;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + prefix.size(), end, number);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(number) : std::nullopt;
}

std::string process_text(const registration& registration) {
  return fmt::format("{} (pid {}{})",
                     registration.program.empty() ? "?" : base::printable(registration.program),
                     registration.pid,
                     registration.broker_pid == 0 || registration.broker_pid == registration.pid
                         ? ""
                         : fmt::format(", the broker's {}", registration.broker_pid));
}

std::string namespace_text_of(const registration& registration) {
  return registration.pid_namespace == 0 ? "?" : std::to_string(registration.pid_namespace);
}

auto key_of(const registration& registration) {
  return std::tuple(registration.program,
                    registration.pid,
                    registration.pid_namespace,
                    registration.uid,
                    registration.broker_pid);
}

}  // namespace

std::vector<registration> list_registrations(client& broker) {
  std::vector<registration> registrations;
  for (const segment_info& info : broker.list(std::string(prefix))) {
    const auto number = number_in(info.name);
    gpushm_descriptor_info described{};
    described.struct_size = sizeof described;
    if (!number || info.backend != backend::descriptor ||
        gpushm_client_describe_descriptor(broker.handle(), *number, &described) != GPUSHM_OK) {
      continue;
    }
    registration& made = registrations.emplace_back();
    made.number = *number;
    made.is_memory = described.kind == GPUSHM_DESCRIPTOR_GPU_MEMORY;
    made.program.assign(described.comm,
                        std::min<std::size_t>(described.comm_size, sizeof described.comm));
    made.pid = described.pid;
    made.pid_namespace = described.pid_namespace;
    made.uid = described.creator_uid;
    made.broker_pid = described.creator_pid;
  }
  std::sort(registrations.begin(), registrations.end(), [](const auto& a, const auto& b) {
    return a.number < b.number;
  });
  return registrations;
}

std::vector<exporter> exporters_of(const std::vector<registration>& registrations) {
  std::map<decltype(key_of(registrations.front())), exporter> entries;
  for (const registration& each : registrations) {
    exporter& made = entries[key_of(each)];
    made.first = each;
    (each.is_memory ? made.memory : made.events) += 1;
  }
  std::vector<exporter> list;
  list.reserve(entries.size());
  for (auto& [key, made] : entries) {
    list.push_back(std::move(made));
  }
  return list;
}

std::string exporters_text(const std::vector<exporter>& exporters) {
  using align = base::table::align;
  base::table table({{"EXPORTER"},
                     {"UID", align::right},
                     {"PID NAMESPACE"},
                     {"MEMORY", align::right},
                     {"EVENT FILES", align::right}});
  for (const exporter& each : exporters) {
    table.add({process_text(each.first),
               std::to_string(each.first.uid),
               namespace_text_of(each.first),
               std::to_string(each.memory),
               std::to_string(each.events)});
  }
  return table.text();
}

std::string registrations_text(const std::vector<registration>& registrations) {
  using align = base::table::align;
  base::table table(
      {{"NUMBER", align::right}, {"KIND"}, {"EXPORTER"}, {"UID", align::right}, {"PID NAMESPACE"}});
  for (const registration& each : registrations) {
    table.add({std::to_string(each.number),
               each.is_memory ? "gpu memory" : "events",
               process_text(each),
               std::to_string(each.uid),
               namespace_text_of(each)});
  }
  return table.text();
}

json to_json(const registration& registration) {
  return {{"number", registration.number},
          {"kind", registration.is_memory ? "gpu memory" : "events"},
          {"program", base::printable(registration.program)},
          {"pid", registration.pid},
          {"pid_namespace", registration.pid_namespace},
          {"uid", registration.uid},
          {"broker_pid", registration.broker_pid}};
}

json to_json(const exporter& exporter) {
  return {{"program", base::printable(exporter.first.program)},
          {"pid", exporter.first.pid},
          {"pid_namespace", exporter.first.pid_namespace},
          {"uid", exporter.first.uid},
          {"broker_pid", exporter.first.broker_pid},
          {"memory", exporter.memory},
          {"event_files", exporter.events}};
}

}  // namespace gpushm::cli
