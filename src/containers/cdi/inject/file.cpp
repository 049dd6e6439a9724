// SPDX-License-Identifier: Apache-2.0
// Reads and replaces the config file as a whole.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/files/staged_file.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "containers/cdi/inject/config.hpp"

namespace gpushm::cdi {

namespace {

constexpr std::string_view reading = "read config";
constexpr const char* writing = "write config";

[[noreturn]] void refuse_large(const std::string& name) {
  std::string cause = "it is larger than ";
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

void copy_owner_and_mode(const struct stat& like,
                         const base::staged_file& created,
                         const std::string& path) {
  // A user with write permission may not be the owner.
  if (like.st_uid != ::geteuid() || like.st_gid != ::getegid()) {
    base::checked(
        writing, path, "fchown", [&] { return ::fchown(created.fd(), like.st_uid, like.st_gid); });
  }
  base::checked(
      writing, path, "fchmod", [&] { return ::fchmod(created.fd(), like.st_mode & 07777U); });
}

}  // namespace

std::string read_config_text(const std::string& path) {
  if (path == "-") {
    return read_all(STDIN_FILENO, "standard input", 65'536);
  }
  // O_NONBLOCK: open must not wait for a writer of a pipe.
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
  base::staged_file created(writing, real.get());
  copy_owner_and_mode(status, created, real.get());
  created.write(text);
  created.commit();
}

}  // namespace gpushm::cdi
