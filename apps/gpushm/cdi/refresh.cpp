// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/gpushm/cdi/commands.hpp"
#include "apps/gpushm/cdi/generate.hpp"
#include "apps/gpushm/cdi/refresh_child.hpp"
#include "apps/gpushm/cdi/refresh_reason.hpp"
#include "apps/gpushm/cdi/refresh_watch.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/duration.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/text.hpp"
#include "cdi/document/parse.hpp"
#include "discover/root_view.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

struct refresh_arguments {
  generate_arguments document;
  bool watch = false;
  std::chrono::milliseconds interval = std::chrono::seconds(5);
};

constexpr std::chrono::seconds driver_patience{60};
// Regenerates at this interval even without a change in /proc, which does not show when a MIG
// instance is replaced by an equal one with another UUID.
constexpr std::chrono::seconds forced_update_interval{60};

/// Keeps one document up to date.
class refresher {
 public:
  explicit refresher(generate_arguments arguments) : arguments_(std::move(arguments)) {
    if (arguments_.output.path.empty()) {
      arguments_.output.path = fmt::format(
          "/var/run/cdi/{}-{}.yaml", arguments_.options.vendor, arguments_.options.device_class);
    }
  }

  /// Writes the file if its content is stale and logs one line. Throws `error`.
  void update() {
    const cdi::document wanted = generate();
    const std::string reason = why_write(wanted);
    if (reason.empty()) {
      return;
    }
    write_document(wanted, arguments_.output);
    note(fmt::format("wrote {}: {}", arguments_.output.path, reason));
  }

  /// As `update`, but logs errors; the same error only once.
  void try_update() {
    try {
      update();
      failure_.clear();
    } catch (const error& failure) {
      if (failure_ != failure.what()) {
        failure_ = failure.what();
        note("waiting: " + failure_);
      }
    }
  }

  [[nodiscard]] bool failed() const { return !failure_.empty(); }
  [[nodiscard]] const std::string& output() const { return arguments_.output.path; }

  /// The directories of libcuda and the device nodes.
  [[nodiscard]] std::vector<std::string> directories() const {
    const discover::root_view root(arguments_.options.driver_root);
    std::vector<std::string> found;
    for (const std::string& directory : library_directories_) {
      found.push_back(root.outside(directory));
    }
    const std::string dev =
        arguments_.options.dev_root.empty() ? root.text() : arguments_.options.dev_root;
    for (const char* directory : {"/dev", "/dev/nvidia-caps", "/dev/dri"}) {
      found.push_back(discover::join(dev, directory));
    }
    return found;
  }

 private:
  cdi::document generate() {
    const std::string answer = run_in_child(
        [this] {
          const generated_document document = make_document(arguments_);
          return nlohmann::json{{"document", cdi::to_text(document.content, cdi::format::json)},
                                {"warnings", document.warnings}}
              .dump();
        },
        driver_patience);
    const nlohmann::json reply = nlohmann::json::parse(answer);
    const auto warnings = reply.at("warnings").get<std::vector<std::string>>();
    for (const std::string& warning : warnings) {
      if (std::find(warnings_.begin(), warnings_.end(), warning) == warnings_.end()) {
        note("warning: " + warning);
      }
    }
    warnings_ = warnings;
    cdi::parsed read = cdi::parse(reply.at("document").get<std::string>(), "generated");
    remember_directories(read.content);
    return std::move(read.content);
  }

  void remember_directories(const cdi::document& content) {
    constexpr std::string_view key = "NVIDIA_CTK_LIBCUDA_DIR=";
    for (const std::string_view variable : content.changes.env) {
      if (variable.starts_with(key)) {
        const auto parts = base::split(variable.substr(key.size()), ":");
        library_directories_.assign(parts.begin(), parts.end());
      }
    }
  }

  // Empty: the file is up to date.
  [[nodiscard]] std::string why_write(const cdi::document& wanted) const {
    std::error_code failed;
    if (!std::filesystem::exists(arguments_.output.path, failed)) {
      return "it did not exist";
    }
    const cdi::parsed current = cdi::load(arguments_.output.path);
    if (!current.problems.empty()) {
      return "it was invalid: " + current.problems.front().text;
    }
    return current.content == wanted ? std::string() : why_different(current.content, wanted);
  }

  generate_arguments arguments_;
  std::vector<std::string> warnings_;
  std::vector<std::string> library_directories_;
  std::string failure_;
};

void watch(refresher& file, const refresh_arguments& arguments) {
  const app::stop_signal stop;
  driver_watch changes(arguments.document.options.proc_root);
  auto last_update = std::chrono::steady_clock::now();
  file.try_update();
  if (!file.failed()) {
    note(fmt::format("watching; {} is up to date", file.output()));
  }
  for (;;) {
    changes.set_directories(file.directories());
    const bool changed = changes.wait(arguments.interval, app::stop_signal::fd());
    if (stop.pending()) {
      return;
    }
    std::error_code failed;
    const auto now = std::chrono::steady_clock::now();
    if (changed || file.failed() || now - last_update >= forced_update_interval ||
        !std::filesystem::exists(file.output(), failed)) {
      last_update = now;
      file.try_update();
    }
  }
}

void add_refresh_arguments(CLI::App& app, refresh_arguments& out) {
  app.add_option("-o,--output",
                 out.document.output.path,
                 "The document (default: /var/run/cdi/VENDOR-CLASS.yaml)")
      ->type_name("FILE");
  app.add_flag("--watch", out.watch, "Keep running until a signal arrives");
  app.add_option_function<std::string>(
         "--interval",
         [&out](const std::string& text) {
           const auto value = app::parse_duration(text);
           if (!value || value->count() == 0) {
             throw CLI::ValidationError(
                 "--interval", fmt::format("\"{}\" is not a duration such as 500ms or 10s", text));
           }
           out.interval = *value;
         },
         "Poll interval for /proc (default: 5s)")
      ->type_name("TIME");
  add_generate_options(app, out.document);
  add_document_format(app, out.document.output);
}

int run_refresh_command(const refresh_arguments& arguments) {
  refresher file(arguments.document);
  if (arguments.watch) {
    watch(file, arguments);
    return exit_ok;
  }
  file.update();
  return exit_ok;
}

}  // namespace

void add_cdi_refresh(CLI::App& cdi, request& parsed) {
  add_command<refresh_arguments>(cdi,
                                 parsed,
                                 "refresh",
                                 "Update the CDI document when the driver or MIG layout changes",
                                 add_refresh_arguments,
                                 run_refresh_command);
}

}  // namespace gpushm::cli
