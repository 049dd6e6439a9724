// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "containers/cdi/document/parse.hpp"

namespace gpushm::cdi {

namespace {

parsed refused(const std::string& path, const char* rule, std::string text) {
  parsed result;
  result.problems.push_back({path, 0, 0, rule, std::move(text)});
  return result;
}

parsed unreadable(const std::string& path, int number) {
  return refused(path, "unreadable", "it cannot be read: " + base::errno_text(number));
}

}  // namespace

parsed load(const std::string& path) {
  // O_NONBLOCK: the path may be a pipe.
  const base::unique_fd file(base::retry(
      [&path] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); }));
  if (!file) {
    return unreadable(path, errno);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    return unreadable(path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return refused(path, "not-a-file", "it is not a regular file; remove it");
  }
  if (std::cmp_greater(status.st_size, max_document_bytes)) {
    return refused(path, "too-large", "it is larger than 4 MiB; shorten it");
  }
  // The file may grow meanwhile: reads one byte more to detect that.
  std::string text(static_cast<std::size_t>(status.st_size) + 1, '\0');
  std::size_t have = 0;
  while (true) {
    const auto got =
        base::retry([&] { return ::read(file.get(), text.data() + have, text.size() - have); });
    if (got < 0) {
      return unreadable(path, errno);
    }
    if (got == 0) {
      break;
    }
    have += static_cast<std::size_t>(got);
    if (have > max_document_bytes) {
      return refused(path, "too-large", "it is larger than 4 MiB; shorten it");
    }
    if (have == text.size()) {
      text.resize(text.size() * 2);
    }
  }
  text.resize(have);
  return parse(text, path);
}

}  // namespace gpushm::cdi
