// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/peer.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <sstream>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/child_process.hpp"
#include "base/process/signals.hpp"
#include "gpu/driver/device_text.hpp"

namespace gpushm::cli {

namespace {

/// Thrown if the result cannot be determined; `why` becomes `peer_nodes::problem`.
struct unknowable {
  std::string why;
};

constexpr std::string_view as_root = "; run this as root, outside of containers";

std::string link_text(int directory, const char* name) {
  std::array<char, 256> text{};
  const auto count = ::readlinkat(directory, name, text.data(), text.size());
  return count > 0 ? std::string(text.data(), static_cast<std::size_t>(count)) : std::string();
}

std::string read_at(int directory, const char* name) {
  const base::unique_fd file(::openat(directory, name, O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 4096> block{};
  for (;;) {
    const auto count = base::retry([&] { return ::read(file.get(), block.data(), block.size()); });
    if (count <= 0 || text.size() > 65'536) {
      return text;
    }
    text.append(block.data(), static_cast<std::size_t>(count));
  }
}

// ---- the peer's properties ----

/// The path of the cgroup whose devices controller (v1) or program (v2) applies.
struct device_cgroup {
  bool unified = false;
  std::string path;
  friend bool operator==(const device_cgroup&, const device_cgroup&) = default;
};

std::optional<device_cgroup> device_cgroup_in(const std::string& text) {
  std::optional<device_cgroup> unified;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    if (controllers.find(",devices,") != std::string::npos) {
      return device_cgroup{false, line.substr(second + 1)};
    }
    if (controllers == ",,") {
      unified = device_cgroup{true, line.substr(second + 1)};
    }
  }
  return unified;
}

/// The directory of `cgroup` in the file system, from the text of /proc/self/mountinfo.
std::optional<std::string> cgroup_directory(const device_cgroup& cgroup,
                                            const std::string& mountinfo) {
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    std::string root;
    std::string point;
    words >> word >> word >> word >> root >> point;
    while (words >> word && word != "-") {
    }
    std::string type;
    std::string options;
    words >> type >> word >> options;
    const bool fits = cgroup.unified
                          ? type == "cgroup2"
                          : type == "cgroup" &&
                                fmt::format(",{},", options).find(",devices,") != std::string::npos;
    if (!fits) {
      continue;
    }
    if (root == "/") {
      return point + cgroup.path;
    }
    if (cgroup.path == root || cgroup.path.starts_with(root + "/")) {
      return point + cgroup.path.substr(root.size());
    }
  }
  return std::nullopt;
}

struct credentials {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
  std::uint64_t capabilities = 0;
  friend bool operator==(const credentials&, const credentials&) = default;
};

credentials credentials_in(const std::string& status) {
  credentials credentials;
  std::istringstream lines(status);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    std::uint64_t skipped = 0;
    words >> key;
    if (key == "Uid:") {
      words >> skipped >> credentials.uid;  // effective
    } else if (key == "Gid:") {
      words >> skipped >> credentials.gid;
    } else if (key == "Groups:") {
      for (gid_t group = 0; words >> group;) {
        credentials.groups.push_back(group);
      }
    } else if (key == "CapEff:") {
      words >> std::hex >> credentials.capabilities;
    }
  }
  return credentials;
}

/// The child's input, created before the fork. An invalid descriptor means nothing to change.
/// Move-only. Thread-safety: distinct objects: safe; shared objects: unsafe.
struct plan {
  base::unique_fd cgroup;
  base::unique_fd mounts;
  base::unique_fd root;
  std::optional<credentials> become;
  std::string dev_root;
};

base::unique_fd open_cgroup(int peer, int self) {
  const auto wanted = device_cgroup_in(read_at(peer, "cgroup"));
  if (!wanted || wanted == device_cgroup_in(read_at(self, "cgroup"))) {
    return {};
  }
  if (wanted->path.find("/..") != std::string::npos) {
    throw unknowable{fmt::format("its cgroup {} is not visible here{}", wanted->path, as_root)};
  }
  const auto directory = cgroup_directory(*wanted, read_at(self, "mountinfo"));
  if (!directory) {
    throw unknowable{
        fmt::format("the cgroups that control devices are not mounted here{}", as_root)};
  }
  const std::string file = *directory + "/cgroup.procs";
  base::unique_fd opened(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (!opened) {
    throw unknowable{fmt::format(
        "its cgroup cannot be joined: open({}): {}{}", file, base::errno_text(errno), as_root)};
  }
  return opened;
}

base::unique_fd open_of(int peer, const char* name, int flags) {
  base::unique_fd opened(::openat(peer, name, flags | O_CLOEXEC));
  if (!opened) {
    throw unknowable{
        fmt::format("its {} cannot be opened: {}{}", name, base::errno_text(errno), as_root)};
  }
  return opened;
}

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

plan make_plan(pid_t pid, const std::string& dev_root) {
  // All files are read through one descriptor: if the PID is reused, reading fails.
  const std::string directory = "/proc/" + std::to_string(pid);
  const base::unique_fd peer(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!peer) {
    throw unknowable{fmt::format("process {} does not exist", pid)};
  }
  const base::unique_fd self(::open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC));
  plan result;
  result.dev_root = dev_root;
  result.cgroup = open_cgroup(peer.get(), self.get());
  const std::string mounts = link_text(peer.get(), "ns/mnt");
  if (mounts.empty() || mounts != link_text(self.get(), "ns/mnt")) {
    result.mounts = open_of(peer.get(), "ns/mnt", O_RDONLY);
  }
  base::unique_fd root = open_of(peer.get(), "root", O_PATH | O_DIRECTORY);
  const base::unique_fd own_root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (result.mounts || !same_file(root.get(), own_root.get())) {
    result.root = std::move(root);
  }
  const std::string status = read_at(peer.get(), "status");
  if (status.find("CapEff:") == std::string::npos) {
    throw unknowable{fmt::format("process {} exited", pid)};
  }
  credentials wanted = credentials_in(status);
  const credentials own = credentials_in(read_at(self.get(), "status"));
  // Capabilities in another user namespace have no effect on the machine's device nodes.
  wanted.capabilities = link_text(peer.get(), "ns/user") == link_text(self.get(), "ns/user")
                            ? wanted.capabilities & own.capabilities
                            : 0;
  if (wanted != own) {
    result.become = std::move(wanted);
  }
  return result;
}

// ---- the child ----

enum class step : std::int32_t { node, cgroup, mounts, root, credentials, list, done };

/// A record that the child writes to its pipe atomically.
struct child_record {
  step which = step::node;
  std::int32_t minor = -1;
  std::int32_t error = 0;
};

std::string_view attempt_text(step step) {
  switch (step) {
    case step::cgroup:
      return "its cgroup cannot be joined";
    case step::mounts:
      return "its mount namespace cannot be entered";
    case step::root:
      return "its root directory cannot be entered";
    case step::credentials:
      return "its user and groups cannot be assumed";
    case step::list:
      return "the directory of its device nodes cannot be read";
    case step::node:
    case step::done:
      break;
  }
  return "?";
}

bool apply(const credentials& credentials) {
  if (::setgroups(credentials.groups.size(), credentials.groups.data()) != 0 ||
      ::setresgid(credentials.gid, credentials.gid, credentials.gid) != 0 ||
      ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0 ||
      ::setresuid(credentials.uid, credentials.uid, credentials.uid) != 0) {
    return false;
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> sets{};
  for (std::size_t i = 0; i < sets.size(); ++i) {
    sets[i].effective = static_cast<std::uint32_t>(credentials.capabilities >> (32 * i));
    sets[i].permitted = sets[i].effective;
  }
  return ::syscall(SYS_capset, &header, sets.data()) == 0;
}

[[noreturn]] void try_nodes(const plan& plan, pid_t parent, int notes) {
  const auto send = [&](step step, std::int32_t minor, std::int32_t error) {
    const child_record note{step, minor, error};
    static_cast<void>(base::retry([&] { return ::write(notes, &note, sizeof note); }));
  };
  const auto require = [&](bool succeeded, step step) {
    if (!succeeded) {
      send(step, -1, errno);
      ::_exit(1);
    }
  };
  require(!plan.cgroup || ::write(plan.cgroup.get(), "0", 1) == 1, step::cgroup);
  require(!plan.mounts || ::setns(plan.mounts.get(), CLONE_NEWNS) == 0, step::mounts);
  require(!plan.root || (::fchdir(plan.root.get()) == 0 && ::chroot(".") == 0), step::root);
  require(!plan.become || apply(*plan.become), step::credentials);
  // After changing the user, which clears the setting.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(1);
  }
  DIR* const listing = ::opendir(plan.dev_root.c_str());
  require(listing != nullptr || errno == ENOENT, step::list);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): this process has one thread
  while (const dirent* const entry = listing == nullptr ? nullptr : ::readdir(listing)) {
    if (const auto minor = driver::minor_of_node(entry->d_name)) {
      // Non-blocking, in case the peer has replaced a node by something that blocks on open.
      const base::unique_fd opened(
          ::openat(::dirfd(listing), entry->d_name, O_RDWR | O_CLOEXEC | O_NONBLOCK));
      send(step::node, *minor, opened ? 0 : errno);
    }
  }
  send(step::done, -1, 0);
  ::_exit(0);
}

