// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/inspect/inspect_options.hpp"
#include "apps/gpushm/inspect/ipc_library.hpp"
#include "apps/gpushm/inspect/machine.hpp"
#include "apps/gpushm/inspect/matrix/render.hpp"
#include "apps/gpushm/inspect/matrix/runner.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/oci/cleanup_guard.hpp"
#include "base/files/syscall.hpp"
#include "base/text/text.hpp"
#include "gpu/driver/device_text.hpp"
#include "gpu/driver/devices.hpp"
#include "gpushm/broker.hpp"
#include "inspect/doctor/predict.hpp"

namespace gpushm::cli {

namespace {

struct matrix_arguments {
  std::string runtime = "runc";
  std::vector<inspect::way> ways;      ///< empty: all that can be tested here
  std::string ipc_library;             ///< libgpushm-ipc.so; empty: searched
  bool measure = false;                ///< bandwidth, and larger segments
  std::vector<std::string> devices;    ///< two GPUs, or one; empty: the first two
  std::vector<std::string> binds;      ///< additional host paths for the containers
  std::vector<std::string> variables;  ///< additional environment variables for the containers
  std::chrono::milliseconds timeout{300'000};
  bool accept_fake_chunks = false;  ///< accept the fake driver's memory: for tests
  bool markdown = false;
  bool json = false;
};

void add_matrix_arguments(CLI::App& app, matrix_arguments& arguments) {
  app.add_option("--runtime", arguments.runtime, "runc (default), crun, or a path")
      ->type_name("NAME");
  add_json(app, arguments.json);
  app.add_flag("--markdown", arguments.markdown, "Print a Markdown page")
      ->excludes(app.get_option("--json"));
  std::string names;
  for (const auto& ways : {std::span<const inspect::way>(inspect::all_ways),
                           std::span<const inspect::way>(inspect::ipc_ways)}) {
    for (const inspect::way each : ways) {
      names += (names.empty() ? "" : ",") + std::string(to_string(each));
    }
  }
  app.add_option_function<std::vector<std::string>>(
         "--backends",
         [&, names](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             const auto parsed = inspect::parse_way(text);
             if (!parsed) {
               refuse("--backends", text, "some of " + names);
             }
             arguments.ways.push_back(*parsed);
           }
         },
         "Only these columns: " + names)
      ->delimiter(',')
      ->type_name("LIST");
  app.add_option("--devices", arguments.devices, "One or two GPUs to use (default: the first two)")
      ->delimiter(',')
      ->expected(1, 2)
      ->type_name("LIST");
  app.add_option("--bind", arguments.binds, "An additional host path for the containers")
      ->type_name("PATH");
  app.add_option(
         "--env", arguments.variables, "An additional environment variable for the containers")
      ->type_name("NAME");
  add_ipc_library(app, arguments.ipc_library);
  app.add_flag("--measure", arguments.measure, "Measure the bandwidth of each pair, with 256 MiB");
  app.add_flag("--accept-fake-chunks", arguments.accept_fake_chunks)->group("");
  add_duration(app, "--timeout", "Time limit of the whole run (default: 5m)", [&](auto value) {
    arguments.timeout = value;
  });
}

namespace fs = std::filesystem;

constexpr const char* operation = "run matrix";
/// Time limit for querying the driver: waking sleeping GPUs takes seconds each.
constexpr std::chrono::seconds driver_timeout{60};

app::oci::runtime find_runtime(const std::string& name) {
  const auto runtime = app::oci::find_runtime(name);
  if (!runtime) {
    throw error(
        errc::system_error,
        operation,
        name,
        "no such container runtime on this machine",
        "install it (apt-get install runc), or choose another: --runtime runc, crun or a path");
  }
  return *runtime;
}

void require_root() {
  if (::geteuid() != 0) {
    throw error(errc::permission_denied,
                operation,
                {},
                "creating containers in all these settings requires root",
                "run it with sudo");
  }
}

/// Returns absolute paths, because a container has a different working directory.
std::vector<app::oci::bind_mount> mounts_named(const std::vector<std::string>& paths) {
  std::vector<app::oci::bind_mount> mounts;
  for (const std::string& text : paths) {
    std::error_code failed;
    const std::string path = fs::absolute(text).lexically_normal().string();
    if (!fs::exists(path, failed)) {
      throw error(errc::invalid_argument,
                  operation,
                  text,
                  "the path for the containers does not exist",
                  "pass an existing path to --bind");
    }
    mounts.push_back({path, path, true, true});
  }
  return mounts;
}

std::vector<std::pair<std::string, std::string>> variables_named(
    const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (const std::string& name : names) {
    const char* value =
        std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): no code sets variables
    if (value == nullptr) {
      throw error(errc::invalid_argument,
                  operation,
                  name,
                  "this environment variable is not set",
                  "set it, or omit its --env");
    }
    variables.emplace_back(name, value);
  }
  return variables;
}

/// The minors of all GPUs that have a device node.
std::vector<int> minors_of_nodes() {
  std::vector<int> minors;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(driver::dev_root(), failed)) {
    if (const auto minor = driver::minor_of_node(entry.path().filename().string())) {
      minors.push_back(*minor);
    }
  }
  return minors;
}

