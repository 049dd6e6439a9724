// SPDX-License-Identifier: Apache-2.0
#include "containers/discover/gpus/drm_devices.hpp"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/files/file.hpp"
#include "base/text/text.hpp"

namespace gpushm::discover {

namespace {

constexpr std::size_t max_attribute_bytes = 4096;  // a page, the kernel's limit
constexpr std::size_t max_digits = 7;              // of a minor number: 20 bits
constexpr std::string_view decimal = "0123456789";
constexpr std::string_view hexadecimal = "0123456789abcdef";

bool consists_of(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

/// "0000:03:00.0": a domain of four digits or more, a bus, a device and a function.
bool is_pci_address(std::string_view text) {
  const auto parts = base::split(text, ":.");
  return parts.size() == 4 && parts[0].size() >= 4 && parts[0].size() <= 8 &&
         parts[1].size() == 2 && parts[2].size() == 2 && parts[3].size() == 1 &&
         text == fmt::format("{}:{}:{}.{}", parts[0], parts[1], parts[2], parts[3]) &&
         std::all_of(parts.begin(), parts.end(), [](std::string_view part) {
           return consists_of(part, hexadecimal);
         });
}

bool is_partition(std::string_view name) {
  constexpr std::string_view stem = "amdgpu_xcp";
  return name.starts_with(stem) && name.size() > stem.size() + 1 &&
         (name[stem.size()] == '_' || name[stem.size()] == '.') &&
         consists_of(name.substr(stem.size() + 1), decimal) &&
         name.size() <= stem.size() + 1 + max_digits;
}

bool is_node(std::string_view name) {
  constexpr std::string_view card = "card";
  return render_minor(name) ||
         (name.starts_with(card) && consists_of(name.substr(card.size()), decimal) &&
          name.size() <= card.size() + max_digits);
}

/// A number as PCI attributes have it: "0x8086". 0 if the file does not have that form.
std::uint32_t attribute(const root_view& sys, const std::string& path) {
  const auto text = read_file_in(sys, path, max_attribute_bytes);
  std::string_view digits = base::trim(text ? std::string_view(*text) : std::string_view());
  if (!digits.starts_with("0x")) {
    return 0;
  }
  digits.remove_prefix(2);
  return base::number<std::uint32_t>(digits, 16).value_or(0);
}

std::string driver_of(const root_view& sys, const std::string& device) {
  std::error_code failed;
  // Only the name in the link matters: recorded trees often lack its target.
  const std::string name =
      std::filesystem::read_symlink(sys.outside(join(device, "driver")), failed)
          .filename()
          .string();
  constexpr std::string_view allowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
  return !failed && consists_of(name, allowed) ? name : std::string();
}

/// The PCI address of a device whose directory has another name, as in copies of class/drm.
std::string slot_name(const root_view& sys, const std::string& device) {
  constexpr std::string_view key = "PCI_SLOT_NAME=";
  const auto text = read_file_in(sys, join(device, "uevent"), max_attribute_bytes);
  for (const std::string_view line : base::lines_of(text ? *text : std::string_view())) {
    if (line.starts_with(key) && is_pci_address(line.substr(key.size()))) {
      return std::string(line.substr(key.size()));
    }
  }
  return {};
}

/// Collects devices by name.
class collector {
 public:
  explicit collector(const root_view& sys) : sys_(sys) {}

  /// Adds the device in the directory `path`, and `node` to its nodes if not empty. Only displays
  /// and accelerators (classes 03 and 12) count without a node.
  void add(const std::string& path, const std::string& node = {}) {
    const auto real = sys_.resolve(path);
    if (!real) {
      return;
    }
    std::string name(base::name_of(*real));
    const bool partition = is_partition(name);
    if (!partition && !is_pci_address(name)) {
      name = slot_name(sys_, *real);
    }
    if (name.empty()) {
      return;
    }
    drm_device device;
    for (const std::string& each : sys_.names(join(*real, "drm"))) {
      if (is_node(each)) {
        device.nodes.push_back(each);
      }
    }
    if (!node.empty()) {
      device.nodes.push_back(node);
    }
    const std::uint32_t base_class = attribute(sys_, join(*real, "class")) >> 16U;
    if (device.nodes.empty() && (partition || (base_class != 0x03 && base_class != 0x12))) {
      return;
    }
    device.name = name;
    device.is_pci = !partition;
    device.vendor = partition ? pci_vendor_amd : attribute(sys_, join(*real, "vendor"));
    device.device = attribute(sys_, join(*real, "device"));
    device.driver = driver_of(sys_, *real);
    merge(std::move(device));
  }

  [[nodiscard]] std::vector<drm_device> take() && {
    std::vector<drm_device> devices;
    for (const bool pci : {true, false}) {
      for (auto& [name, device] : devices_) {
        if (device.is_pci == pci) {
          devices.push_back(std::move(device));
        }
      }
    }
    return devices;
  }

 private:
  void merge(drm_device&& device) {
    drm_device& known = devices_.try_emplace(device.name, device).first->second;
    known.nodes.insert(known.nodes.end(), device.nodes.begin(), device.nodes.end());
    std::sort(known.nodes.begin(), known.nodes.end());
    known.nodes.erase(std::unique(known.nodes.begin(), known.nodes.end()), known.nodes.end());
  }

  const root_view& sys_;
  std::map<std::string, drm_device, std::less<>> devices_;
};

}  // namespace

std::optional<std::string> read_file_in(const root_view& view,
                                        std::string_view path,
                                        std::size_t limit_bytes) {
  const auto real = view.resolve(path);
  struct stat about {};
  // A pipe would block, and a device may be endless.
  if (!real || ::lstat(view.outside(*real).c_str(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return std::nullopt;
  }
  auto text = base::read_small_file(view.outside(*real), limit_bytes + 1);
  return text && text->size() <= limit_bytes ? text : std::nullopt;
}

std::optional<std::uint32_t> render_minor(std::string_view node) noexcept {
  constexpr std::string_view stem = "renderD";
  if (!node.starts_with(stem) || node.size() > stem.size() + max_digits) {
    return std::nullopt;
  }
  return base::number<std::uint32_t>(node.substr(stem.size()));
}

std::vector<drm_device> find_drm_devices(const root_view& sys) {
  collector found(sys);
  for (const std::string& name : sys.names("/bus/pci/devices")) {
    if (is_pci_address(name)) {
      found.add(join("/bus/pci/devices", name));
    }
  }
  for (const std::string& name : sys.names("/devices/platform")) {
    if (is_partition(name)) {
      found.add(join("/devices/platform", name));
    }
  }
  for (const std::string& name : sys.names("/class/drm")) {
    if (!is_node(name)) {
      continue;
    }
    const std::string entry = join("/class/drm", name);
    const auto real = sys.resolve(entry);
    const std::string_view parent = real ? base::directory_of(*real) : std::string_view();
    // The kernel's layout is DEVICE/drm/NODE; each node also has a link "device".
    found.add(base::name_of(parent) == "drm" && parent != "/class/drm"
                  ? std::string(base::directory_of(parent))
                  : join(entry, "device"),
              name);
  }
  return std::move(found).take();
}

bool is_usable(const drm_device& device,
               const std::vector<std::string_view>& drivers,
               findings& report) {
  const bool known_driver =
      device.driver.empty() ||
      std::find(drivers.begin(), drivers.end(), device.driver) != drivers.end();
  if (known_driver && !device.nodes.empty()) {
    return true;
  }
  const std::string text =
      fmt::format("{} ({})",
                  device.name,
                  device.driver.empty() ? std::string("no driver")
                                        : std::string("driver ").append(device.driver));
  constexpr const char* kind = "DRM nodes of";
  if (report.missing.empty() || report.missing.back().kind != kind) {
    report.missing.push_back({kind, {}});
  }
  report.missing.back().names.push_back(text);
  return false;
}

}  // namespace gpushm::discover
