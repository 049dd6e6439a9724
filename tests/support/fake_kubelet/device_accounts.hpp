// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "kubernetes/device_plugin/resources/resource.hpp"

namespace gpushm_testing {

/// The reason why a kubelet rejects a pod.
class admission_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The devices of one resource and the pods that they are allocated to. An allocation stays when
/// its device becomes unhealthy or is no longer in the list. Thread-safety: distinct objects: safe;
/// shared objects: unsafe.
class device_accounts {
 public:
  /// Replaces the list.
  void set_devices(std::vector<gpushm::device_plugin::device> devices) {
    devices_ = std::move(devices);
  }
  void mark_all_unhealthy();
  [[nodiscard]] const std::vector<gpushm::device_plugin::device>& devices() const {
    return devices_;
  }

  /// The healthy devices that are not allocated, in the order of the list.
  [[nodiscard]] std::vector<std::string> available() const;
  /// Allocates `count` devices to the pod: first those of `preferred` that are available, then
  /// others. Throws `admission_error` when fewer than `count` are available.
  [[nodiscard]] std::vector<std::string> take(const std::string& pod,
                                              const std::string& resource,
                                              std::size_t count,
                                              const std::vector<std::string>& preferred);
  void release(const std::vector<std::string>& ids);
  void release_all(const std::string& pod);
  [[nodiscard]] const std::map<std::string, std::string>& owners() const { return owner_of_; }

 private:
  std::vector<gpushm::device_plugin::device> devices_;
  std::map<std::string, std::string> owner_of_;
};

}  // namespace gpushm_testing
