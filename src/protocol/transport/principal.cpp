// SPDX-License-Identifier: Apache-2.0
#include "protocol/transport/principal.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"

namespace gpushm::transport {

namespace {

constexpr long pidfs_magic = 0x50494446;  // PID_FS_MAGIC of include/uapi/linux/magic.h, Linux 6.9
// include/uapi/linux/pidfd.h, Linux 6.11.
constexpr unsigned long get_cgroup_namespace = _IO(0xFF, 1);
constexpr unsigned long get_pid_namespace = _IO(0xFF, 5);
// The machine's namespaces: include/linux/proc_ns.h.
constexpr ino_t machines_pid_namespace = 0xEFFFFFFC;
constexpr ino_t machines_cgroup_namespace = 0xEFFFFFFB;
constexpr std::size_t container_id_digits = 64;  // of docker, containerd, CRI-O, podman
constexpr std::size_t shown_digits = 16;

bool is_hex(std::string_view text) {
  return std::all_of(
      text.begin(), text.end(), [](unsigned char each) { return std::isxdigit(each) != 0; });
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 10 && std::all_of(text.begin(), text.end(), [](char each) {
    return each >= '0' && each <= '9';
  });
}

/// The UID of a pod: 36 characters, with dashes or, in names of systemd, underscores; or the 32
/// digits that the kubelet gives a static pod. Nothing else, so that a name has a bound and no
/// character that a log or a metric must escape.
bool is_pod_uid(std::string_view text) {
  constexpr std::size_t uid_length = 36;
  constexpr std::size_t static_uid_length = 32;
  const bool has_length = text.size() == uid_length || text.size() == static_uid_length;
  return has_length && std::all_of(text.begin(), text.end(), [&](char each) {
           const bool is_dash = each == '-' || each == '_';
           return is_hex({&each, 1}) || (is_dash && text.size() == uid_length);
         });
}

/// "pod1234-…" of "kubepods-burstable-pod1234_….slice" (systemd) or "pod1234-…" (cgroupfs).
std::optional<std::string> pod_in(std::string_view component) {
  // With a --cgroup-root of the kubelet, the names begin with that ("kubelet-kubepods-…").
  if (component.ends_with(".slice") && component.find("kubepods") != std::string_view::npos) {
    component.remove_suffix(6);
    const auto at = component.rfind("-pod");
    if (at == std::string_view::npos) {
      return std::nullopt;
    }
    component.remove_prefix(at + 1);
  }
  if (!component.starts_with("pod") || !is_pod_uid(component.substr(3))) {
    return std::nullopt;
  }
  std::string uid(component.substr(3));
  std::replace(uid.begin(), uid.end(), '_', '-');
  return "pod " + uid;
}

/// "container ID" of "ID", "docker-ID.scope", "cri-containerd-ID.scope" and similar.
std::optional<std::string> container_in(std::string_view component) {
  if (component.ends_with(".scope")) {
    component.remove_suffix(6);
  }
  if (const auto at = component.rfind('-'); at != std::string_view::npos) {
    component.remove_prefix(at + 1);
  }
  if (component.size() != container_id_digits || !is_hex(component)) {
    return std::nullopt;
  }
  return "container " + std::string(component.substr(0, shown_digits));
}

std::optional<std::string> tenant_of_path(std::string_view path) {
  std::string_view before;
  while (!path.empty()) {
    const auto slash = path.find('/');
    const std::string_view component = path.substr(0, slash);
    path.remove_prefix(slash == std::string_view::npos ? path.size() : slash + 1);
    if (before == "user.slice" && component.starts_with("user-") && component.ends_with(".slice")) {
      const std::string_view uid = component.substr(5, component.size() - 5 - 6);
      if (is_number(uid)) {
        return "uid " + std::string(uid);
      }
    }
    for (auto* const find : {&pod_in, &container_in}) {
      if (auto found = find(component)) {
        return found;
      }
    }
    before = component;
  }
  return std::nullopt;
}

bool is_alive(int pidfd) {
  pollfd entry{pidfd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 0;
}

/// Whether the text of a /proc/PID/status file names one PID only: the process is in the PID
/// namespace of procfs, and in none below it.
bool has_one_pid(std::string_view status) {
  constexpr std::string_view label = "\nNSpid:\t";
  const auto at = status.find(label);
  if (at == std::string_view::npos) {
    return false;
  }
  status.remove_prefix(at + label.size());
  const std::string_view numbers = status.substr(0, status.find('\n'));
  return !numbers.empty() && numbers.find('\t') == std::string_view::npos;
}

/// 0: the kernel does not say.
ino_t namespace_of(int pidfd, unsigned long request) {
  const base::unique_fd found(::ioctl(pidfd, request, 0));
  struct stat info {};
  return found && ::fstat(found.get(), &info) == 0 ? info.st_ino : 0;
}

/// With control groups of version 1, containers also have the machine's namespace of them.
bool has_machines_namespaces(int pidfd) {
  return namespace_of(pidfd, get_pid_namespace) == machines_pid_namespace &&
         namespace_of(pidfd, get_cgroup_namespace) == machines_cgroup_namespace;
}

}  // namespace

std::optional<std::string> tenant_of_cgroups(std::string_view text) {
  // "HIERARCHY:CONTROLLERS:PATH"; one line with version 2, one per hierarchy with version 1.
  while (!text.empty()) {
    const auto end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    for (int field = 0; field < 2; ++field) {
      const auto colon = line.find(':');
      line.remove_prefix(colon == std::string_view::npos ? line.size() : colon + 1);
    }
    if (auto found = tenant_of_path(line)) {
      return found;
    }
  }
  return std::nullopt;
}

peer_principal principal_of(const peer_credentials& peer, int pidfd) {
  // The peer must still be alive after the file was read: otherwise the number may be another
  // process's.
  if (peer.pid > 0 && pidfd >= 0) {
    const auto text = base::read_small_file("/proc/" + std::to_string(peer.pid) + "/cgroup");
    if (text && is_alive(pidfd)) {
      if (auto tenant = tenant_of_cgroups(*text)) {
        return {*std::move(tenant), true};
      }
    }
  }
  if (peer.uid_known) {
    return {"uid " + std::to_string(peer.uid), true};
  }
  if (pidfd >= 0) {
    struct statfs where {};
    struct stat info {};
    if (::fstatfs(pidfd, &where) == 0 && where.f_type == pidfs_magic &&
        ::fstat(pidfd, &info) == 0) {
      return {"process " + std::to_string(info.st_ino), false};
    }
    if (peer.pid > 0) {
      return {"process " + std::to_string(peer.pid), false};
    }
  }
  return {"unidentified processes", true};
}

bool is_in_no_other_container(const peer_credentials& peer, int pidfd) {
  if (pidfd < 0) {
    return false;
  }
  if (peer.pid <= 0) {  // not in this PID namespace or one below it
    return has_machines_namespaces(pidfd);
  }
  const std::string directory = "/proc/" + std::to_string(peer.pid);
  const auto status = base::read_small_file(directory + "/status");
  const auto groups = base::read_small_file(directory + "/cgroup");
  const auto own = base::read_small_file("/proc/self/cgroup");
  if (!status || !groups || !own || !is_alive(pidfd)) {
    return false;
  }
  const auto tenant = tenant_of_cgroups(*groups);
  return has_one_pid(*status) &&
         (!tenant || tenant->starts_with("uid ") || tenant == tenant_of_cgroups(*own));
}

}  // namespace gpushm::transport
