// SPDX-License-Identifier: Apache-2.0
// The config's file: read whole, replaced whole.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/syscall.hpp"
#include "base/unique_fd.hpp"
#include "spec/inject_config.hpp"

namespace gpushm::cdi {

namespace {

constexpr std::string_view reading = "read config";
constexpr std::string_view writing = "write config";

[[noreturn]] void refuse_large(const std::string& name) {
  std::string cause = "it has more than ";
  cause += std::to_string(max_config_bytes >> 20U);
  cause += " MiB";
  throw error(errc::invalid_argument, reading, name, cause);
}

std::string read_all(int fd, const std::string& name, std::size_t expected) {
  std::string text;
  std::size_t used = 0;
  text.resize(expected + 1);
  for (;;) {
    const auto count = base::checked(
        reading, name, "read", [&] { return ::read(fd, text.data() + used, text.size() - used); });
    if (count == 0) {
      break;
    }
    used += static_cast<std::size_t>(count);
    if (used > max_config_bytes) {
      refuse_large(name);
    }
    if (used == text.size()) {
      text.resize(std::min(used * 2, max_config_bytes + 1));
    }
  }
  text.resize(used);
  return text;
}

/// A new file that goes again unless it is renamed.
class new_file {
 public:
  explicit new_file(std::string target)
      : target_(std::move(target)),
        path_(target_ + ".XXXXXX"),
        fd_(base::checked(
            writing, target_, "mkostemp", [&] { return ::mkostemp(path_.data(), O_CLOEXEC); })) {}
  new_file(const new_file&) = delete;
  new_file& operator=(const new_file&) = delete;
  ~new_file() {
    if (!committed_) {
      ::unlink(path_.c_str());
    }
  }

  void be_like(const struct stat& like) {
    // Somebody who may write the file need not be its owner.
    if (like.st_uid != ::geteuid() || like.st_gid != ::getegid()) {
      base::checked(writing, target_, "fchown", [&] {
        return ::fchown(fd_.get(), like.st_uid, like.st_gid);
      });
    }
    base::checked(
        writing, target_, "fchmod", [&] { return ::fchmod(fd_.get(), like.st_mode & 07777U); });
  }

  void write(std::string_view text) {
    while (!text.empty()) {
      const auto count = base::checked(
          writing, target_, "write", [&] { return ::write(fd_.get(), text.data(), text.size()); });
      text.remove_prefix(static_cast<std::size_t>(count));
    }
  }
  void commit() {
    base::checked(
        writing, target_, "rename", [&] { return ::rename(path_.c_str(), target_.c_str()); });
    committed_ = true;
  }

 private:
  std::string target_;
  std::string path_;
  base::unique_fd fd_;
  bool committed_ = false;
};

}  // namespace

std::string read_config_text(const std::string& path) {
  if (path == "-") {
    return read_all(STDIN_FILENO, "standard input", 65'536);
  }
  // Not to wait for a writer when it is a pipe.
  const base::unique_fd fd(base::checked(reading, path, "open", [&] {
    return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  }));
  struct stat status {};
  base::checked(reading, path, "fstat", [&] { return ::fstat(fd.get(), &status); });
  if (!S_ISREG(status.st_mode)) {
    throw error(errc::invalid_argument, reading, path, "it is not a regular file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size > max_config_bytes) {
    refuse_large(path);
  }
  return read_all(fd.get(), path, size);
}

void replace_file(const std::string& path, std::string_view text) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  if (!real) {
    base::throw_errno(errno, writing, path, "realpath");
  }
  struct stat status {};
  base::checked(writing, path, "stat", [&] { return ::stat(real.get(), &status); });
  new_file made(real.get());
  made.be_like(status);
  made.write(text);
  made.commit();
}

}  // namespace gpushm::cdi
