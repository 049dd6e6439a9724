// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "discover/findings.hpp"
#include "discover/inventory.hpp"

namespace gpushm::discover {

/// The number N of /dev/nvidia-caps/nvidia-capN for each right of a MIG instance, as
/// /proc/driver/nvidia-caps/mig-minors lists them: "gpu0/gi1/access 12". Malformed lines are
/// skipped.
using mig_minors = std::map<std::string, int, std::less<>>;
[[nodiscard]] mig_minors parse_mig_minors(std::string_view text);

/// Device nodes of this machine.
class node_finder {
 public:
  /// `dev_root` stands before /dev outside the container; `sys_root` is as /sys.
  node_finder(std::string dev_root, std::string sys_root, mig_minors minors);

  /// A node that is there; nothing when it is not, or is no character device. Major and minor are
  /// left to the moment of injection: they may change until then (nvidia-uvm's does). Mode and
  /// group are said when not everybody may use the node: nobody but that group is let in then.
  [[nodiscard]] std::optional<cdi::device_node> node(const std::string& path) const;

  /// What a container needs for a board, or an instance of it. Nothing when a node is missing that
  /// it cannot work without; `report.incomplete` says so then.
  [[nodiscard]] std::optional<cdi::edits> board(const gpu_entry& gpu, findings& report) const;
  [[nodiscard]] std::optional<cdi::edits> instance(const gpu_entry& gpu,
                                                   const mig_entry& mig,
                                                   findings& report) const;
  /// "TARGET::LINK" for the names by PCI address of the DRM nodes among `edits`.
  [[nodiscard]] std::vector<std::string> by_path_links(const gpu_entry& gpu,
                                                       const cdi::edits& edits) const;
  /// nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-modeset.
  /// `majors` is the text of /proc/devices, with which nvidia-uvm's node is compared.
  [[nodiscard]] cdi::edits common(std::string_view majors, findings& report) const;

 private:
  [[nodiscard]] std::string outside(const std::string& path) const;
  void add(cdi::edits& edits, const cdi::device_node& node) const;

  std::string dev_root_;  ///< without a slash at its end; empty for "/"
  std::string sys_root_;
  mig_minors minors_;
};

}  // namespace gpushm::discover
