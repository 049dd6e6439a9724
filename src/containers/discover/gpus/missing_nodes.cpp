// SPDX-License-Identifier: Apache-2.0
#include "containers/discover/gpus/missing_nodes.hpp"

#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/text/text.hpp"
#include "containers/discover/gpus/nodes.hpp"

namespace gpushm::discover {

namespace {

namespace fs = std::filesystem;

// Static numbers of the driver.
constexpr unsigned int nvidia_major = 195;
constexpr unsigned int control_minor = 255;
constexpr unsigned int modeset_minor = 254;
constexpr std::size_t max_text_bytes = std::size_t{256} << 10U;

struct node_rights {
  uid_t uid = 0;
  gid_t gid = 0;
  mode_t mode = 0666;
  bool allowed = true;  ///< the driver allows this process to create the node
};

std::string proc_text(const std::string& path) {
  return base::read_small_file(path, max_text_bytes).value_or(std::string());
}

// The number in the line "KEY: 438".
template <typename Number>
std::optional<Number> number_of(std::string_view text, std::string_view key) {
  const auto value = base::field(text, key);
  return value ? base::number<Number>(*value) : std::nullopt;
}

class node_creator {
 public:
  node_creator(const std::string& dev_root, const std::string& proc_root)
      : dev_root_(dev_root == "/" ? std::string() : dev_root),
        driver_(proc_root + "/driver"),
        majors_(proc_text(proc_root + "/devices")) {
    const std::string params = proc_text(driver_ + "/nvidia/params");
    rights_.uid = number_of<uid_t>(params, "DeviceFileUID").value_or(rights_.uid);
    rights_.gid = number_of<gid_t>(params, "DeviceFileGID").value_or(rights_.gid);
    rights_.mode = number_of<mode_t>(params, "DeviceFileMode").value_or(rights_.mode);
    rights_.allowed = number_of<int>(params, "ModifyDeviceFiles").value_or(1) != 0;
  }

  void create_all() {
    std::error_code failed;
    if (fs::exists(driver_ + "/nvidia/version", failed)) {
      create("/dev/nvidiactl", nvidia_major, control_minor, rights_);
      create_gpus();
    }
    if (major_of(majors_, "nvidia-modeset")) {
      create("/dev/nvidia-modeset", nvidia_major, modeset_minor, rights_);
    }
    if (const auto uvm = major_of(majors_, "nvidia-uvm")) {
      create("/dev/nvidia-uvm", *uvm, 0, rights_);
      create("/dev/nvidia-uvm-tools", *uvm, 1, rights_);
    }
    if (const auto caps = major_of(majors_, "nvidia-caps")) {
      create_capabilities(*caps);
    }
  }

  node_changes result;

 private:
  void create_gpus() {
    std::error_code failed;
    for (fs::directory_iterator each(driver_ + "/nvidia/gpus", failed);
         !failed && each != fs::directory_iterator();
         each.increment(failed)) {
      const auto minor =
          number_of<unsigned int>(proc_text(each->path() / "information"), "Device Minor");
      if (minor) {
        create(fmt::format("/dev/nvidia{}", *minor), nvidia_major, *minor, rights_);
      }
    }
  }

  // capabilities/gpu0/mig/gi1/access and .../gi1/ci0/access exist for existing instances.
  void create_capabilities(unsigned int major) {
    const mig_minors minors = parse_mig_minors(proc_text(driver_ + "/nvidia-caps/mig-minors"));
    for (const auto& [name, minor] : minors) {
      // "gpu0/gi1/access" is the file gpu0/mig/gi1/access.
      const auto slash = name.find('/');
      if (slash == std::string::npos) {
        continue;
      }
      const std::string file = fmt::format(
          "{}/nvidia/capabilities/{}/mig{}", driver_, name.substr(0, slash), name.substr(slash));
      std::error_code failed;
      if (!fs::exists(file, failed)) {
        continue;
      }
      const std::string text = proc_text(file);
      node_rights rights;
      rights.mode = number_of<mode_t>(text, "DeviceFileMode").value_or(0444);
      rights.allowed = number_of<int>(text, "DeviceFileModify").value_or(1) != 0;
      create(fmt::format("/dev/nvidia-caps/nvidia-cap{}", minor),
             major,
             static_cast<unsigned int>(minor),
             rights);
    }
  }

  // Leaves a node with the static major number, whatever its minor number is, and other files.
  [[nodiscard]] static bool is_needed(const std::string& path, unsigned int major) {
    struct stat about {};
    if (::lstat(path.c_str(), &about) != 0) {
      return errno == ENOENT || errno == ENOTDIR;
    }
    return major != nvidia_major && S_ISCHR(about.st_mode) && gnu_dev_major(about.st_rdev) != major;
  }

  void create(const std::string& inside,
              unsigned int major,
              unsigned int minor,
              const node_rights& rights) {
    const std::string path = dev_root_ + inside;
    if (!is_needed(path, major)) {
      return;
    }
    if (!rights.allowed) {
      result.failed.push_back(path + ": the driver's parameter ModifyDeviceFiles=0 forbids it");
      return;
    }
    const std::string directory(base::directory_of(path));
    if (directory.ends_with("/nvidia-caps")) {
      static_cast<void>(::mkdir(directory.c_str(), 0755));
      static_cast<void>(::chmod(directory.c_str(), 0755));
    }
    // Renamed into place: programs never see a node with other rights, and a failure keeps the old.
    const std::string temporary =
        fmt::format("{}/.{}-{}", directory, base::name_of(path), ::getpid());
    const char* call = nullptr;
    if (::mknod(temporary.c_str(), S_IFCHR | rights.mode, gnu_dev_makedev(major, minor)) != 0) {
      call = "mknod";
    } else if (::chown(temporary.c_str(), rights.uid, rights.gid) != 0) {
      call = "chown";
    } else if (::chmod(temporary.c_str(), rights.mode) != 0) {
      call = "chmod";
    } else if (::rename(temporary.c_str(), path.c_str()) != 0) {
      call = "rename";
    }
    if (call != nullptr) {
      result.failed.push_back(fmt::format("{}: {}: {}", path, call, base::errno_text(errno)));
      static_cast<void>(::unlink(temporary.c_str()));
      return;
    }
    result.created.push_back(path);
  }

  std::string dev_root_;
  std::string driver_;
  std::string majors_;
  node_rights rights_;
};

}  // namespace

node_changes create_missing_nodes(const std::string& dev_root, const std::string& proc_root) {
  node_creator creator(dev_root, proc_root);
  creator.create_all();
  return std::move(creator.result);
}

}  // namespace gpushm::discover
