// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/gpushm/cdi/driver_setup.hpp"
#include "apps/gpushm/cdi/generate.hpp"
#include "containers/cdi/registry/registry.hpp"

namespace gpushm::cli {

/// Keeps one document up to date, in a directory where other programs may also write documents. If
/// a document of another program defines one of its devices, engines would resolve that device to
/// neither: then this one is withdrawn, until the other no longer defines it.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class refresher {
 public:
  /// `create_nodes`: completes the driver before each generation (`driver_setup`).
  refresher(generate_arguments arguments, bool create_nodes);
  refresher(const refresher&) = delete;
  refresher& operator=(const refresher&) = delete;
  ~refresher() = default;

  /// Generates the document in a child process, and then as `settle`. Throws `error` if the
  /// document cannot be generated, lacks control nodes, or cannot be written.
  void update();
  /// Judges the directory without generating: writes the file if it is stale or missing, or
  /// withdraws it; logs one line for a change. Throws `error`.
  void settle();
  /// As `update` and `settle`, but they log errors, and the same error only once.
  void try_update();
  void try_settle();

  /// The last generation or write failed.
  [[nodiscard]] bool failed() const { return !update_failure_.empty() || !settle_failure_.empty(); }
  /// Another document defines the devices.
  [[nodiscard]] bool withdrawn() const { return !rival_.empty(); }
  [[nodiscard]] const std::string& output() const { return arguments_.output.path; }
  [[nodiscard]] const std::string& output_directory() const { return directory_; }
  /// The directories of libcuda and the device nodes.
  [[nodiscard]] std::vector<std::string> driver_directories() const;

 private:
  /// A document of another program with one of our devices.
  struct rival {
    std::string path;
    std::string device;
  };

  [[nodiscard]] cdi::document generate();
  [[nodiscard]] generated_document generate_in_child();
  void check_control_nodes(const std::vector<std::string>& missing) const;
  void report_warnings(const std::vector<std::string>& warnings);
  void remember_directories(const cdi::document& content);
  [[nodiscard]] const cdi::source* own_document() const;
  [[nodiscard]] std::optional<rival> find_rival() const;
  void withdraw(const rival& other);
  /// Empty if the file is up to date.
  [[nodiscard]] std::string why_write() const;

  generate_arguments arguments_;
  bool create_nodes_;
  driver_setup setup_;
  std::string directory_;
  cdi::registry documents_;
  std::optional<cdi::document> wanted_;
  std::string rival_;  ///< the path of the document for which this one is withdrawn
  std::vector<std::string> warnings_;
  std::vector<std::string> library_directories_;
  std::string update_failure_;
  std::string settle_failure_;
};

}  // namespace gpushm::cli