/// Makes the driver's library available in the containers at the path where this machine loaded it.
void add_driver(matrix::run_environment& environment, const inspect::driver_view& view) {
  if (view.cuda.library.empty()) {
    return;
  }
  const std::string directory = fs::path(view.cuda.library).parent_path().string();
  if (!matrix::is_in_every_container(directory + "/")) {
    environment.mounts.push_back({directory, directory, false, true});
  }
  const auto named = [](const auto& variable) { return variable.first == "LD_LIBRARY_PATH"; };
  if (std::none_of(environment.env.begin(), environment.env.end(), named)) {
    environment.env.emplace_back("LD_LIBRARY_PATH", directory);
  }
}

bool can_use_each_other(const inspect::driver_view& view, const std::vector<matrix::gpu>& gpus) {
  for (const inspect::cuda_pair_view& pair : view.cuda.pairs) {
    if (pair.from == gpus.back().ordinal && pair.to == gpus.front().ordinal) {
      return pair.access.value_or(true);
    }
  }
  return true;
}

std::string make_directory(const std::string& path, mode_t mode) {
  base::checked(operation, path, "mkdir", [&] { return ::mkdir(path.c_str(), mode); });
  base::checked(operation, path, "chmod", [&] { return ::chmod(path.c_str(), mode); });
  return path;
}

/// Gives `directory` a tmpfs, as a pod's /dev/shm is one: the driver creates interprocess events
/// only there. The mount is visible to this thread and the processes that it starts, and ends with
/// them.
void mount_shm(const std::string& directory) {
  base::checked(operation, {}, "unshare", [] { return ::unshare(CLONE_NEWNS); });
  base::checked(operation, "/", "mount", [] {
    return ::mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr);
  });
  base::checked(operation, directory, "mount", [&] {
    return ::mount("tmpfs", directory.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m");
  });
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts);
  return text.data();
}

std::string kernel() {
  struct utsname name {};
  return ::uname(&name) == 0 ? std::string(static_cast<const char*>(name.release)) : "?";
}

/// What each container of a run gets, as the arguments name it.
matrix::run_environment prepare_environment(const matrix_arguments& arguments) {
  matrix::run_environment environment;
  environment.runtime = find_runtime(arguments.runtime);
  environment.mounts = matrix::program_mounts();
  for (auto& mount : mounts_named(arguments.binds)) {
    environment.mounts.push_back(std::move(mount));
  }
  environment.env = variables_named(arguments.variables);
  return environment;
}

/// Adds this machine's GPUs, the driver's files, and the library for CUDA IPC.
void add_machine(matrix::run_environment& environment,
                 const matrix_arguments& arguments,
                 const inspect::driver_view& view) {
  environment.gpus = matrix::choose_gpus(matrix::gpus_of(view), arguments.devices);
  environment.all_minors = minors_of_nodes();
  environment.peer_access = environment.gpus.empty() || can_use_each_other(view, environment.gpus);
  environment.measure = arguments.measure && !environment.gpus.empty();
  add_driver(environment, view);

  const bool needs_library =
      std::any_of(arguments.ways.begin(), arguments.ways.end(), inspect::needs_ipc_library);
  const std::string ipc_library = find_ipc_library(operation, arguments.ipc_library);
  if (needs_library && ipc_library.empty()) {
    throw error(errc::invalid_argument,
                operation,
                ipc_library_name,
                "it is not installed here",
                "pass its path to --ipc-library");
  }
  if (!ipc_library.empty()) {
    for (auto& mount : matrix::ipc_mounts(ipc_library)) {
      environment.mounts.push_back(std::move(mount));
    }
    environment.ipc_library = true;
  }
}

