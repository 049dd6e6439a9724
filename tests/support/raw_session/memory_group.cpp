// SPDX-License-Identifier: Apache-2.0
#include "tests/support/raw_session/memory_group.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/files/syscall.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm_testing {
namespace {

bool write_file(const std::string& path, std::string_view text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

/// The number after `key` in a file of "key number" lines; with an empty key the file is the
/// number.
std::uint64_t number_in(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (key.empty()) {
    file >> value;
    return file ? value : 0;
  }
  for (std::string word; file >> word >> value;) {
    if (word == key) {
      return value;
    }
  }
  return 0;
}

/// This process's group in the unified hierarchy, as a path below the mount; empty: unknown.
std::string own_unified_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("0::", 0) == 0) {
      return line.substr(3);
    }
  }
  return {};
}

}  // namespace

memory_group::memory_group(std::string path, bool unified) noexcept
    : path_(std::move(path)), unified_(unified) {}

memory_group::memory_group(memory_group&& other) noexcept
    : path_(std::exchange(other.path_, {})), unified_(other.unified_) {}

memory_group::~memory_group() {
  if (!path_.empty()) {
    // Its processes leave it shortly after they were reaped.
    (void)eventually([this] { return ::rmdir(path_.c_str()) == 0 || errno == ENOENT; },
                     std::chrono::seconds(5));
  }
}

std::optional<memory_group> memory_group::make(std::uint64_t limit_bytes, std::string& why_not) {
  static unsigned created = 0;
  const auto name = "/gpushm-test-" + std::to_string(::getpid()) + "-" + std::to_string(++created);
  const std::string root = "/sys/fs/cgroup";
  const bool unified = ::access((root + "/cgroup.controllers").c_str(), F_OK) == 0;
  const auto parent = unified ? root + own_unified_group() : root + "/memory";
  if (::mkdir((parent + name).c_str(), 0755) != 0) {
    why_not = "no cgroup can be created in " + parent + ": " + gpushm::base::errno_text(errno);
    return std::nullopt;
  }
  memory_group group(parent + name, unified);
  const auto limit = std::to_string(limit_bytes);
  if (unified) {
    (void)write_file(parent + "/cgroup.subtree_control", "+memory");
  }
  if (!write_file(group.path_ + (unified ? "/memory.max" : "/memory.limit_in_bytes"), limit)) {
    why_not = "the cgroup " + group.path_ + " does not accept a memory limit";
    return std::nullopt;
  }
  if (unified) {
    (void)write_file(group.path_ + "/memory.swap.max", "0");
  }
  return group;
}

bool memory_group::add(pid_t pid) const {
  return write_file(path_ + "/cgroup.procs", std::to_string(pid));
}

std::uint64_t memory_group::kills() const {
  return number_in(path_ + (unified_ ? "/memory.events" : "/memory.oom_control"), "oom_kill");
}

std::uint64_t memory_group::peak_bytes() const {
  return number_in(path_ + (unified_ ? "/memory.peak" : "/memory.max_usage_in_bytes"), {});
}

}  // namespace gpushm_testing
