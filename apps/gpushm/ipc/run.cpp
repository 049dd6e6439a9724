// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/support/ipc_libraries.hpp"
#include "apps/support/program_path.hpp"
#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/text/text.hpp"
#include "containers/cdi/document/share_device.hpp"
#include "containers/elf/loading.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

struct run_arguments {
  std::string domain;
  std::string socket;
  std::string libraries;           ///< empty: the installed ones
  std::vector<std::string> words;  ///< the program and its arguments
};

void add_run_arguments(CLI::App& app, run_arguments& arguments) {
  const auto program = std::make_shared<std::string>();
  app.add_option("PROGRAM", *program, "The program; its arguments follow, best after \"--\"")
      ->required()
      ->type_name("");
  auto* const domain =
      app.add_option("--domain", arguments.domain, "The domain to use, if several are mounted")
          ->type_name("NAME");
  app.add_option("--socket", arguments.socket, "The socket of its broker")
      ->type_name("PATH")
      ->excludes(domain);
  app.add_option(
         "--libraries",
         arguments.libraries,
         "Directory of libgpushm-ipc.so and libgpushm.so.1 (default: ../lib/gpushm/ipc from "
         "this program)")
      ->type_name("DIR");
  // Arguments of the program: in "remaining", even if they look like options.
  app.prefix_command();
  app.parse_complete_callback([&app, &arguments, program] {
    const std::vector<std::string> rest = app.remaining();
    const bool separated = !rest.empty() && rest.front() == "--";
    arguments.words = {*program};
    arguments.words.insert(arguments.words.end(), rest.begin() + (separated ? 1 : 0), rest.end());
  });
}

namespace fs = std::filesystem;

constexpr const char* operation = "run with CUDA IPC";
constexpr int max_interpreters = 4;  // as the kernel

std::string variable(const char* name) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): single-threaded
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

void set_variable(const char* name, const std::string& value) {
  base::checked(operation, name, "setenv", [&] {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): single-threaded
    return ::setenv(name, value.c_str(), 1);
  });
}

[[noreturn]] void refuse_program(const std::string& path,
                                 const std::string& cause,
                                 const std::string& next = {}) {
  throw error(errc::invalid_argument, operation, path, cause, next);
}

/// As execvp(3) finds it. Throws `error`.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    return name;
  }
  const std::string chosen = variable("PATH");
  auto path = app::find_executable(chosen.empty() ? "/bin:/usr/bin" : chosen, name);
  if (!path) {
    throw error(errc::system_error, operation, name, "no such program in $PATH");
  }
  return std::move(*path);
}

/// The interpreter that the first line of a script names; empty for other files.
std::string interpreter_of(const std::string& path) {
  constexpr std::size_t max_line_bytes = 256;
  const std::string text = base::read_small_file(path, max_line_bytes).value_or("");
  if (!text.starts_with("#!")) {
    return {};
  }
  const std::string_view line = std::string_view(text).substr(2, text.find('\n') - 2);
  const auto words = base::split(line, " \t");
  return words.empty() ? std::string() : std::string(words.front());
}

/// Whether the kernel would give it other rights than its caller has: the loader then ignores
/// LD_PRELOAD.
void refuse_other_rights(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) {
    base::throw_errno(errno, operation, path, "stat");
  }
  const bool other_user = (about.st_mode & S_ISUID) != 0 && about.st_uid != ::geteuid();
  const bool other_group = (about.st_mode & S_ISGID) != 0 && about.st_gid != ::getegid();
  if (other_user || other_group) {
    refuse_program(path,
                   "it is a set-uid or set-gid program, for which the loader ignores LD_PRELOAD");
  }
  if (::geteuid() != 0 && ::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0) {
    refuse_program(path,
                   "its file has capabilities, and the loader then ignores LD_PRELOAD",
                   "run it as a user or in a container that has them");
  }
}

/// Throws `error` for a program that could not load the library.
void check_program(const std::string& path, int depth = 0) {
  if (::access(path.c_str(), X_OK) != 0) {
    base::throw_errno(errno, operation, path, "access");
  }
  const auto loading = elf::read_loading(path);
  if (!loading) {
    const std::string interpreter = interpreter_of(path);
    if (!interpreter.empty() && depth < max_interpreters) {
      check_program(interpreter, depth + 1);
    }
    return;  // exec says what is wrong with it, if anything
  }
  refuse_other_rights(path);
  if (!loading->native) {
    refuse_program(path, "it is a program of another architecture");
  }
  const std::string_view loader = base::name_of(loading->interpreter);
  if (loader.empty()) {
    refuse_program(path,
                   "it is a static program, which loads no libraries",
                   "link it dynamically, or let it use gpushm's own interface");
  }
  if (!loader.starts_with("ld-linux-")) {
    refuse_program(path,
                   std::string("its loader is ").append(loader).append(", not that of glibc"),
                   "use a program or an image with glibc 2.28 or later");
  }
}

int run_run(const run_arguments& arguments) {
  const std::string directory =
      fs::absolute(arguments.libraries.empty() ? app::installed_ipc_libraries()
                                               : arguments.libraries)
          .lexically_normal()
          .string();
  if (directory.find_first_of(": \t\n") != std::string::npos) {
    throw error(errc::invalid_argument,
                operation,
                directory,
                "a path in LD_PRELOAD has no blanks and colons",
                "copy the directory, and name it: --libraries DIR");
  }
  app::check_ipc_libraries(directory, "--libraries");
  const std::string program = find_program(arguments.words.front());
  check_program(program);
  if (!arguments.domain.empty()) {
    set_variable("GPUSHM_IPC_DOMAIN", arguments.domain);
  }
  if (!arguments.socket.empty()) {
    set_variable("GPUSHM_SOCKET", fs::absolute(arguments.socket).string());
    // It would take precedence.
    // NOLINTNEXTLINE(concurrency-mt-unsafe): single-threaded
    static_cast<void>(::unsetenv("GPUSHM_IPC_DOMAIN"));
  }
  const std::string library = std::string(directory).append("/").append(cdi::ipc_library);
  const std::string others = variable("LD_PRELOAD");
  const auto preloaded = base::split(others, ": ");
  if (std::find(preloaded.begin(), preloaded.end(), library) == preloaded.end()) {
    // Behind the others: a sanitizer's library must be the first.
    set_variable("LD_PRELOAD", others.empty() ? library : others + ":" + library);
  }
  std::vector<std::string> words = arguments.words;
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  base::throw_errno(errno, operation, program, "execv");
}

}  // namespace

void add_run(command_list& commands) {
  add_command<run_arguments>(commands,
                             "run",
                             "Run a program whose CUDA IPC then works between containers",
                             add_run_arguments,
                             run_run);
}

}  // namespace gpushm::cli
