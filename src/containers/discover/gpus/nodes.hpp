// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "containers/discover/driver_files/findings.hpp"
#include "containers/discover/gpus/inventory.hpp"

namespace gpushm::discover {

/// The number N of /dev/nvidia-caps/nvidia-capN for each capability of a MIG instance, from
/// /proc/driver/nvidia-caps/mig-minors: "gpu0/gi1/access 12". Skips malformed lines.
using mig_minors = std::map<std::string, int, std::less<>>;
[[nodiscard]] mig_minors parse_mig_minors(std::string_view text);

/// The major number of a driver in `majors`, the text of /proc/devices.
[[nodiscard]] std::optional<unsigned int> major_of(std::string_view majors,
                                                   std::string_view driver);

/// "TARGET::LINK" of a link in /dev/dri/by-path to the node /dev/dri/NODE; nullopt unless `edits`
/// have that node.
[[nodiscard]] std::optional<std::string> link_to_node(const cdi::edits& edits,
                                                      std::string_view node,
                                                      std::string_view link);

/// Finds device nodes of this machine.
class node_finder {
 public:
  /// `dev_root` is the prefix of /dev on the host; `sys_root` replaces /sys.
  node_finder(std::string dev_root, std::string sys_root, mig_minors minors);

  /// The node; empty when it is missing or not a character device. Omits major and minor, which are
  /// read at injection because they may change until then (nvidia-uvm's does). Includes mode and
  /// group when the node is not accessible to all users, so that only that group gets access.
  [[nodiscard]] std::optional<cdi::device_node> node(const std::string& path) const;

  /// The edits for `paths`, all of which `device` (its name in a report) requires. Empty when one
  /// is missing; `report.incomplete` then has the reason.
  [[nodiscard]] std::optional<cdi::edits> all(const std::vector<std::string>& paths,
                                              const std::string& device,
                                              findings& report) const;

  /// The edits for a GPU or a MIG instance. Empty when a required node is missing;
  /// `report.incomplete` then has the reason.
  [[nodiscard]] std::optional<cdi::edits> whole_gpu(const gpu_entry& gpu, findings& report) const;
  [[nodiscard]] std::optional<cdi::edits> instance(const gpu_entry& gpu,
                                                   const mig_entry& mig,
                                                   findings& report) const;
  /// "TARGET::LINK" for the by-path links of the DRM nodes in `edits`.
  [[nodiscard]] std::vector<std::string> by_path_links(const gpu_entry& gpu,
                                                       const cdi::edits& edits) const;
  /// nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-modeset. `majors` is the text of
  /// /proc/devices, to check the major of nvidia-uvm's node. Adds nvidiactl and nvidia-uvm to
  /// `report.missing_control_nodes`.
  [[nodiscard]] cdi::edits common(std::string_view majors, findings& report) const;

 private:
  [[nodiscard]] std::string outside(const std::string& path) const;
  void add(cdi::edits& edits, const cdi::device_node& node) const;

  std::string dev_root_;  ///< without a trailing slash; empty for "/"
  std::string sys_root_;
  mig_minors minors_;
};

}  // namespace gpushm::discover