peer_nodes query_child(const plan& plan, base::deadline until) {
  std::array<int, 2> ends{};
  base::checked("try device nodes", {}, "pipe2", [&] { return ::pipe2(ends.data(), O_CLOEXEC); });
  const base::unique_fd read_end(ends[0]);
  base::unique_fd write_end(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t child = base::checked("try device nodes", {}, "fork", [] { return ::fork(); });
  if (child == 0) {
    try_nodes(plan, parent, write_end.get());
  }
  write_end.reset();
  peer_nodes nodes;
  nodes.problem = "the child process that opens its device nodes exited early";
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd waiting{read_end.get(), POLLIN, 0};
    const int ready = base::retry([&] {
      return ::poll(&waiting, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    });
    if (ready == 0) {
      nodes.problem = "opening its device nodes took too long";
      break;
    }
    child_record note;
    if (ready < 0 ||
        base::retry([&] { return ::read(read_end.get(), &note, sizeof note); }) != sizeof note) {
      break;
    }
    if (note.which == step::done) {
      nodes.problem.clear();
      break;
    }
    if (note.which == step::node) {
      nodes.tried.push_back({note.minor, note.error});
      continue;
    }
    nodes.problem = fmt::format("{}: {}", attempt_text(note.which), base::errno_text(note.error));
    if (note.error == EPERM || note.error == EACCES) {
      nodes.problem += as_root;
    }
    break;
  }
  base::signal_process(child, SIGKILL);
  base::retry([&] { return ::waitpid(child, nullptr, 0); });
  return nodes;
}

}  // namespace

peer_nodes minors_of(pid_t peer,
                     const std::string& dev_root,
                     std::chrono::milliseconds timeout) noexcept {
  peer_nodes nodes;
  try {
    nodes = query_child(make_plan(peer, dev_root), base::deadline_in(timeout));
  } catch (const unknowable& reason) {
    nodes.problem = reason.why;
  } catch (const std::exception& failure) {
    nodes.problem = failure.what();
  }
  if (nodes.problem.empty()) {
    std::sort(nodes.tried.begin(), nodes.tried.end(), [](const auto& a, const auto& b) {
      return a.minor < b.minor;
    });
    nodes.minors.emplace();
    for (const tried_node& each : nodes.tried) {
      if (each.error == 0) {
        nodes.minors->push_back(each.minor);
      }
    }
  }
  return nodes;
}

}  // namespace gpushm::cli
