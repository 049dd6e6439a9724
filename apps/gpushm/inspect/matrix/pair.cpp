// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/matrix/pair.hpp"

#include <fmt/core.h>
#include <link.h>
#include <sys/stat.h>

#include <filesystem>

#include "gpu/driver/devices.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli::matrix {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view id_prefix = "gpushm-matrix";
// Different users without common privileges, like the pods of two teams.
constexpr uid_t exporter_uid = 1000;
constexpr uid_t importer_uid = 2000;
constexpr uid_t pause_uid = 65535;

std::vector<app::oci::device_node> nodes_of(const std::vector<int>& minors) {
  std::vector<std::string> names{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"};
  for (const int minor : minors) {
    names.push_back("nvidia" + std::to_string(minor));
  }
  std::vector<app::oci::device_node> nodes;
  for (const std::string& name : names) {
    const std::string path = fmt::format("{}/{}", driver::dev_root(), name);
    if (fs::exists(path)) {
      nodes.push_back({path, "/dev/" + name});
    }
  }
  return nodes;
}

std::uint64_t namespace_id(pid_t pid) {
  struct stat status {};
  const std::string path = fmt::format("/proc/{}/ns/pid", pid);
  return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

int add_loaded(dl_phdr_info* info, std::size_t /*size*/, void* target) {
  auto& mounts = *static_cast<std::vector<app::oci::bind_mount>*>(target);
  const std::string name = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  // The program itself has an empty name here, and the vDSO has no file.
  if (name.starts_with('/') && !is_in_every_container(name)) {
    const std::string path = fs::path(name).lexically_normal().string();
    mounts.push_back({path, path, false, false});
  }
  return 0;
}

app::oci::container_options pause_options(const row& setting, const run_environment& environment) {
  app::oci::container_options options;
  options.argv = {base::executable_path(), "trial-worker"};
  options.mounts = environment.mounts;
  options.uid = pause_uid;
  options.gid = pause_uid;
  options.ipc.host = setting.host_ipc;
  return options;
}

}  // namespace

assignment assign(const row& setting, const run_environment& environment) {
  assignment assigned;
  if (environment.gpus.empty()) {
    return assigned;
  }
  const gpu& first = environment.gpus.front();
  const gpu& second = environment.gpus.back();
  assigned.gpu = first.minor;
  assigned.exporter_device = first.uuid;
  if (setting.gpus == gpu_choice::same_set) {
    assigned.exporter_minors = {first.minor};
    if (second.minor != first.minor) {
      assigned.exporter_minors.push_back(second.minor);
    }
    assigned.importer_minors = assigned.exporter_minors;
    assigned.importer_device = environment.peer_access ? second.uuid : first.uuid;
  } else {
    assigned.exporter_minors = {first.minor};
    assigned.importer_minors = {second.minor};
    // If all nodes are visible, both programs use device 0. This is why privileged pods seemed to
    // fix sharing after the device plugin had assigned different GPUs.
    assigned.importer_device = setting.privileged ? first.uuid : second.uuid;
  }
  if (setting.privileged) {
    assigned.exporter_minors = environment.all_minors;
    assigned.importer_minors = environment.all_minors;
  }
  return assigned;
}

app::oci::container_options options_of(const row& setting,
                                       const run_environment& environment,
                                       bool exporter,
                                       pid_t pause_pid) {
  const assignment chosen = assign(setting, environment);
  app::oci::container_options options;
  options.argv = {base::executable_path(), "trial-worker"};
  if (!exporter && setting.pids == pid_values::different && !setting.one_pid_namespace()) {
    options.argv.insert(options.argv.end(), {"--spare-pids", "1"});
  }
  if (environment.ipc_library) {
    options.argv.insert(options.argv.end(),
                        {"--ipc-library",
                         std::string(ipc_library_inside),
                         "--ipc-socket",
                         fmt::format("{}/socket", domain_inside)});
  }
  options.env = environment.env;
  options.mounts = environment.mounts;
  options.mounts.push_back(
      {environment.domain_directory, std::string(domain_inside), false, false});
  options.device_nodes = nodes_of(exporter ? chosen.exporter_minors : chosen.importer_minors);
  options.sysfs = true;
  options.privileged = setting.privileged;
  options.uid = setting.privileged ? 0 : exporter ? exporter_uid : importer_uid;
  options.gid = options.uid;
  if (pause_pid != 0) {
    const std::string place = fmt::format("/proc/{}/ns/", pause_pid);
    options.pid.path = place + "pid";
    options.ipc.path = place + "ipc";
    options.net.path = place + "net";
    options.shm = environment.shm_directory;
  }
  options.pid.host = setting.host_pid;
  options.ipc.host = setting.host_ipc;
  if (setting.host_ipc) {
    options.shm = "/dev/shm";
  }
  return options;
}

container_pair::container_pair(const row& setting,
                               const run_environment& environment,
                               int cancel_fd,
                               base::deadline until) {
  pid_t pause_pid = 0;
  if (setting.share_processes) {
    pause_.emplace(environment.runtime, pause_options(setting, environment), id_prefix, cancel_fd);
    pause_pid = pause_->wait_started(until);
  }
  exporter_.emplace(
      environment.runtime, options_of(setting, environment, true, pause_pid), id_prefix, cancel_fd);
  importer_.emplace(environment.runtime,
                    options_of(setting, environment, false, pause_pid),
                    id_prefix,
                    cancel_fd);
  const assignment chosen = assign(setting, environment);
  both_.exporter.pid_namespace = namespace_id(exporter_->wait_started(until));
  both_.exporter.known_minors = true;
  both_.exporter.minors = chosen.exporter_minors;
  both_.importer.pid_namespace = namespace_id(importer_->wait_started(until));
  both_.importer.known_minors = true;
  both_.importer.minors = chosen.importer_minors;
  both_.gpu = chosen.gpu;
}

container_pair::~container_pair() {
  // Programs that exit at the end of their input terminate sooner than those that the runtime
  // kills.
  for (auto* each : {&exporter_, &importer_}) {
    (*each)->process().close_input();
  }
  try {
    for (auto* each : {&exporter_, &importer_}) {
      static_cast<void>((*each)->process().wait(base::deadline_in(std::chrono::seconds(1))));
    }
  } catch (const error&) {
    // Interrupted: the destructors below kill them.
  }
}

std::string container_pair::problem() const {
  for (const auto* each : {&pause_, &exporter_, &importer_}) {
    std::string text = *each ? (*each)->problem() : std::string();
    if (!text.empty()) {
      return text;
    }
  }
  return {};
}

std::vector<app::oci::bind_mount> program_mounts() {
  std::vector<app::oci::bind_mount> mounts;
  const std::string program = base::executable_path();
  if (!is_in_every_container(program)) {
    mounts.push_back({program, program, false, false});
  }
  ::dl_iterate_phdr(add_loaded, &mounts);
  return mounts;
}

std::vector<app::oci::bind_mount> ipc_mounts(const std::string& library) {
  const fs::path inside(ipc_library_inside);
  std::vector<app::oci::bind_mount> mounts{{library, inside.string(), false, false}};
  constexpr const char* client_library = "libgpushm.so.1";
  std::error_code failed;
  for (const fs::path& place :
       {fs::path(library).parent_path(), fs::path(base::executable_path()).parent_path()}) {
    if (const fs::path file = fs::canonical(place / client_library, failed); !failed) {
      mounts.push_back(
          {file.string(), (inside.parent_path() / client_library).string(), false, false});
      break;
    }
  }
  return mounts;
}

bool is_in_every_container(const std::string& path) {
  for (const char* place : {"/usr/", "/bin/", "/lib/", "/lib64/"}) {
    if (path.starts_with(place)) {
      return true;
    }
  }
  return false;
}

}  // namespace gpushm::cli::matrix
