// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/cdi/refresher.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/gpushm/cdi/refresh_child.hpp"
#include "apps/gpushm/cdi/refresh_reason.hpp"
#include "apps/gpushm/output.hpp"
#include "base/files/syscall.hpp"
#include "base/text/text.hpp"
#include "containers/cdi/document/parse.hpp"
#include "containers/discover/driver_files/root_view.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds driver_patience{60};

std::string default_output(const discover::generate_options& options) {
  return fmt::format("/var/run/cdi/{}-{}.yaml", options.vendor, options.device_class);
}

std::string directory_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

// Runs `action` and logs its error unless it is the same as the last one.
template <typename Action>
void log_failure(std::string& last, const char* prefix, Action&& action) {
  try {
    action();
    last.clear();
  } catch (const error& failure) {
    if (last != failure.what()) {
      last = failure.what();
      note(prefix + last);
    }
  }
}

}  // namespace

refresher::refresher(generate_arguments arguments, bool create_nodes)
    : arguments_(std::move(arguments)),
      create_nodes_(create_nodes),
      setup_(arguments_.options),
      documents_(std::vector<std::string>{}) {
  if (arguments_.output.path.empty()) {
    arguments_.output.path = default_output(arguments_.options);
  }
  directory_ = directory_of(arguments_.output.path);
  documents_ = cdi::registry({directory_});
}

void refresher::update() {
  try {
    wanted_ = generate();
  } catch (const error&) {
    settle();  // the file of an earlier run may be in conflict now
    throw;
  }
  settle();
}

void refresher::try_update() {
  log_failure(update_failure_, "waiting: ", [this] { wanted_ = generate(); });
  try_settle();
}

void refresher::try_settle() {
  log_failure(settle_failure_, "", [this] { settle(); });
}

void refresher::settle() {
  documents_.refresh();
  if (const auto other = find_rival()) {
    withdraw(*other);
    return;
  }
  if (!wanted_) {
    return;
  }
  std::string reason = why_write();
  if (reason.empty()) {
    return;
  }
  if (!rival_.empty()) {
    reason = rival_ + " no longer defines its devices";
  }
  write_document(*wanted_, arguments_.output);
  rival_.clear();
  note(fmt::format("wrote {}: {}", output(), reason));
}

std::vector<std::string> refresher::driver_directories() const {
  const discover::root_view root(arguments_.options.driver_root);
  std::vector<std::string> directories;
  for (const std::string& directory : library_directories_) {
    directories.push_back(root.outside(directory));
  }
  const std::string dev = discover::find_dev_root(arguments_.options);
  for (const char* directory : {"/dev", "/dev/nvidia-caps", "/dev/dri"}) {
    directories.push_back(discover::join(dev, directory));
  }
  return directories;
}

cdi::document refresher::generate() {
  if (create_nodes_) {
    setup_.complete();
  }
  generated_document result = generate_in_child();
  // NVML may have loaded the driver, so that there is more to create now.
  if (create_nodes_ && !result.missing_control_nodes.empty() && setup_.complete()) {
    result = generate_in_child();
  }
  if (!arguments_.incomplete) {
    check_control_nodes(result.missing_control_nodes);
  }
  report_warnings(result.warnings);
  remember_directories(result.content);
  return std::move(result.content);
}

generated_document refresher::generate_in_child() {
  const std::string text = run_in_child(
      [this] {
        const generated_document document = make_document(arguments_);
        return nlohmann::json{{"document", cdi::to_text(document.content, cdi::format::json)},
                              {"warnings", document.warnings},
                              {"missing", document.missing_control_nodes}}
            .dump();
      },
      driver_patience);
  const nlohmann::json reply = nlohmann::json::parse(text);
  generated_document result;
  result.content = cdi::parse(reply.at("document").get<std::string>(), "generated").content;
  result.warnings = reply.at("warnings").get<std::vector<std::string>>();
  result.missing_control_nodes = reply.at("missing").get<std::vector<std::string>>();
  return result;
}

void refresher::check_control_nodes(const std::vector<std::string>& missing) const {
  try {
    require_control_nodes(missing);
  } catch (const error& failure) {
    if (setup_.failures().empty()) {
      throw;
    }
    throw error(failure.code(),
                failure.operation(),
                failure.object(),
                fmt::format("{}; {}", failure.cause(), fmt::join(setup_.failures(), "; ")),
                failure.next_step());
  }
}

void refresher::report_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    if (std::find(warnings_.begin(), warnings_.end(), warning) == warnings_.end()) {
      note("warning: " + warning);
    }
  }
  warnings_ = warnings;
}

void refresher::remember_directories(const cdi::document& content) {
  constexpr std::string_view key = "NVIDIA_CTK_LIBCUDA_DIR=";
  for (const std::string_view variable : content.changes.env) {
    if (variable.starts_with(key)) {
      const auto parts = base::split(variable.substr(key.size()), ":");
      library_directories_.assign(parts.begin(), parts.end());
    }
  }
}

const cdi::source* refresher::own_document() const {
  const std::string_view name = base::name_of(output());
  for (const auto& each : documents_.sources()) {
    if (base::name_of(each->path) == name) {
      return each.get();
    }
  }
  return nullptr;
}

std::optional<refresher::rival> refresher::find_rival() const {
  const cdi::source* const own = own_document();
  const cdi::document* ours = wanted_ ? &*wanted_ : nullptr;
  if (ours == nullptr && own != nullptr && own->problems.empty()) {
    ours = &own->content;  // of an earlier run
  }
  if (ours == nullptr) {
    return std::nullopt;
  }
  std::set<std::string_view> names;
  for (const cdi::device& device : ours->devices) {
    names.insert(device.name);
  }
  for (const auto& each : documents_.sources()) {
    // Invalid documents define no devices.
    if (each.get() == own || !each->problems.empty() || each->content.kind != ours->kind) {
      continue;
    }
    for (const cdi::device& device : each->content.devices) {
      if (names.contains(device.name)) {
        return rival{each->path, fmt::format("{}={}", ours->kind, device.name)};
      }
    }
  }
  return std::nullopt;
}

void refresher::withdraw(const rival& other) {
  const bool removed = base::checked("withdraw the CDI document",
                                     output(),
                                     "unlink",
                                     [this] { return ::unlink(output().c_str()); },
                                     {ENOENT}) == 0;
  if (removed || rival_ != other.path) {
    note(
        fmt::format("{} {}: {} defines {}, and engines ignore a device that two documents in one "
                    "directory define",
                    removed ? "withdrew" : "did not write",
                    output(),
                    other.path,
                    other.device));
  }
  rival_ = other.path;
}

std::string refresher::why_write() const {
  std::error_code failed;
  if (!fs::exists(output(), failed)) {
    return "it did not exist";
  }
  const cdi::parsed current = cdi::load(output());
  if (!current.problems.empty()) {
    return "it was invalid: " + current.problems.front().text;
  }
  return current.content == *wanted_ ? std::string() : why_different(current.content, *wanted_);
}

}  // namespace gpushm::cli
