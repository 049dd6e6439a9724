// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/inventory_child.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/report/log.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

using nlohmann::json;

constexpr const char* operation = "take an inventory of the GPUs";
/// Upper bound of waiting for a killed process, which can be stuck in a system call of the driver.
constexpr std::chrono::seconds end_timeout{1};

json json_of(const gpushm::device_plugin::instance& document) {
  return {{"index", document.entry.index},
          {"uuid", document.entry.uuid},
          {"gpu_instance", document.entry.gpu_instance},
          {"compute_instance", document.entry.compute_instance},
          {"profile", document.profile},
          {"total_bytes", document.total_bytes}};
}

gpushm::device_plugin::instance instance_of(const json& document) {
  gpushm::device_plugin::instance result;
  result.entry.index = document.at("index").get<unsigned int>();
  result.entry.uuid = document.at("uuid").get<std::string>();
  result.entry.gpu_instance = document.at("gpu_instance").get<unsigned int>();
  result.entry.compute_instance = document.at("compute_instance").get<unsigned int>();
  result.profile = document.at("profile").get<std::string>();
  result.total_bytes = document.at("total_bytes").get<std::uint64_t>();
  return result;
}

json json_of(const gpushm::device_plugin::gpu_info& document) {
  json result{{"index", document.entry.index},
              {"uuid", document.entry.uuid},
              {"pci_address", document.entry.pci_address},
              {"minor", document.entry.minor},
              {"mig_enabled", document.entry.mig_enabled},
              {"name", document.name},
              {"total_bytes", document.total_bytes},
              {"instances", json::array()}};
  if (document.numa_node) {
    result["numa_node"] = *document.numa_node;
  }
  for (const gpushm::device_plugin::instance& each : document.instances) {
    result["instances"].push_back(json_of(each));
  }
  return result;
}

gpushm::device_plugin::gpu_info gpu_of(const json& document) {
  gpushm::device_plugin::gpu_info result;
  result.entry.index = document.at("index").get<unsigned int>();
  result.entry.uuid = document.at("uuid").get<std::string>();
  result.entry.pci_address = document.at("pci_address").get<std::string>();
  result.entry.minor = document.at("minor").get<int>();
  result.entry.mig_enabled = document.at("mig_enabled").get<bool>();
  result.name = document.at("name").get<std::string>();
  result.total_bytes = document.at("total_bytes").get<std::uint64_t>();
  if (document.contains("numa_node")) {
    result.numa_node = document.at("numa_node").get<std::int64_t>();
  }
  for (const json& each : document.at("instances")) {
    result.instances.push_back(instance_of(each));
    result.entry.instances.push_back(result.instances.back().entry);
  }
  return result;
}

}  // namespace

std::string inventory_text(const gpushm::device_plugin::inventory& document) {
  json result{{"gpus", json::array()},
              {"closeness", document.closeness},
              {"driver_version", document.driver_version},
              {"left_out", document.left_out},
              {"problem", document.problem}};
  for (const gpushm::device_plugin::gpu_info& each : document.gpus) {
    result["gpus"].push_back(json_of(each));
  }
  return result.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<gpushm::device_plugin::inventory> inventory_of_text(const std::string& text) {
  try {
    const json document = json::parse(text);
    gpushm::device_plugin::inventory result;
    for (const json& each : document.at("gpus")) {
      result.gpus.push_back(gpu_of(each));
    }
    result.closeness = document.at("closeness").get<std::vector<std::vector<unsigned int>>>();
    result.driver_version = document.at("driver_version").get<std::string>();
    result.left_out = document.at("left_out").get<std::vector<std::string>>();
    result.problem = document.at("problem").get<std::string>();
    return result;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

int print_inventory(const std::string& library) {
  const std::string text = inventory_text(gpushm::device_plugin::take_inventory(library));
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? EXIT_SUCCESS : EXIT_FAILURE;
}

inventory_child::inventory_child(std::string library)
    : library_(std::move(library)), cancelled_(operation) {}

inventory_child::~inventory_child() {
  stop();
  if (child_) {
    child_->abandon();
  }
}

void inventory_child::start() {
  stop();
  if (child_) {
    throw error(errc::timed_out,
                operation,
                {},
                "the previous process that queried NVML is still in a system call of the driver",
                "check the kernel log for Xid lines; the node may need a reboot");
  }
  text_.clear();
  base::child_options options;
  // The same program, even if its file was replaced meanwhile.
  options.argv = {"/proc/self/exe", inventory_argument, library_};
  options.cancel_fd = cancelled_.fd();
  child_.emplace(base::child_process::start(options));
  child_->close_input();
}

std::optional<gpushm::device_plugin::inventory> inventory_child::wait(base::deadline until) {
  if (!child_->read_all(text_, until)) {
    return std::nullopt;
  }
  const auto status = child_->wait(base::deadline_in(end_timeout));
  if (status) {
    child_.reset();
  }
  if (auto found = inventory_of_text(text_)) {
    return found;
  }
  throw error(errc::driver_error,
              operation,
              {},
              "the process that queries NVML returned no result: " +
                  (status ? base::status_text(*status) : std::string("it has not exited")),
              "check that nvidia-smi works on this node");
}

void inventory_child::stop() noexcept {
  if (!child_) {
    return;
  }
  child_->kill(SIGKILL);
  try {
    if (child_->wait(base::deadline_in(end_timeout))) {
      child_.reset();
    }
  } catch (const std::exception& why) {  // cancelled: the agent stops without waiting for the child
    base::log(log_level::debug, why.what());
  }
}

}  // namespace gpushm::agent
