// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpushm::discover {

/// The result of `create_missing_nodes`.
struct node_changes {
  std::vector<std::string> created;  ///< paths on this machine
  std::vector<std::string> failed;   ///< "/dev/nvidia-uvm: mknod: Operation not permitted (EPERM)"
};

/// Creates the device nodes of the loaded driver that are missing below `dev_root`, the prefix of
/// /dev: nvidiactl, nvidia-uvm, nvidia-uvm-tools and nvidia-modeset, each GPU's node, and those of
/// the existing MIG instances. Replaces nodes of nvidia-uvm that have an earlier major number.
/// Numbers, owner and mode are those in `proc_root` ("/proc"), as of nvidia-modprobe; the driver's
/// parameter ModifyDeviceFiles=0 forbids changes. Creates nothing for a module that is not loaded.
///
/// Does not use the driver. Throws only `std::bad_alloc`.
[[nodiscard]] node_changes create_missing_nodes(const std::string& dev_root,
                                                const std::string& proc_root);

}  // namespace gpushm::discover
