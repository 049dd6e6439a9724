// SPDX-License-Identifier: Apache-2.0
#include "apps/support/temp_directory.hpp"

#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/files/syscall.hpp"
#include "base/report/log.hpp"

namespace gpushm::app {

std::string make_temp_directory(std::string_view prefix) {
  std::string path;
  const char* named =
      std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe): no code sets variables
  const auto make_in = [&](const std::string& root) {
    path = fmt::format("{}/{}-XXXXXX", root, prefix);
    return ::mkdtemp(path.data()) != nullptr;
  };
  const bool chosen = named != nullptr && *named == '/';
  if (make_in(chosen ? named : "/tmp")) {
    return path;
  }
  // In a container with a read-only root, this is often the only writable directory.
  const int number = errno;
  if (!chosen && make_in("/dev/shm")) {
    return path;
  }
  base::throw_errno(number, "create temporary directory", chosen ? named : "/tmp", "mkdtemp");
}

temp_directory::~temp_directory() {
  std::error_code failed;
  std::filesystem::remove_all(path_, failed);
  if (failed) {
    base::log(log_level::warning, fmt::format("cannot remove {}: {}", path_, failed.message()));
  }
}

}  // namespace gpushm::app
