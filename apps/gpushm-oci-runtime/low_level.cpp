// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-oci-runtime/low_level.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "apps/support/oci/runtime.hpp"
#include "base/files/syscall.hpp"

namespace gpushm::oci_runtime {

namespace {

bool is_this_program(const std::string& path) {
  struct stat own {};
  struct stat other {};
  return ::stat("/proc/self/exe", &own) == 0 && ::stat(path.c_str(), &other) == 0 &&
         own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

// execv keeps the PID: if this variable contains this process's PID, this program has executed
// itself.
constexpr const char* guard = "GPUSHM_OCI_RUNTIME_PID";

}  // namespace

void refuse_recursion() {
  const char* pid = std::getenv(guard);  // NOLINT(concurrency-mt-unsafe): there is one thread
  if (pid != nullptr && pid == std::to_string(::getpid())) {
    throw error(errc::system_error,
                "start runtime",
                {},
                "the configured runtime is this program itself",
                "name runc or crun as \"runtimes\" in the configuration");
  }
}

std::string find_low_level(const settings& chosen) {
  std::string tried;
  for (const std::string& name : chosen.runtimes) {
    const auto runtime = app::oci::find_runtime(name);
    if (runtime && !is_this_program(runtime->path)) {
      return runtime->path;
    }
    tried += tried.empty() ? "" : ", ";
    tried += name;
    tried += runtime ? " (is this program itself)" : "";
  }
  throw error(errc::system_error,
              "find runtime",
              tried,
              "no such program in $PATH",
              "install runc or crun, or name one as \"runtimes\" in the configuration");
}

void execute_runtime(const std::string& path, const std::vector<std::string>& arguments) {
  std::vector<std::string> words{path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& each : words) {
    pointers.push_back(each.data());
  }
  pointers.push_back(nullptr);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): there is one thread
  ::setenv(guard, std::to_string(::getpid()).c_str(), 1);
  ::execv(path.c_str(), pointers.data());
  base::throw_errno(errno, "start runtime", path, "execv");
}

}  // namespace gpushm::oci_runtime
