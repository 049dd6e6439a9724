// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver/visibility.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <map>
#include <mutex>

#include "base/files/fork_guard.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "gpu/driver/devices.hpp"

namespace gpushm::driver {

namespace {

bool has_mknod_capability() noexcept {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> data{};
  return ::syscall(SYS_capget, &header, data.data()) == 0 &&
         (data[0].effective & (1U << static_cast<unsigned int>(CAP_MKNOD))) != 0;
}

// libcuda creates missing nodes in /dev, itself or through this helper if it is set-uid root.
bool driver_can_make_nodes(const std::string& root) noexcept {
  if (root != "/dev") {
    return false;
  }
  struct stat helper {};
  const bool set_uid_helper = ::stat("/usr/bin/nvidia-modprobe", &helper) == 0 &&
                              helper.st_uid == 0 && (helper.st_mode & S_ISUID) != 0;
  return has_mknod_capability() || set_uid_helper;
}

std::optional<error> try_to_open(const device_id& device) {
  const std::string root = dev_root();
  const std::string node = root + "/nvidia" + std::to_string(device.minor);
  const base::unique_fd opened(
      base::retry([&] { return ::open(node.c_str(), O_RDWR | O_CLOEXEC); }));
  if (opened) {
    return std::nullopt;
  }
  const int number = errno;
  // This process has run out of a resource, which is unrelated to the device; not a verdict to
  // keep.
  if (number == EMFILE || number == ENFILE || number == ENOMEM) {
    base::throw_errno(number, "check visibility", device.uuid, "open(" + node + ")");
  }
  return visibility_verdict(device, node, number, driver_can_make_nodes(root));
}

}  // namespace

std::optional<error> visibility_verdict(const device_id& device,
                                        const std::string& node,
                                        int number,
                                        bool can_make_node) {
  std::string_view cause;
  std::string_view remedy;
  switch (number) {
    case ENOENT:
      if (can_make_node) {
        return std::nullopt;
      }
      cause = "the device node does not exist";
      remedy =
          "start the container or pod with this GPU too (CDI, --gpus, or one ResourceClaim for "
          "both)";
      break;
    case EPERM:
      cause = "the device cgroup denies it";
      remedy =
          "start the container or pod with this GPU too (CDI, --gpus, or one ResourceClaim for "
          "both)";
      break;
    case EACCES:
      cause = "the node's owner and mode deny it";
      remedy = "run as a user that may open the node, or change its mode on the host";
      break;
    case ENXIO:
    case ENODEV:
    case EIO:
      cause = "the kernel has no working GPU for the node";
      remedy = "check on the host that nvidia-smi shows this GPU";
      break;
    default:
      cause = "the device node cannot be opened";
      remedy = "check on the host that nvidia-smi shows this GPU";
      break;
  }
  const std::string gpu_text =
      device.pci_address.empty() ? device.uuid : device.uuid + " at PCI " + device.pci_address;
  return error(errc::device_not_visible,
               "check visibility",
               device.uuid,
               "this process may not use " + gpu_text + ": " + std::string(cause) + ": open(" +
                   node + "): " + base::errno_text(number),
               remedy);
}

namespace {

struct results {
  base::fork_safe_mutex mutex;
  std::map<std::int32_t, std::optional<error>> of_minor;
};
results& known_results() {
  static auto* const all = new results;  // NOLINT(cppcoreguidelines-owning-memory): leaked
  return *all;
}
// Created when the library is loaded: a forked child must not find it half created.
[[maybe_unused]] const results& created_at_load = known_results();

}  // namespace

void check_visible(const device_id& device) {
  if (device.kind == device_kind::host || device.minor < 0) {
    return;
  }
  results& results = known_results();
  std::optional<std::optional<error>> known;
  {
    const std::lock_guard lock(results.mutex);
    if (const auto at = results.of_minor.find(device.minor); at != results.of_minor.end()) {
      known = at->second;
    }
  }
  if (!known) {
    known = try_to_open(device);
    const std::lock_guard lock(results.mutex);
    results.of_minor.emplace(device.minor, *known);
  }
  if (*known) {
    throw error(**known);
  }
}

}  // namespace gpushm::driver
