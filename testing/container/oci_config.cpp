// SPDX-License-Identifier: Apache-2.0
#include "container/oci_config.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <array>
#include <cstdint>
#include <filesystem>

#include "base/syscall.hpp"
#include "process/harness_error.hpp"

namespace gpushm_testing {
namespace {

using nlohmann::json;

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
  mounts.push_back(
      file_system("tmpfs", "/dev/shm", {"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}));
  mounts.push_back(file_system("tmpfs", "/tmp", {"nosuid", "nodev", "mode=1777"}));
  if (options.sysfs) {
    mounts.push_back(options.user_ns
                         ? bind({"/sys", "/sys", false, true})
                         : file_system("sysfs", "/sys", {"nosuid", "noexec", "nodev", "ro"}));
  }
  // What programs of the host need to run; the dynamic linker's cache finds a driver in an unusual
  // place.
  for (const char* path : {"/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/passwd"}) {
    if (std::filesystem::exists(path)) {
      mounts.push_back(bind({path, path, false, true}));
    }
  }
  return mounts;
}

json device_rules(const container_options& options) {
  json rules = json::array({{{"allow", false}, {"access", "rwm"}}});
  for (const auto& node : options.device_nodes) {
    struct stat status {};
    if (::stat(node.c_str(), &status) != 0 || !S_ISCHR(status.st_mode)) {
      throw harness_error(node + " is no character device");
    }
    rules.push_back({{"allow", true},
                     {"type", "c"},
                     {"major", major(status.st_rdev)},
                     {"minor", minor(status.st_rdev)},
                     {"access", "rw"}});
  }
  return rules;
}

/// What container engines refuse by default and a program could try without a capability.
json seccomp() {
  return {{"defaultAction", "SCMP_ACT_ALLOW"},
          {"architectures", {"SCMP_ARCH_X86_64"}},
          {"syscalls",
           {{{"names",
              {"acct",
               "add_key",
               "bpf",
               "clock_settime",
               "create_module",
               "delete_module",
               "finit_module",
               "fsconfig",
               "fsmount",
               "fsopen",
               "init_module",
               "io_uring_enter",
               "io_uring_register",
               "io_uring_setup",
               "kcmp",
               "kexec_load",
               "keyctl",
               "lookup_dcookie",
               "mount",
               "move_mount",
               "move_pages",
               "name_to_handle_at",
               "open_by_handle_at",
               "open_tree",
               "perf_event_open",
               "pidfd_getfd",
               "pivot_root",
               "process_vm_readv",
               "process_vm_writev",
               "ptrace",
               "quotactl",
               "reboot",
               "request_key",
               "setns",
               "swapoff",
               "swapon",
               "syslog",
               "umount2",
               "unshare",
               "userfaultfd"}},
             {"action", "SCMP_ACT_ERRNO"},
             {"errnoRet", 1}}}}};
}

json environment(const container_options& options) {
  json lines = json::array({"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp"});
  for (const auto& [name, value] : options.env) {
    lines.push_back(name + "=" + value);
  }
  return lines;
}

json process(const container_options& options) {
  const json none = json::array();
  return {{"terminal", false},
          {"user", {{"uid", options.uid}, {"gid", options.gid}}},
          {"args", options.argv},
          {"env", environment(options)},
          {"cwd", "/"},
          {"capabilities",
           {{"bounding", none},
            {"effective", none},
            {"inheritable", none},
            {"permitted", none},
            {"ambient", none}}},
          {"noNewPrivileges", true}};
}

json linux_part(const container_options& options, const std::string& cgroups_path) {
  json namespaces = json::array();
  for (const char* type : {"pid", "ipc", "network", "uts", "mount", "cgroup"}) {
    namespaces.push_back({{"type", type}});
  }
  json part{{"resources", {{"devices", device_rules(options)}}},
            {"cgroupsPath", cgroups_path},
            {"seccomp", seccomp()},
            {"rootfsPropagation", "rprivate"}};
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

json oci_config(const container_options& options, const std::string& cgroups_path) {
  auto mounts = system_mounts(options);
  for (const auto& mount : options.mounts) {
    mounts.push_back(bind(mount));
  }
  for (const auto& node : options.device_nodes) {
    mounts.push_back({{"destination", node},
                      {"type", "bind"},
                      {"source", node},
                      {"options", {"bind", "rw", "rprivate"}}});
  }
  return {{"ociVersion", "1.0.2"},
          {"process", process(options)},
          {"root", {{"path", "rootfs"}, {"readonly", true}}},
          {"hostname", "gpushm-test"},
          {"mounts", mounts},
          {"linux", linux_part(options, cgroups_path)}};
}

}  // namespace gpushm_testing
