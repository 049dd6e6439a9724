// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "kubelet/plugin/resources/resource.hpp"

namespace gpushm_testing {

/// What a kubelet answers to a pod that cannot be admitted.
class admission_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Which devices of one resource there are, and which pod has which. What a pod has it keeps, also
/// when the device turns unhealthy or is no longer in the list.
///
/// Distinct objects: safe. Shared objects: unsafe.
class device_accounts {
 public:
  /// The whole list of now.
  void set_devices(std::vector<gpushm::plugin::device> devices) { devices_ = std::move(devices); }
  void mark_all_unhealthy();
  [[nodiscard]] const std::vector<gpushm::plugin::device>& devices() const { return devices_; }

  /// Healthy and nobody's, in the order of the list.
  [[nodiscard]] std::vector<std::string> available() const;
  /// `preferred` first as far as they are available, then others. They are the pod's from now on.
  /// Throws `admission_error` when fewer than `count` are available.
  [[nodiscard]] std::vector<std::string> take(const std::string& pod,
                                              const std::string& resource,
                                              std::size_t count,
                                              const std::vector<std::string>& preferred);
  void give_back(const std::vector<std::string>& ids);
  void give_back_all(const std::string& pod);
  [[nodiscard]] const std::map<std::string, std::string>& owners() const { return owner_of_; }

 private:
  std::vector<gpushm::plugin::device> devices_;
  std::map<std::string, std::string> owner_of_;
};

}  // namespace gpushm_testing
