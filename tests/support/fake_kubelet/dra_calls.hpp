// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/channel.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gpushm_testing {

struct dra_claim {
  std::string name_space;
  std::string name;
  std::string uid;
};

struct dra_device {
  std::vector<std::string> requests;
  std::string pool;
  std::string device;
  std::vector<std::string> cdi_devices;
  std::optional<std::string> share_id;
  bool operator==(const dra_device&) const = default;
};

/// A driver's answer for one claim. If `error` is not empty, the devices are meaningless.
struct dra_response {
  std::vector<dra_device> devices;
  std::string error;
  bool operator==(const dra_response&) const = default;
};

/// Answers by UID.
using dra_responses = std::map<std::string, dra_response>;

// Each makes one call of the service "v1.DRAPlugin" or "v1beta1.DRAPlugin". If the call fails, its
// text is the error of every claim, as in a kubelet. A claim without an answer gets an error, too.
[[nodiscard]] dra_responses call_prepare(const std::shared_ptr<grpc::Channel>& channel,
                                         const std::string& service,
                                         const std::vector<dra_claim>& claims,
                                         std::chrono::milliseconds timeout);
[[nodiscard]] dra_responses call_unprepare(const std::shared_ptr<grpc::Channel>& channel,
                                           const std::string& service,
                                           const std::vector<dra_claim>& claims,
                                           std::chrono::milliseconds timeout);

}  // namespace gpushm_testing
