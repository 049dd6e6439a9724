// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/document/host_check.hpp"

#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <optional>
#include <set>

#include "base/files/syscall.hpp"
#include "base/text/quoted.hpp"

namespace gpushm::cdi {

namespace {

class host_check {
 public:
  explicit host_check(const std::string& file) : file_(file) {}

  void check(const edits& changes) {
    for (const device_node& node : changes.device_nodes) {
      check(node);
    }
    for (const mount& one : changes.mounts) {
      // The source of other file system types is not a file.
      if (one.type.empty() || one.type == "bind" || one.type == "none") {
        static_cast<void>(status_of(one.host_path, "the mount"));
      }
    }
    for (const hook& one : changes.hooks) {
      static_cast<void>(status_of(one.path, "the hook"));
    }
  }

  std::vector<yaml::problem> found;

 private:
  void check(const device_node& node) {
    const std::string& path = node.host_path.empty() ? node.path : node.host_path;
    const auto status = status_of(path, "the device node");
    if (!status) {
      return;
    }
    const bool character = S_ISCHR(status->st_mode);
    if (!character && !S_ISBLK(status->st_mode)) {
      if (node.type != "p" || !S_ISFIFO(status->st_mode)) {
        report(
            path, "not-a-device", base::in_quotes(path) + " is not a device node on this machine");
      }
      return;
    }
    const auto major = static_cast<std::int64_t>(major_of(*status));
    const auto minor = static_cast<std::int64_t>(minor_of(*status));
    const bool numbers = node.major != 0 || node.minor != 0;
    if (numbers && (node.major != major || node.minor != minor)) {
      report(path,
             "other-numbers",
             fmt::format("{} has major:minor {}:{} on this machine, but the document has {}:{}; "
                         "generate it again",
                         base::in_quotes(path),
                         major,
                         minor,
                         node.major,
                         node.minor));
    }
  }

  static unsigned major_of(const struct stat& status) { return ::major(status.st_rdev); }
  static unsigned minor_of(const struct stat& status) { return ::minor(status.st_rdev); }

  std::optional<struct stat> status_of(const std::string& path, const char* subject) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) {
      return status;
    }
    report(path,
           "not-on-host",
           fmt::format("{} {} cannot be accessed on this machine: {}",
                       subject,
                       base::in_quotes(path),
                       base::errno_text(errno)));
    return std::nullopt;
  }

  void report(const std::string& path, const char* rule, std::string text) {
    if (reported_.insert(path).second) {
      found.push_back({file_, 0, 0, rule, std::move(text)});
    }
  }

  const std::string& file_;
  std::set<std::string> reported_;
};

}  // namespace

std::vector<yaml::problem> check_on_host(const document& content, const std::string& file) {
  host_check check(file);
  check.check(content.changes);
  for (const device& each : content.devices) {
    check.check(each.changes);
  }
  return std::move(check.found);
}

}  // namespace gpushm::cdi
