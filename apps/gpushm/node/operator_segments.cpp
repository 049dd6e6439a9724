// SPDX-License-Identifier: Apache-2.0
// `gpushm ls --by principal` and `gpushm rm --unheld`: who has the memory of a domain of
// gpushm-brokerd, and what nobody has.
#include <fmt/core.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/node/operator.hpp"
#include "apps/gpushm/node/pod_names.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text.hpp"
#include "base/text/text_layout.hpp"
#include "domains/protocol/private_socket.hpp"

namespace gpushm::cli {

namespace {

using domains::segment_row;

std::vector<segment_row> sorted_segments(const domains::private_socket& broker,
                                         const std::string& domain) {
  std::vector<segment_row> rows = broker.list_segments(domain, operator_timeout);
  std::sort(rows.begin(), rows.end(), [](const segment_row& left, const segment_row& right) {
    return std::tie(left.principal, left.name, left.generation) <
           std::tie(right.principal, right.name, right.generation);
  });
  return rows;
}

std::string age_of(const segment_row& row) {
  return (row.is_age_known ? "" : ">") + age_text(std::chrono::milliseconds(row.age_ms));
}

std::string state_of(const segment_row& row) {
  return row.published ? std::string(to_string(row.state)) : "unpublished";
}

std::string holders_of(const segment_row& row, const pod_names& pods) {
  std::string text;
  for (const std::string& each : row.holders) {
    text += (text.empty() ? "" : ", ") + pods.text_of(each);
  }
  return text.empty() ? "-" : text + (row.holders.size() == domains::max_holders ? ", …" : "");
}

std::string table_of(const std::vector<segment_row>& rows, const pod_names& pods) {
  using align = base::table::align;
  base::table table({{"PRINCIPAL"},
                     {"NAME"},
                     {"SIZE", align::right},
                     {"DEVICE"},
                     {"LIFETIME"},
                     {"STATE"},
                     {"AGE", align::right},
                     {"LEASES", align::right},
                     {"HELD BY"}});
  for (const segment_row& each : rows) {
    table.add({pods.text_of(each.principal),
               each.name,
               base::size_text(each.allocated_bytes),
               each.device.substr(0, 12),
               std::string(to_string(each.lifetime)),
               state_of(each),
               age_of(each),
               std::to_string(each.leases),
               holders_of(each, pods)});
  }
  return table.text();
}

json to_json(const segment_row& row, const pod_names& pods) {
  json holder_pods = json::object();
  for (const std::string& each : row.holders) {
    if (const auto name = pods.name_of(each); !name.empty()) {
      holder_pods[each] = name;
    }
  }
  json pod;  // null: not a pod, or not known
  if (const auto name = pods.name_of(row.principal); !name.empty()) {
    pod = name;
  }
  return {{"principal", row.principal},
          {"pod", std::move(pod)},
          {"holder_pods", std::move(holder_pods)},
          {"name", row.name},
          {"generation", row.generation},
          {"size_bytes", row.size_bytes},
          {"allocated_bytes", row.allocated_bytes},
          {"device", row.device},
          {"lifetime", to_string(row.lifetime)},
          {"published", row.published},
          {"state", to_string(row.state)},
          {"leases", row.leases},
          {"holders", row.holders},
          {"creator", {{"uid", row.creator_uid}, {"alive", row.creator_alive}}},
          {"age_seconds", row.age_ms / 1'000},
          {"age_is_known", row.is_age_known}};
}

void print_removals(const remove_arguments& arguments, const std::vector<segment_row>& rows) {
  const std::string done = arguments.dry_run ? "would_remove" : "removed";
  std::uint64_t bytes = 0;
  for (const segment_row& each : rows) {
    bytes += each.allocated_bytes;
  }
  if (arguments.connection.json) {
    json names = json::array();
    for (const segment_row& each : rows) {
      names.push_back(each.name);
    }
    print_json(json{{done, std::move(names)}, {"bytes", bytes}, {"failed", json::array()}});
    return;
  }
  for (const segment_row& each : rows) {
    print_line(fmt::format("{} \"{}\" ({}, {}, {})",
                           arguments.dry_run ? "would remove" : "removed",
                           each.name,
                           base::size_text(each.allocated_bytes),
                           each.principal,
                           age_of(each)));
  }
  note(fmt::format("{} {} of {}",
                   rows.size(),
                   rows.size() == 1 ? "segment" : "segments",
                   base::size_text(bytes)));
}

}  // namespace

std::string age_text(std::chrono::milliseconds age) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(age).count();
  constexpr std::int64_t minute = 60;
  constexpr std::int64_t hour = 60 * minute;
  constexpr std::int64_t day = 24 * hour;
  return seconds < 2 * minute ? fmt::format("{}s", seconds)
         : seconds < 2 * hour ? fmt::format("{}m", seconds / minute)
         : seconds < 2 * day  ? fmt::format("{}h", seconds / hour)
                              : fmt::format("{}d", seconds / day);
}

int run_list_by_principal(const list_arguments& arguments) {
  const pod_names pods = arguments.pods.empty() ? pod_names() : pod_names(arguments.pods);
  const domains::private_socket broker(arguments.node.run_dir);
  std::vector<segment_row> rows = sorted_segments(broker, arguments.node.domain);
  const bool shows_internal = arguments.all || arguments.prefix.find('~') != std::string::npos;
  std::erase_if(rows, [&](const segment_row& each) {
    return !each.name.starts_with(arguments.prefix) ||
           (!shows_internal && !internal_text(each.name).empty());
  });
  if (arguments.connection.json) {
    json document{{"domain", arguments.node.domain}, {"segments", json::array()}};
    for (const segment_row& each : rows) {
      document["segments"].push_back(to_json(each, pods));
    }
    print_json(document);
  } else if (arguments.names_only) {
    for (const segment_row& each : rows) {
      print_line(each.name);
    }
  } else if (rows.empty()) {
    note(fmt::format("no segments in domain \"{}\"", arguments.node.domain));
  } else {
    print(table_of(rows, pods));
  }
  return exit_ok;
}

int run_remove_unheld(const remove_arguments& arguments) {
  const domains::private_socket broker(arguments.node.run_dir);
  std::vector<segment_row> done;
  for (segment_row& each : sorted_segments(broker, arguments.node.domain)) {
    if (!each.is_unheld() ||
        (!arguments.principal.empty() && each.principal != arguments.principal)) {
      continue;
    }
    // The broker looks again: a process that has opened it meanwhile keeps it.
    if (arguments.dry_run ||
        broker.remove_unheld(arguments.node.domain, each.generation, operator_timeout)) {
      done.push_back(std::move(each));
    }
  }
  print_removals(arguments, done);
  return exit_ok;
}

}  // namespace gpushm::cli
