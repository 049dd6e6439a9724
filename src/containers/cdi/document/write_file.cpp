// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/files/staged_file.hpp"
#include "base/files/syscall.hpp"
#include "containers/cdi/document/write.hpp"

namespace gpushm::cdi {

namespace {

constexpr const char* operation = "write CDI document";

void make_directory_of(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code failed;
  if (directory.empty() || std::filesystem::is_directory(directory, failed)) {
    return;
  }
  std::string created;
  for (const auto& part : directory) {
    created = created.empty() ? part.string() : (std::filesystem::path(created) / part).string();
    constexpr mode_t mode = 0755;
    base::checked(
        operation, path, "mkdir", [&created] { return ::mkdir(created.c_str(), mode); }, {EEXIST});
  }
}

}  // namespace

void write_file(const document& content, const std::string& path, format format) {
  const std::string text = to_text(content, format);
  make_directory_of(path);
  base::staged_file file(operation, path);
  file.write(text);
  constexpr mode_t mode = 0644;
  base::checked(operation, path, "fchmod", [&] { return ::fchmod(file.fd(), mode); });
  // A power failure must not leave an empty file.
  base::checked(operation, path, "fsync", [&] { return ::fsync(file.fd()); });
  file.commit();
}

}  // namespace gpushm::cdi
