// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>

#include "apps/gpushm/cdi/commands.hpp"
#include "apps/gpushm/cdi/document_output.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/support/ipc_libraries.hpp"
#include "base/process/child_process.hpp"
#include "containers/cdi/document/share_device.hpp"
#include "containers/discover/driver_files/trusted_path.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

namespace fs = std::filesystem;

struct share_arguments {
  std::vector<std::string> domains;
  std::string directory{cdi::domains_inside};
  document_output output;
  std::string_view kind = cdi::share_kind;
  bool ipc = false;  ///< the devices also preload the library for unchanged programs
  std::string libraries;
  std::string hook_path;
};

std::vector<std::string> domains_in(const std::string& directory) {
  std::vector<std::string> domains;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(directory, failed)) {
    std::error_code gone;
    if (entry.is_directory(gone)) {
      domains.push_back(entry.path().filename().string());
    }
  }
  if (domains.empty()) {
    throw error(errc::system_error,
                "find domains",
                directory,
                failed ? failed.message() : "it contains no domain",
                "start a broker (gpushm serve --mode 0666), or give a domain");
  }
  return domains;
}

void check_exists(const std::string& directory, const std::string& domain) {
  std::error_code failed;
  if (!fs::is_directory(fs::path(directory) / domain, failed)) {
    throw error(errc::system_error,
                "describe domain",
                domain,
                "no such directory: " + (fs::path(directory) / domain).string(),
                "start its broker first: gpushm serve --mode 0666 --domain " + domain);
  }
}

// Engines run the hook as root for every container with the device.
void check_hook_program(const std::string& path) {
  std::error_code failed;
  const auto problem = fs::is_regular_file(path, failed)
                           ? discover::why_replaceable(path)
                           : std::optional<std::string>("it is not a file of this machine");
  if (problem) {
    throw error(errc::invalid_argument,
                "set the hook program",
                path,
                "engines would run it as root, and " + *problem,
                "install it where only root can write, such as /usr/local/bin, and name it: "
                "--hook-path FILE");
  }
}

cdi::ipc_files find_ipc_files(const share_arguments& arguments) {
  const auto absolute = [](const std::string& path) {
    return fs::absolute(path).lexically_normal().string();
  };
  cdi::ipc_files files{
      absolute(arguments.libraries.empty() ? app::installed_ipc_libraries() : arguments.libraries),
      absolute(arguments.hook_path.empty() ? base::executable_path() : arguments.hook_path)};
  app::check_ipc_libraries(files.libraries, "--libraries");
  check_hook_program(files.hook_program);
  return files;
}

void add_domains(CLI::App& app, share_arguments& out) {
  app.add_option("DOMAIN", out.domains, "Only these domains (default: every domain in --directory)")
      ->type_name("");
  app.add_option("--directory", out.directory, "Directory of the domains (default: /run/gpushm/d)")
      ->type_name("DIR");
  add_document_output(app, out.output);
}

std::vector<CLI::Option*> add_ipc_places(CLI::App& app, share_arguments& out) {
  return {app.add_option("--libraries",
                         out.libraries,
                         "Directory of libgpushm-ipc.so and libgpushm.so.1 on the host (default: "
                         "../lib/gpushm/ipc from this program)")
              ->type_name("DIR"),
          app.add_option("--hook-path",
                         out.hook_path,
                         "Path of the hook program on the host (default: this program)")
              ->type_name("FILE")};
}

void add_share_arguments(CLI::App& app, share_arguments& out) {
  add_domains(app, out);
  CLI::Option* const ipc =
      app.add_flag("--ipc",
                   out.ipc,
                   "Devices that also make CUDA IPC of unchanged programs work (gpushm.dev/ipc)");
  for (CLI::Option* const each : add_ipc_places(app, out)) {
    each->needs(ipc);
  }
}

void add_ipc_arguments(CLI::App& app, share_arguments& out) {
  out.kind = cdi::ipc_kind;
  out.ipc = true;
  add_domains(app, out);
  add_ipc_places(app, out);
}

int run_share_command(const share_arguments& arguments) {
  // Container engines mount it, and their working directory differs.
  const std::string directory = fs::absolute(arguments.directory).lexically_normal().string();
  for (const std::string& domain : arguments.domains) {
    check_exists(directory, domain);
  }
  auto domains = arguments.domains.empty() ? domains_in(directory) : arguments.domains;
  std::sort(domains.begin(), domains.end());
  domains.erase(std::unique(domains.begin(), domains.end()), domains.end());
  write_document(arguments.ipc ? cdi::ipc_document(
                                     domains, find_ipc_files(arguments), directory, arguments.kind)
                               : cdi::share_document(domains, directory),
                 arguments.output);
  return exit_ok;
}

}  // namespace

void add_cdi_share(command_list& commands) {
  add_command<share_arguments>(commands,
                               "share",
                               "Describe domains as CDI devices that give containers access",
                               add_share_arguments,
                               run_share_command);
}

void add_cdi_ipc(command_list& commands) {
  add_command<share_arguments>(
      commands,
      "ipc",
      "Describe domains as CDI devices that also make CUDA IPC of unchanged programs work",
      add_ipc_arguments,
      run_share_command);
}

}  // namespace gpushm::cli
