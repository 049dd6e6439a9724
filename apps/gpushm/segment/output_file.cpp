// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "apps/gpushm/file_error.hpp"
#include "apps/gpushm/output.hpp"

namespace gpushm::cli {

namespace {

// umask can only be read by setting it; no other thread creates files at this point.
mode_t default_mode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

/// Blocks all signals of this thread for its lifetime. Objects must be destroyed in reverse order.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class blocked_signals {
 public:
  blocked_signals() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  blocked_signals(const blocked_signals&) = delete;
  blocked_signals& operator=(const blocked_signals&) = delete;
  ~blocked_signals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

output_file::output_file(std::string path) : path_(std::move(path)) {
  if (path_ == standard_output) {
    path_ = "standard output";
    fd_ = base::unique_fd(checked_file("write file", path_, "fcntl", [&] {
      return ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    }));
    return;
  }
  mode_t mode = default_mode();
  struct stat status {};
  if (::stat(path_.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) {
      throw error(errc::invalid_argument, "write file", path_, "it is a directory", "name a file");
    }
    if (!S_ISREG(status.st_mode)) {
      fd_ = base::unique_fd(checked_file("write file", path_, "open", [&] {
        return ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
      }));
      return;
    }
    mode = status.st_mode & 0777U;
    // A symbolic link is kept, and its target replaced.
    std::error_code failed;
    const auto real = std::filesystem::canonical(path_, failed);
    if (!failed) {
      path_ = real.string();
    }
  }
  std::string name = path_ + ".XXXXXX";
  const blocked_signals blocked;  // no signal between creating the file and guarding it
  fd_ = base::unique_fd(checked_file(
      "write file", path_, "mkostemp", [&] { return ::mkostemp(name.data(), O_CLOEXEC); }));
  temporary_ = name;
  guard_.emplace(temporary_);
  checked_file("write file", path_, "fchmod", [&] { return ::fchmod(fd_.get(), mode); });
}

output_file::~output_file() {
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

void output_file::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto count = checked_file("write file", path_, "write", [&] {
      return ::write(fd_.get(), bytes.data(), bytes.size());
    });
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void output_file::commit() {
  if (temporary_.empty()) {
    return;
  }
  checked_file(
      "write file", path_, "rename", [&] { return ::rename(temporary_.c_str(), path_.c_str()); });
  guard_.reset();
  temporary_.clear();
}

}  // namespace gpushm::cli
