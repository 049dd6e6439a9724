// SPDX-License-Identifier: Apache-2.0
#include "tests/support/driver_tree/sysfs_tree.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/support/driver_tree/driver_tree.hpp"
#include "tests/support/driver_tree/gpu_tree.hpp"

namespace gpushm_tests {

namespace fs = std::filesystem;

namespace {

/// A relative link, as the kernel's are.
void link_to(const std::string& link, const std::string& target) {
  put_link(link, fs::path(target).lexically_relative(fs::path(link).parent_path()).string());
}

class sysfs_maker {
 public:
  explicit sysfs_maker(const std::string& root)
      : sys_(fs::absolute(root).string() + "/sys"), dev_(fs::absolute(root).string() + "/dev") {}

  void take(const std::string& line) {
    std::istringstream words(line);
    std::string keyword;
    words >> keyword;
    if (keyword.empty() || keyword.front() == '#') {
      return;
    }
    if (keyword == "groups") {
      words >> video_ >> render_;
    } else if (keyword == "pci" || keyword == "vf") {
      add_pci(words, keyword == "vf");
    } else if (keyword == "platform") {
      std::string name;
      words >> name;
      add_nodes(words, sys_ + "/devices/platform/" + name, "platform-" + name);
    } else if (keyword == "kfd") {
      add_kfd(words);
    } else if (keyword == "node") {
      std::string path;
      unsigned mode = 0;
      unsigned group = 0;
      words >> path >> std::oct >> mode >> std::dec >> group;
      put_node(dev_ + path.substr(std::string("/dev").size()), mode, group);
    } else {
      throw std::runtime_error("sysfs tree: " + line);
    }
  }

 private:
  void add_pci(std::istringstream& words, bool virtual_function) {
    std::string address;
    std::string parent;
    std::string physical;
    words >> address >> parent;
    if (virtual_function) {
      words >> physical;
    }
    std::string vendor;
    std::string number;
    std::string type;
    std::string driver;
    words >> vendor >> number >> type >> driver;
    const std::string device = sys_ + "/devices/" + parent + "/" + address;
    put_file(device + "/vendor", vendor + "\n");
    put_file(device + "/device", number + "\n");
    put_file(device + "/class", type + "\n");
    std::string event = "PCI_SLOT_NAME=" + address + "\n";
    if (driver != "-") {
      event = "DRIVER=" + driver + "\n" + event;
      link_to(device + "/driver", sys_ + "/bus/pci/drivers/" + driver);
      fs::create_directories(sys_ + "/bus/pci/drivers/" + driver);
    }
    put_file(device + "/uevent", event);
    if (virtual_function) {
      put_link(device + "/physfn", "../" + physical);
    }
    link_to(sys_ + "/bus/pci/devices/" + address, device);
    add_nodes(words, device, "pci-" + address);
  }

  void add_nodes(std::istringstream& words, const std::string& device, const std::string& path) {
    fs::create_directories(device);
    for (std::string node; words >> node;) {
      const bool render = node.starts_with("renderD");
      const std::string entry = device + "/drm/" + node;
      put_file(entry + "/uevent", "DEVNAME=dri/" + node + "\nDEVTYPE=drm_minor\n");
      link_to(entry + "/device", device);
      link_to(sys_ + "/class/drm/" + node, entry);
      if (!render) {  // a connector of a screen
        fs::create_directories(entry + "/" + node + "-HDMI-A-1");
        link_to(sys_ + "/class/drm/" + node + "-HDMI-A-1", entry + "/" + node + "-HDMI-A-1");
      }
      put_node(dev_ + "/dri/" + node, 0660, render ? render_ : video_);
      put_link(dev_ + "/dri/by-path/" + path + (render ? "-render" : "-card"), "../" + node);
    }
  }

  void add_kfd(std::istringstream& words) const {
    std::string number;
    words >> number;
    const std::string topology = sys_ + "/devices/virtual/kfd/kfd/topology";
    std::string text;
    for (std::string word; words >> word;) {
      std::replace(word.begin(), word.end(), '=', ' ');
      text += word + "\n";
    }
    put_file(topology + "/nodes/" + number + "/properties", text);
    put_file(topology + "/generation_id", "2\n");
    if (!fs::exists(sys_ + "/class/kfd/kfd")) {
      link_to(sys_ + "/class/kfd/kfd", sys_ + "/devices/virtual/kfd/kfd");
    }
  }

  std::string sys_;
  std::string dev_;
  unsigned video_ = 44;
  unsigned render_ = 109;
};

}  // namespace

void make_sysfs_tree(const std::vector<std::string>& lines, const std::string& root) {
  sysfs_maker maker(root);
  for (const std::string& line : lines) {
    maker.take(line);
  }
}

void make_sysfs_tree(const std::string& name, const std::string& root) {
  std::ifstream list(std::string(GPUSHM_SYSFS_TREES_DIR) + "/" + name + ".txt");
  if (!list) {
    throw std::runtime_error("no sysfs tree " + name);
  }
  sysfs_maker maker(root);
  for (std::string line; std::getline(list, line);) {
    maker.take(line);
  }
}

}  // namespace gpushm_tests