/// A result without cells: what will be run, and where.
matrix::matrix_result describe_run(const matrix_arguments& arguments,
                                   const matrix::run_environment& environment,
                                   const inspect::driver_view& view) {
  matrix::matrix_result result;
  result.measured_bytes = environment.measure ? matrix::measured_bytes : 0;
  for (const inspect::way way : arguments.ways) {
    if (std::find(result.ways.begin(), result.ways.end(), way) == result.ways.end()) {
      result.ways.push_back(way);
    }
  }
  if (result.ways.empty()) {
    result.ways.assign(std::begin(inspect::all_ways), std::end(inspect::all_ways));
    if (environment.ipc_library) {
      result.ways.insert(
          result.ways.end(), std::begin(inspect::ipc_ways), std::end(inspect::ipc_ways));
    }
  }
  for (const matrix::gpu& gpu : environment.gpus) {
    result.gpus.push_back(gpu.text());
  }
  if (!environment.peer_access) {
    result.remark =
        "The second GPU cannot use memory of the first: importers that may open both use the "
        "first.";
  }
  result.driver = view.nvml.driver_version;
  result.runtime =
      app::oci::version_of(environment.runtime, base::deadline_in(std::chrono::seconds(5)));
  result.kernel = kernel();
  result.date = today();
  return result;
}

int report(const matrix_arguments& arguments, const matrix::matrix_result& result) {
  if (arguments.json) {
    print_json(matrix::json_of(result));
  } else {
    print(base::printable_lines(arguments.markdown ? matrix::markdown_of(result)
                                                   : matrix::text_of(result)));
  }
  const auto wrong = matrix::disagreements(result);
  if (!wrong.empty()) {
    note(fmt::format("not as predicted: {} {}, the first is {}",
                     wrong.size(),
                     wrong.size() == 1 ? "cell" : "cells",
                     wrong.front()));
  }
  if (!result.stopped.empty()) {
    note("not everything was run: " + result.stopped);
  }
  return wrong.empty() && result.stopped.empty() ? exit_ok : exit_failed;
}

int run_matrix(const matrix_arguments& arguments) {
  const auto deadline = base::deadline_in(arguments.timeout);
  require_root();
  auto environment = prepare_environment(arguments);
  const auto view =
      probe_driver(std::min<std::chrono::milliseconds>(arguments.timeout, driver_timeout));
  if (!view.failure.empty()) {
    throw error(errc::driver_unavailable,
                operation,
                {},
                "querying the driver: " + view.failure,
                "run \"gpushm doctor\"");
  }
  add_machine(environment, arguments, view);
  auto result = describe_run(arguments, environment, view);

  // From here on, signals are only recorded, so that everything created below is removed in order.
  ::signal(SIGPIPE, SIG_IGN);
  const app::stop_signal stop;
  const app::oci::cleanup_guard guard("gpushm-matrix");
  environment.domain_directory = make_directory(guard.directory() + "/domain", 0755);
  environment.shm_directory = make_directory(guard.directory() + "/shm", 01777);
  mount_shm(environment.shm_directory);
  broker_options serving;
  serving.socket_path = environment.domain_directory + "/socket";
  serving.domain = "matrix";
  serving.mode = 0666;
  serving.accept_fake_chunks = arguments.accept_fake_chunks;
  {
    const broker served = broker::start(serving);
    matrix::runner(environment, stop, deadline).run(result);
  }
  return report(arguments, result);
}

}  // namespace

void add_matrix(command_list& commands) {
  add_command<matrix_arguments>(
      commands,
      "matrix",
      "Test every way of sharing between real containers in every setting",
      add_matrix_arguments,
      run_matrix);
}

}  // namespace gpushm::cli
