// SPDX-License-Identifier: Apache-2.0
#include "domains/serve/run_directory.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/retry.hpp"
#include "gpushm/error.hpp"

namespace gpushm::domains {

namespace {

constexpr const char* create_operation = "create directory";

[[noreturn]] void refuse_directory(const std::string& path, int number, std::string_view call) {
  throw error(base::errc_of_errno(number),
              create_operation,
              path,
              fmt::format("{}: {}", call, base::errno_text(number)),
              fmt::format("create it for this uid: install -d -o {} -m 0755 DIRECTORY; or choose "
                          "another one: --run-dir DIR",
                          ::geteuid()));
}

/// An existing directory, or a new one, which belongs to root or to `uid`.
struct opened_directory {
  base::unique_fd file;
  struct stat about {};

  opened_directory(const std::string& path, mode_t mode, uid_t uid, bool may_be_link) {
    if (base::retry([&] { return ::mkdir(path.c_str(), mode); }) != 0 && errno != EEXIST) {
      refuse_directory(path, errno, "mkdir");
    }
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (may_be_link ? 0 : O_NOFOLLOW);
    file = base::unique_fd(base::retry([&] { return ::open(path.c_str(), flags); }));
    if (!file || ::fstat(file.get(), &about) != 0) {
      refuse_directory(path, errno, "open");
    }
    if (about.st_uid != uid && about.st_uid != 0) {
      throw error(errc::permission_denied,
                  create_operation,
                  path,
                  fmt::format("it exists and belongs to uid {}, which could replace its content",
                              about.st_uid),
                  fmt::format("remove it, or change its owner: chown {} {}", uid, path));
    }
  }
  /// Regardless of the umask.
  void set_mode(const std::string& path, mode_t mode) const {
    if ((about.st_mode & 07777U) != mode) {
      base::checked(create_operation, path, "fchmod", [&] { return ::fchmod(file.get(), mode); });
    }
  }
};

}  // namespace

void create_directory(const std::string& path, mode_t mode, bool may_be_link) {
  opened_directory(path, mode, ::geteuid(), may_be_link).set_mode(path, mode);
}

void prepare_run_directory(const std::string& path, uid_t uid, gid_t gid) {
  const opened_directory directory(path, public_mode, uid, false);
  // Before it belongs to the other uid: root without capabilities may only change its own.
  directory.set_mode(path, public_mode);
  if (directory.about.st_uid != uid || directory.about.st_gid != gid) {
    base::checked(
        create_operation, path, "fchown", [&] { return ::fchown(directory.file.get(), uid, gid); });
  }
}

void check_name(const std::string& domain) {
  if (domain.empty() || domain.front() == '.' || domain.find('/') != std::string::npos) {
    throw error(errc::invalid_argument,
                "open domain",
                domain,
                "not a valid domain name: it must be usable as a directory name",
                "choose a name without '/' that does not begin with '.'");
  }
}

std::vector<std::string> names_in(const std::string& directory) {
  std::error_code failed;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(directory, failed), end_; !failed && at != end_;
       at.increment(failed)) {
    names.push_back(at->path().filename().string());
  }
  return names;
}

}  // namespace gpushm::domains
