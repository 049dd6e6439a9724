// SPDX-License-Identifier: Apache-2.0
#include "apps/support/oci/config.hpp"

#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/support/oci/seccomp.hpp"
#include "gpushm/error.hpp"

namespace gpushm::app::oci {

namespace {

using nlohmann::json;

// In the order of their numbers in linux/capability.h.
constexpr std::array<std::string_view, 41> capabilities{"CAP_CHOWN",
                                                        "CAP_DAC_OVERRIDE",
                                                        "CAP_DAC_READ_SEARCH",
                                                        "CAP_FOWNER",
                                                        "CAP_FSETID",
                                                        "CAP_KILL",
                                                        "CAP_SETGID",
                                                        "CAP_SETUID",
                                                        "CAP_SETPCAP",
                                                        "CAP_LINUX_IMMUTABLE",
                                                        "CAP_NET_BIND_SERVICE",
                                                        "CAP_NET_BROADCAST",
                                                        "CAP_NET_ADMIN",
                                                        "CAP_NET_RAW",
                                                        "CAP_IPC_LOCK",
                                                        "CAP_IPC_OWNER",
                                                        "CAP_SYS_MODULE",
                                                        "CAP_SYS_RAWIO",
                                                        "CAP_SYS_CHROOT",
                                                        "CAP_SYS_PTRACE",
                                                        "CAP_SYS_PACCT",
                                                        "CAP_SYS_ADMIN",
                                                        "CAP_SYS_BOOT",
                                                        "CAP_SYS_NICE",
                                                        "CAP_SYS_RESOURCE",
                                                        "CAP_SYS_TIME",
                                                        "CAP_SYS_TTY_CONFIG",
                                                        "CAP_MKNOD",
                                                        "CAP_LEASE",
                                                        "CAP_AUDIT_WRITE",
                                                        "CAP_AUDIT_CONTROL",
                                                        "CAP_SETFCAP",
                                                        "CAP_MAC_OVERRIDE",
                                                        "CAP_MAC_ADMIN",
                                                        "CAP_SYSLOG",
                                                        "CAP_WAKE_ALARM",
                                                        "CAP_BLOCK_SUSPEND",
                                                        "CAP_AUDIT_READ",
                                                        "CAP_PERFMON",
                                                        "CAP_BPF",
                                                        "CAP_CHECKPOINT_RESTORE"};

json bind(const bind_mount& mount) {
  return {
      {"destination", mount.destination},
      {"type", "bind"},
      {"source", mount.source},
      {"options",
       {mount.recursive ? "rbind" : "bind", mount.writable ? "rw" : "ro", "nosuid", "rprivate"}}};
}

json file_system(const char* type, const char* destination, json options) {
  return {{"destination", destination},
          {"type", type},
          {"source", type},
          {"options", std::move(options)}};
}

json system_mounts(const container_options& options) {
  json mounts = json::array();
  mounts.push_back(file_system("proc", "/proc", {"nosuid", "noexec", "nodev"}));
  mounts.push_back(
      file_system("tmpfs", "/dev", {"nosuid", "strictatime", "mode=755", "size=65536k"}));
  mounts.push_back(
      file_system("devpts", "/dev/pts", {"nosuid", "noexec", "newinstance", "ptmxmode=0666"}));
  if (options.shm.empty()) {
    mounts.push_back(file_system(
        "tmpfs", "/dev/shm", {"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}));
  } else {
    mounts.push_back(bind({options.shm, "/dev/shm", true, false}));
  }
  mounts.push_back(file_system("tmpfs", "/tmp", {"nosuid", "nodev", "mode=1777"}));
  if (options.sysfs) {
    // sysfs shows the mounting process's network namespace, which must belong to its user
    // namespace.
    const bool own_network = !options.net.host && options.net.path.empty();
    mounts.push_back(options.user_ns || !own_network
                         ? bind({"/sys", "/sys", false, true})
                         : file_system("sysfs", "/sys", {"nosuid", "noexec", "nodev", "ro"}));
  }
  // Needed by programs of the host; the dynamic linker's cache locates a driver in an unusual
  // directory.
  for (const char* path : {"/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/passwd"}) {
    if (std::filesystem::exists(path)) {
      mounts.push_back(bind({path, path, false, true}));
    }
  }
  return mounts;
}

json device_rules(const container_options& options) {
  if (options.privileged) {
    return json::array({{{"allow", true}, {"access", "rwm"}}});
  }
  json rules = json::array({{{"allow", false}, {"access", "rwm"}}});
  for (const device_node& node : options.device_nodes) {
    struct stat status {};
    if (::stat(node.host.c_str(), &status) != 0 || !S_ISCHR(status.st_mode)) {
      throw error(
          errc::invalid_argument, "create container", node.host, "is not a character device");
    }
    // The kernel compares the device number of the host's node, not its name in the container.
    rules.push_back({{"allow", true},
                     {"type", "c"},
                     {"major", major(status.st_rdev)},
                     {"minor", minor(status.st_rdev)},
                     {"access", "rw"}});
  }
  return rules;
}

json environment(const container_options& options) {
  json lines = json::array({"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp"});
  for (const auto& [name, value] : options.env) {
    lines.push_back(fmt::format("{}={}", name, value));
  }
  return lines;
}

json process(const container_options& options) {
  const json none = json::array();
  const json given =
      options.privileged ? json(capability_names(bounding_set())) : json(json::array());
  return {{"terminal", false},
          {"user", {{"uid", options.uid}, {"gid", options.gid}}},
          {"args", options.argv},
          {"env", environment(options)},
          {"cwd", "/"},
          {"capabilities",
           {{"bounding", given},
            {"effective", given},
            {"inheritable", none},
            {"permitted", given},
            {"ambient", none}}},
          {"noNewPrivileges", !options.privileged}};
}

void add_namespace(json& namespaces, const char* type, const namespace_source& source) {
  if (source.host) {
    return;
  }
  json entry{{"type", type}};
  if (!source.path.empty()) {
    entry["path"] = source.path;
  }
  namespaces.push_back(std::move(entry));
}

json linux_part(const container_options& options, const std::string& cgroups_path) {
  json namespaces = json::array();
  add_namespace(namespaces, "pid", options.pid);
  add_namespace(namespaces, "ipc", options.ipc);
  add_namespace(namespaces, "network", options.net);
  for (const char* type : {"uts", "mount", "cgroup"}) {
    add_namespace(namespaces, type, {});
  }
  json part{{"resources", {{"devices", device_rules(options)}}},
            {"cgroupsPath", cgroups_path},
            {"rootfsPropagation", "rprivate"}};
  if (!options.privileged) {
    part["seccomp"] = default_seccomp();
  }
  if (options.user_ns) {
    namespaces.push_back({{"type", "user"}});
    const json mapping = json::array({{{"containerID", 0},
                                       {"hostID", options.user_ns->first_host_id},
                                       {"size", options.user_ns->size}}});
    part["uidMappings"] = mapping;
    part["gidMappings"] = mapping;
  }
  part["namespaces"] = namespaces;
  return part;
}

}  // namespace

json config(const container_options& options, const std::string& cgroups_path) {
  auto mounts = system_mounts(options);
  for (const auto& mount : options.mounts) {
    mounts.push_back(bind(mount));
  }
  for (const auto& node : options.device_nodes) {
    mounts.push_back({{"destination", node.destination()},
                      {"type", "bind"},
                      {"source", node.host},
                      {"options", {"bind", "rw", "rprivate"}}});
  }
  return {{"ociVersion", "1.0.2"},
          {"process", process(options)},
          {"root", {{"path", "rootfs"}, {"readonly", true}}},
          {"hostname", "gpushm"},
          {"mounts", mounts},
          {"linux", linux_part(options, cgroups_path)}};
}

std::vector<std::string> capability_names(std::uint64_t set) {
  std::vector<std::string> names;
  for (std::size_t bit = 0; bit < capabilities.size(); ++bit) {
    if ((set >> bit & 1U) != 0) {
      names.emplace_back(capabilities.at(bit));
    }
  }
  return names;
}

std::uint64_t bounding_set() noexcept {
  std::uint64_t set = 0;
  for (unsigned bit = 0; bit < capabilities.size(); ++bit) {
    if (::prctl(PR_CAPBSET_READ, bit) == 1) {
      set |= std::uint64_t{1} << bit;
    }
  }
  return set;
}

}  // namespace gpushm::app::oci
