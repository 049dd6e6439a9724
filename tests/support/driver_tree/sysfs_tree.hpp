// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpushm_tests {

// The sysfs and the device nodes of a machine with GPUs of any maker, as the kernel and udev lay
// them out: tests/data/discover/machines/NAME.txt.
//
//   groups VIDEO RENDER            of the nodes card* and renderD*; comes first
//   pci ADDRESS PARENT VENDOR DEVICE CLASS DRIVER [NODE...]
//                                  a device below /sys/devices/PARENT; driver "-": none
//   vf ADDRESS PARENT PF VENDOR DEVICE CLASS DRIVER [NODE...]
//                                  the same for a virtual function of PF
//   platform NAME [NODE...]        a platform device with DRM nodes
//   kfd N KEY=VALUE...             a node of the topology of AMD's compute driver
//   node PATH MODE [GROUP]         another device node

/// Creates ROOT/{sys,dev} from the list `name`. Throws std::runtime_error, also when the list does
/// not exist.
void make_sysfs_tree(const std::string& name, const std::string& root);

/// The same from lines.
void make_sysfs_tree(const std::vector<std::string>& lines, const std::string& root);

}  // namespace gpushm_tests
