// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/hook_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "base/file.hpp"
#include "base/staged_file.hpp"
#include "base/syscall.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

constexpr const char* name = "gpushm-cdi-hook";
constexpr const char* operation = "install the hook program";

/// The program's content; empty if it cannot be read. About 2 MiB, more with a sanitizer.
std::string content_of(const std::string& path) {
  constexpr std::size_t max_bytes = 256UL << 20U;
  return base::read_small_file(path, max_bytes).value_or("");
}

/// Removes temporary files of an agent that was killed before its rename. Only one agent installs
/// at a time.
void remove_unfinished(const std::string& directory) {
  const std::string begin = std::string(name) + ".tmp.";
  std::error_code failed;
  std::vector<std::filesystem::path> found;
  for (std::filesystem::directory_iterator at(directory, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (at->path().filename().string().starts_with(begin)) {
      found.push_back(at->path());
    }
  }
  for (const std::filesystem::path& each : found) {
    ::unlink(each.c_str());
  }
}

/// Whether `path` is a regular file of this user with this content that every container runtime can
/// run and no other user can change.
bool is_installed(const std::string& path, const std::string& program) {
  struct stat about {};
  return ::lstat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode) &&
         (about.st_mode & 07777U) == 0755 && about.st_uid == ::geteuid() &&
         content_of(path) == program;
}

}  // namespace

std::string hook_next_to_executable() {
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
                "the file is unreadable or empty",
                "name the path of gpushm-cdi-hook: --hook-source FILE");
  }
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  std::string path = directory + "/" + name;
  remove_unfinished(directory);
  if (!is_installed(path, program)) {
    base::staged_file written(operation, path);
    written.write(program);
    base::checked(operation, path, "fchmod", [&] { return ::fchmod(written.fd(), 0755); });
    written.commit();
  }
  return path;
}

}  // namespace gpushm::agent
