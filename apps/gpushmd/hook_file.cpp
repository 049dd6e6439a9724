// SPDX-License-Identifier: Apache-2.0
#include "hook_file.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/syscall.hpp"
#include "gpushm/error.hpp"
#include "spec/file_beside.hpp"

namespace gpushm::agent {

namespace {

constexpr const char* name = "gpushm-cdi-hook";
constexpr const char* operation = "install the hook program";

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::string hook_beside_this_program() {
  std::error_code failed;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", failed);
  return (program.parent_path() / name).string();
}

std::string install_hook(const std::string& source, const std::string& directory) {
  const std::string program = content_of(source);
  if (program.empty()) {
    throw error(errc::system_error,
                operation,
                source,
                "it cannot be read, or is empty",
                "say where gpushm-cdi-hook is: --hook-source FILE");
  }
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  std::string path = directory + "/" + name;
  if (content_of(path) != program) {
    cdi::file_beside written(operation, path);
    written.write(program);
    base::checked(operation, path, "fchmod", [&] { return ::fchmod(written.fd(), 0755); });
    written.commit();
  }
  return path;
}

}  // namespace gpushm::agent
