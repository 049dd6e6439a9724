// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "apps/gpushm/cdi/generate.hpp"
#include "containers/cdi/document/name.hpp"
#include "containers/cdi/document/versions.hpp"
#include "containers/discover/driver_files/root_view.hpp"
#include "gpu/driver/devices.hpp"

namespace gpushm::cli {

namespace {

using why_not = std::optional<std::string> (*)(std::string_view);

[[noreturn]] void refuse_value(const std::string& option,
                               const std::string& text,
                               const std::string& why) {
  throw CLI::ValidationError(option, fmt::format("\"{}\" is not valid: {}", text, why));
}

void add_name(CLI::App& app,
              const std::string& option,
              const std::string& description,
              std::string& target,
              why_not judge) {
  app.add_option_function<std::string>(
         option,
         [&target, option, judge](const std::string& text) {
           if (const auto why = judge(text)) {
             refuse_value(option, text, *why);
           }
           target = text;
         },
         description)
      ->type_name("NAME");
}

// An option that may be repeated or take a comma-separated list.
void add_list(CLI::App& app,
              const std::string& option,
              const std::string& type,
              const std::string& description,
              std::vector<std::string>& target) {
  app.add_option(option, target, description)
      ->type_name(type)
      ->allow_extra_args(false)
      ->delimiter(',');
}

void set_strategies(const std::vector<std::string>& words, generate_arguments& out) {
  out.options.strategies.clear();
  for (const std::string& word : words) {
    const auto strategy = discover::parse_name_strategy(word);
    if (!strategy) {
      refuse_value("--device-name-strategy", word, "it must be index, uuid or type-index");
    }
    out.options.strategies.push_back(*strategy);
  }
}

// Environment variables of tests and containers relocate /proc, /dev and /sys.
void set_defaults(discover::generate_options& options) {
  options.proc_root = driver::proc_root();
  const std::string dev = driver::dev_root();
  if (dev != "/dev" && dev.ends_with("/dev")) {
    options.dev_root = dev.substr(0, dev.size() - std::string_view("/dev").size());
  }
  // NOLINTNEXTLINE(concurrency-mt-unsafe): single-threaded at this point
  if (const char* sys = std::getenv("GPUSHM_SYS_ROOT"); sys != nullptr && *sys != '\0') {
    options.sys_root = sys;
  }
}

void add_places(CLI::App& app, discover::generate_options& options) {
  app.add_option(
         "--driver-root", options.driver_root, "Root of the driver installation (default: /)")
      ->type_name("DIR");
  app.add_option("--dev-root",
                 options.dev_root,
                 "Prefix of /dev (default: --driver-root if it contains /dev)")
      ->type_name("DIR");
  app.add_option("--proc-root", options.proc_root, "Directory to read instead of /proc")
      ->type_name("DIR");
  app.add_option("--sys-root", options.sys_root, "Directory to read instead of /sys")
      ->type_name("DIR");
  app.add_option_function<std::string>(
         "--hook-path,--nvidia-ctk-path,--nvidia-cdi-hook-path",
         [&options](const std::string& path) {
           if (!path.starts_with('/')) {
             refuse_value("--hook-path", path, "it must be an absolute path on the host");
           }
           options.hook_path = path;
         },
         "Path of the hook program on the host (default: this program)")
      ->type_name("FILE");
  app.add_option("--ldcache-path",
                 options.ldcache_path,
                 "Library cache (default: etc/ld.so.cache below --driver-root)")
      ->type_name("FILE");
  add_list(app,
           "--library-search-path",
           "DIR",
           "Directories below --driver-root to search for libraries first",
           options.library_search_paths);
}

// The makers' names choose what is described; any other is another name for NVIDIA's GPUs.
void add_vendor(CLI::App& app, discover::generate_options& options) {
  app.add_option_function<std::string>(
         "--vendor",
         [&options](const std::string& text) {
           if (const auto why = cdi::why_invalid_vendor(text)) {
             refuse_value("--vendor", text, *why);
           }
           const auto maker = discover::parse_gpu_vendor(text);
           options.source = maker.value_or(discover::gpu_vendor::nvidia);
           options.vendor = maker ? std::string(discover::cdi_name(*maker)) : text;
         },
         "Whose GPUs: nvidia, amd or intel; another NAME is the kind's vendor for NVIDIA's GPUs "
         "(default: nvidia)")
      ->type_name("NAME");
}

// Options that change nothing for a vendor are refused. The files of AMD and Intel are in /sys
// below the driver root, if that has one.
void complete_vendor(const CLI::App& app, discover::generate_options& options) {
  if (options.source == discover::gpu_vendor::nvidia) {
    return;
  }
  for (const char* option :
       {"--proc-root", "--ldcache-path", "--library-search-path", "--incomplete"}) {
    if (app.count(option) > 0) {
      throw CLI::ValidationError(
          option, fmt::format("it is only for NVIDIA's driver, not for {}", options.vendor));
    }
  }
  std::error_code failed;
  const std::string own = discover::join(options.driver_root, "sys");
  if (app.count("--driver-root") > 0 && app.count("--sys-root") == 0 &&
      std::filesystem::is_directory(own, failed)) {
    options.sys_root = own;
  }
}

}  // namespace

void add_generate_options(CLI::App& app, generate_arguments& out) {
  discover::generate_options& options = out.options;
  set_defaults(options);
  add_places(app, options);
  app.add_option_function<std::vector<std::string>>(
         "--device-name-strategy",
         [&out](const std::vector<std::string>& words) { set_strategies(words, out); },
         "Names of devices: index, uuid, type-index (default: index and uuid)")
      ->type_name("HOW")
      ->allow_extra_args(false)
      ->delimiter(',');
  add_vendor(app, options);
  add_name(app,
           "--class",
           "Class of the devices (default: gpu)",
           options.device_class,
           &cdi::why_invalid_class);
  add_list(app,
           "--device-id",
           "ID",
           "Only these devices: indices (0, 1:0), UUIDs or, for AMD and Intel, PCI addresses "
           "(default: all)",
           options.device_ids);
  app.add_option_function<std::vector<std::string>>(
         "--disable-hook",
         [&options](const std::vector<std::string>& names) {
           options.disabled_hooks.insert(names.begin(), names.end());
         },
         "Omit a hook; \"all\" omits every hook")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->delimiter(',');
  app.add_flag(
      "--no-all-device",
      [&options](std::int64_t) { options.all_device = false; },
      "Omit the device \"all\"");
  app.add_option_function<std::string>(
         "--spec-version",
         [&out](const std::string& text) {
           if (text != "auto" && !cdi::version_index(text)) {
             refuse_value("--spec-version", text, "it must be 0.3.0 to 1.1.0, or auto");
           }
           out.spec_version = text == "auto" ? std::string() : text;
         },
         "Version of the specification (default: the lowest that suffices)")
      ->type_name("VERSION");
  app.add_flag("--incomplete",
               out.incomplete,
               "Accept a document without nvidiactl or nvidia-uvm, which CUDA needs");
  app.add_flag("-q,--quiet", out.quiet, "Print only warnings and errors");
  app.parse_complete_callback([&app, &options] { complete_vendor(app, options); });
}

}  // namespace gpushm::cli
