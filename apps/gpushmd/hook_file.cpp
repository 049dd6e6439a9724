// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushmd/hook_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <vector>

#include "apps/gpushmd/settings.hpp"
#include "apps/support/ipc_libraries.hpp"
#include "base/files/file.hpp"
#include "base/files/staged_file.hpp"
#include "base/files/syscall.hpp"
#include "base/report/log.hpp"
#include "gpushm/error.hpp"

namespace gpushm::agent {

namespace {

constexpr std::string_view hook_name = "gpushm-cdi-hook";

/// A file that is installed on the host.
struct installation {
  const char* operation;
  std::string_view name;
  const char* next_step;  ///< if the source cannot be read
};

/// The file's content; empty if it cannot be read. About 2 MiB, more with a sanitizer.
std::string content_of(const std::string& path) {
  constexpr std::size_t max_bytes = 256UL << 20U;
  return base::read_small_file(path, max_bytes).value_or("");
}

/// Removes temporary files of an agent that was killed before its rename. Only one agent installs
/// at a time.
void remove_unfinished(const std::string& directory, std::string_view name) {
  const std::string begin = std::string(name) + ".tmp.";
  std::error_code failed;
  std::vector<std::filesystem::path> paths;
  for (std::filesystem::directory_iterator at(directory, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (at->path().filename().string().starts_with(begin)) {
      paths.push_back(at->path());
    }
  }
  for (const std::filesystem::path& each : paths) {
    ::unlink(each.c_str());
  }
}

/// Whether `path` is a regular file of this user with this content that every container can use and
/// no other user can change.
bool is_installed(const std::string& path, const std::string& content) {
  struct stat about {};
  return ::lstat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode) &&
         (about.st_mode & 07777U) == 0755 && about.st_uid == ::geteuid() &&
         content_of(path) == content;
}

/// Returns the path.
std::string install(const installation& installation,
                    const std::string& source,
                    const std::string& directory) {
  const std::string content = content_of(source);
  if (content.empty()) {
    throw error(errc::system_error,
                installation.operation,
                source,
                "the file is unreadable or empty",
                installation.next_step);
  }
  std::string path = std::string(directory).append("/").append(installation.name);
  remove_unfinished(directory, installation.name);
  if (!is_installed(path, content)) {
    base::staged_file written(installation.operation, path);
    written.write(content);
    base::checked(
        installation.operation, path, "fchmod", [&] { return ::fchmod(written.fd(), 0755); });
    written.commit();
  }
  return path;
}

}  // namespace

std::string hook_next_to_executable() {
  std::error_code failed;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", failed);
  return (program.parent_path() / hook_name).string();
}

std::string install_hook(const std::string& source, const std::string& directory) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  return install({"install the hook program",
                  hook_name,
                  "name the path of gpushm-cdi-hook: --hook-source FILE"},
                 source,
                 directory);
}

std::string install_ipc_libraries(const std::string& source, const std::string& directory) {
  constexpr const char* operation = "install the libraries for CUDA IPC";
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  // Containers of every user read it, whatever the umask is.
  base::checked(operation, directory, "chmod", [&] { return ::chmod(directory.c_str(), 0755); });
  for (const std::string_view name : {cdi::client_library, cdi::ipc_library}) {
    static_cast<void>(
        install({operation, name, "name the directory of both libraries: --ipc-source DIR"},
                std::string(source).append("/").append(name),
                directory));
  }
  return directory;
}

std::optional<cdi::ipc_files> install_ipc(const settings& chosen) {
  try {
    const std::string state = chosen.state_directory();
    return cdi::ipc_files{
        install_ipc_libraries(
            chosen.ipc_source.empty() ? app::installed_ipc_libraries() : chosen.ipc_source,
            state + "/ipc"),
        install_hook(chosen.hook_source.empty() ? hook_next_to_executable() : chosen.hook_source,
                     state)};
  } catch (const error& why) {
    base::log(chosen.ipc ? log_level::warning : log_level::info,
              std::string(why.what()) +
                  "; gpushm.dev/ipc is not offered, and claims with the "
                  "parameter ipc cannot be prepared");
    return std::nullopt;
  }
}

}  // namespace gpushm::agent
