// SPDX-License-Identifier: Apache-2.0
// A fake kubelet as a process that tests can kill: fake_kubelet DIRECTORY. Prints its events and
// the replies to commands on standard input, as one JSON object per line:
//   devices RESOURCE           the state of the resource
//   allocate POD RESOURCE N    the container's devices, or the reason why the pod is rejected
//   free POD
//   mode normal|silent|refusing|not_listing|disconnecting
//   restart                    stops and starts again
//   quit                       (as does the end of the input)
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/fake_kubelet/fake_kubelet.hpp"

namespace {

using gpushm_testing::fake_kubelet;
using gpushm_testing::kubelet_event;
using gpushm_testing::kubelet_mode;
using nlohmann::json;

void print(const json& line) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::cout << line.dump() << std::endl;
}

void print_event(const kubelet_event& event) {
  print({{"event", event.what},
         {"resource", event.resource},
         {"endpoint", event.endpoint},
         {"detail", event.detail}});
}

json devices(const fake_kubelet& kubelet, const std::string& resource) {
  const auto view = kubelet.resource(resource);
  json list = json::array();
  for (const auto& each : view.devices) {
    json one{{"id", each.id}, {"healthy", each.healthy}};
    if (each.numa_node) {
      one["numa"] = *each.numa_node;
    }
    list.push_back(std::move(one));
  }
  return {{"answer", "devices"},
          {"resource", resource},
          {"endpoint", view.endpoint},
          {"connected", view.connected},
          {"healthy", view.healthy()},
          {"registrations", view.registrations},
          {"owners", view.owners},
          {"devices", std::move(list)}};
}

json allocate(fake_kubelet& kubelet,
              const std::string& pod,
              const std::string& resource,
              std::size_t count) {
  try {
    const auto got = kubelet.allocate(pod, resource, count);
    json mounts = json::array();
    for (const auto& each : got.allocation.mounts) {
      mounts.push_back({{"container", each.container_path},
                        {"host", each.host_path},
                        {"readOnly", each.read_only}});
    }
    json nodes = json::array();
    for (const auto& each : got.allocation.nodes) {
      nodes.push_back({{"container", each.container_path},
                       {"host", each.host_path},
                       {"permissions", each.permissions}});
    }
    return {{"answer", "allocated"},
            {"pod", pod},
            {"ids", got.ids},
            {"envs", got.allocation.envs},
            {"annotations", got.allocation.annotations},
            {"mounts", std::move(mounts)},
            {"devices", std::move(nodes)},
            {"cdiDevices", got.allocation.cdi_devices}};
  } catch (const gpushm_testing::admission_error& why) {
    return {{"answer", "not admitted"}, {"pod", pod}, {"why", why.what()}};
  }
}

bool set_mode(fake_kubelet& kubelet, const std::string& name) {
  const std::map<std::string, kubelet_mode> modes{{"normal", kubelet_mode::normal},
                                                  {"silent", kubelet_mode::silent},
                                                  {"refusing", kubelet_mode::refusing},
                                                  {"not_listing", kubelet_mode::not_listing},
                                                  {"disconnecting", kubelet_mode::disconnecting}};
  const auto mode = modes.find(name);
  if (mode == modes.end()) {
    return false;
  }
  kubelet.set_mode(mode->second);
  return true;
}

/// False to quit.
bool execute(fake_kubelet& kubelet, const std::string& line) {
  std::istringstream words(line);
  std::string command;
  std::string first;
  std::string second;
  std::size_t count = 0;
  words >> command >> first >> second >> count;
  if (command == "devices") {
    print(devices(kubelet, first));
  } else if (command == "allocate") {
    print(allocate(kubelet, first, second, count));
  } else if (command == "free") {
    kubelet.free(first);
    print({{"answer", "freed"}, {"pod", first}});
  } else if (command == "mode" && set_mode(kubelet, first)) {
    print({{"answer", "mode"}, {"mode", first}});
  } else if (command == "restart") {
    kubelet.stop();
    kubelet.start();
    print({{"answer", "restarted"}});
  } else if (command == "quit") {
    return false;
  } else {
    print({{"answer", "unknown command"}, {"line", line}});
  }
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: fake_kubelet DIRECTORY\n";
    return 2;
  }
  try {
    gpushm_testing::fake_kubelet_options options;
    options.directory = arguments[1];
    options.on_event = print_event;
    fake_kubelet kubelet(std::move(options));
    kubelet.start();
    std::string line;
    while (std::getline(std::cin, line) && execute(kubelet, line)) {
    }
    kubelet.stop();
    return 0;
  } catch (const std::exception& failed) {
    std::cerr << "fake_kubelet: " << failed.what() << "\n";
    return 1;
  }
}
