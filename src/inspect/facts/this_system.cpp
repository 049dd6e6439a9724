// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <set>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/text/text.hpp"
#include "gpu/driver/devices.hpp"
#include "inspect/facts/known_variables.hpp"
#include "inspect/facts/recording.hpp"

namespace gpushm::inspect {

namespace {

constexpr std::size_t read_limit_bytes = 65'536;
constexpr std::string_view kernel_log = "/dev/kmsg";

/// The kernel's log returns one record per read and would block for the next.
std::string read_xid_lines(int log) {
  std::string lines;
  std::array<char, 8192> record{};
  while (lines.size() < read_limit_bytes) {
    const auto count = base::retry([&] { return ::read(log, record.data(), record.size()); });
    if (count < 0 && errno == EPIPE) {  // overwritten before it was read
      continue;
    }
    if (count <= 0) {
      break;
    }
    const std::string_view text(record.data(), static_cast<std::size_t>(count));
    if (text.find("NVRM: Xid") != std::string_view::npos) {
      const std::string_view line = text.substr(text.find(';') + 1);
      lines += line.substr(0, line.find('\n'));
      lines += '\n';
    }
  }
  return lines;
}

/// Reads only known variables of another process's environment: others may be secret and must not
/// appear in recordings.
std::string known_lines(const std::string& environment) {
  std::string kept;
  std::size_t start = 0;
  while (start < environment.size()) {
    const std::size_t end = std::min(environment.find('\0', start), environment.size());
    const std::string_view line = std::string_view(environment).substr(start, end - start);
    const std::string_view name = line.substr(0, line.find('='));
    if (std::find(std::begin(known_variables), std::end(known_variables), name) !=
        std::end(known_variables)) {
      kept.append(line).push_back('\0');
    }
    start = end + 1;
  }
  return kept;
}

/// Keeps only the mounts that identify an engine or the kind of /dev/shm: other paths may be
/// private.
std::string known_mounts(const std::string& mounts) {
  std::string kept;
  for (const std::string_view line : base::lines_of(mounts)) {
    const auto words = base::split(line, " ");
    for (const std::string_view point :
         {"/dev/shm", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}) {
      if (words.size() > 4 && words[4] == point) {
        kept.append(line).push_back('\n');
      }
    }
  }
  return kept;
}

std::string type_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return "file";
    case S_IFDIR:
      return "directory";
    case S_IFCHR:
      return "character device";
    case S_IFSOCK:
      return "socket";
    default:
      return "other";
  }
}

class live_system final : public system {
 public:
  std::optional<std::string> read(const std::string& path) override {
    const base::unique_fd file(base::retry(
        [&] { return ::open(at(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); }));
    if (!file) {
      return std::nullopt;
    }
    if (path == kernel_log) {
      return read_xid_lines(file.get());
    }
    std::string text(read_limit_bytes, '\0');
    std::size_t used = 0;
    while (used < text.size()) {
      const auto count =
          base::retry([&] { return ::read(file.get(), text.data() + used, text.size() - used); });
      if (count < 0) {
        return std::nullopt;
      }
      if (count == 0) {
        break;
      }
      used += static_cast<std::size_t>(count);
    }
    text.resize(used);
    if (path.ends_with("/environ")) {
      return known_lines(text);
    }
    return path.ends_with("/mountinfo") ? known_mounts(text) : text;
  }

  std::optional<std::string> link(const std::string& path) override {
    std::string target(4096, '\0');
    const auto count = ::readlink(at(path).c_str(), target.data(), target.size());
    if (count < 0) {
      return std::nullopt;
    }
    target.resize(static_cast<std::size_t>(count));
    return target;
  }

  std::vector<std::string> list(const std::string& path) override {
    std::vector<std::string> names;
    DIR* const directory = ::opendir(at(path).c_str());
    if (directory == nullptr) {
      return names;
    }
    // One directory stream per call: no other thread reads it.
    while (const dirent* entry =
               ::readdir(directory)) {  // NOLINT(concurrency-mt-unsafe): see above
      const std::string_view name = static_cast<const char*>(entry->d_name);
      if (name != "." && name != "..") {
        names.emplace_back(name);
      }
    }
    ::closedir(directory);
    std::sort(names.begin(), names.end());
    return names;
  }

  std::optional<file_status> status(const std::string& path) override {
    struct stat seen {};
    if (::stat(at(path).c_str(), &seen) != 0) {
      return std::nullopt;
    }
    file_status status;
    status.type = type_of(seen.st_mode);
    status.mode = seen.st_mode & 07777U;
    status.uid = seen.st_uid;
    status.gid = seen.st_gid;
    if (S_ISCHR(seen.st_mode)) {
      status.major = major(seen.st_rdev);
      status.minor = minor(seen.st_rdev);
    }
    return status;
  }

  int open_error(const std::string& path) override {
    const base::unique_fd opened(base::retry(
        [&] { return ::open(at(path).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); }));
    return opened ? 0 : errno;
  }

  std::uint64_t file_system_bytes(const std::string& path) override {
    struct statvfs seen {};
    return ::statvfs(at(path).c_str(), &seen) == 0
               ? static_cast<std::uint64_t>(seen.f_blocks) * seen.f_frsize
               : 0;
  }

  std::optional<std::string> label(const std::string& path) override {
    std::string text(4096, '\0');
    const auto count = ::getxattr(at(path).c_str(), "security.selinux", text.data(), text.size());
    if (count <= 0) {
      return std::nullopt;
    }
    text.resize(static_cast<std::size_t>(count));
    while (!text.empty() && text.back() == '\0') {
      text.pop_back();
    }
    return text;
  }

  std::vector<node_holder> holders() override {
    constexpr std::string_view node_stem = "/nvidia";
    const std::string prefix = driver::dev_root() + std::string(node_stem);
    std::vector<node_holder> holders;
    for (const std::string& name : list("/proc")) {
      const auto pid = base::number<std::int32_t>(name);
      if (!pid || *pid == ::getpid()) {
        continue;
      }
      const std::string root = "/proc/" + name;
      const std::string descriptors = root + "/fd";
      std::set<std::string> nodes;
      for (const std::string& descriptor : list(descriptors)) {
        std::string place = descriptors;
        place.append("/").append(descriptor);
        const std::string target = link(place).value_or(std::string());
        if (target.starts_with(prefix)) {
          nodes.insert("/dev" + target.substr(prefix.size() - node_stem.size()));
        }
      }
      if (!nodes.empty()) {
        holders.push_back({*pid,
                           std::string(base::trim(read(root + "/comm").value_or("unknown"))),
                           {nodes.begin(), nodes.end()}});
      }
    }
    std::sort(holders.begin(), holders.end(), [](const node_holder& a, const node_holder& b) {
      return a.pid < b.pid;
    });
    return holders;
  }

  std::optional<std::string> variable(const std::string& name) override {
    const char* const value =
        std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): never set
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }

 private:
  /// Applies driver::proc_root and driver::dev_root.
  static std::string at(const std::string& path) {
    if (path.starts_with("/proc/driver/nvidia") || path == "/proc/devices") {
      return driver::proc_root() + path.substr(5);
    }
    if (path == "/dev" || path.starts_with("/dev/nvidia")) {
      return driver::dev_root() + path.substr(4);
    }
    return path;
  }
};

}  // namespace

std::unique_ptr<system> this_system() {
  return std::make_unique<live_system>();
}

}  // namespace gpushm::inspect
