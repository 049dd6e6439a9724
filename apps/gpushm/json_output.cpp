// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/json_output.hpp"

#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "base/segments/names.hpp"

namespace gpushm::cli {

json to_json(const device_id& device) {
  json result{{"kind", to_string(device.kind)},
              {"uuid", nullptr},
              {"pci_address", nullptr},
              {"minor", nullptr}};
  if (!device.uuid.empty()) {
    result["uuid"] = device.uuid;
  }
  if (!device.pci_address.empty()) {
    result["pci_address"] = device.pci_address;
  }
  if (device.minor >= 0) {
    result["minor"] = device.minor;
  }
  return result;
}

void print_json(const json& document) {
  print(document.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
  flush_output();
}

json to_json(const error& failure) {
  return json{{"code", to_string(failure.code())},
              {"message", failure.what()},
              {"cause", failure.cause()},
              {"next_step", failure.next_step()}};
}

json to_json(const segment_info& info) {
  return json{
      {"name", info.name},
      {"generation", info.generation},
      {"size_bytes", info.size_bytes},
      {"allocated_bytes", info.allocated_bytes},
      {"chunks", info.chunks},
      {"backend", to_string(info.backend)},
      {"device", to_json(info.device)},
      {"lifetime", to_string(info.lifetime)},
      {"published", info.published},
      {"state", to_string(info.state)},
      {"leases", info.leases},
      {"creator",
       {{"uid", info.creator_uid}, {"pid", info.creator_pid}, {"alive", info.creator_alive}}},
      {"metadata_bytes", info.metadata_bytes},
      {"ending",
       info.ending == 0 ? json(nullptr)
                        : json{{"leases", info.ending},
                               {"pid", info.ending_pid},
                               {"milliseconds", info.ending_for.count()},
                               {"waits_for", to_string(info.ending_waits)}}}};
}

json to_json(const segment& mapped) {
  // Memory imported by a handle alone is not in any broker.
  const bool named = !mapped.name().empty();
  return json{{"name", named ? json(mapped.name()) : json(nullptr)},
              {"generation", named ? json(mapped.generation()) : json(nullptr)},
              {"epoch", named ? json(epoch_text(mapped.epoch())) : json(nullptr)},
              {"size_bytes", mapped.size_bytes()},
              {"backend", to_string(mapped.backend())},
              {"device", to_json(mapped.device())},
              {"lifetime", to_string(mapped.lifetime())},
              {"access", to_string(mapped.access())},
              {"metadata_bytes", mapped.metadata().size()}};
}

}  // namespace gpushm::cli
