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

/// What a driver answers for one claim; with an error the devices do not count.
struct dra_answer {
  std::vector<dra_device> devices;
  std::string error;
  bool operator==(const dra_answer&) const = default;
};

/// Answers by UID.
using dra_answers = std::map<std::string, dra_answer>;

// One call each, of the service "v1.DRAPlugin" or "v1beta1.DRAPlugin". A call that fails as a whole
// gives each claim its text as the error, as a kubelet does; so does a claim without an answer.
[[nodiscard]] dra_answers call_prepare(const std::shared_ptr<grpc::Channel>& channel,
                                       const std::string& service,
                                       const std::vector<dra_claim>& claims,
                                       std::chrono::milliseconds timeout);
[[nodiscard]] dra_answers call_unprepare(const std::shared_ptr<grpc::Channel>& channel,
                                         const std::string& service,
                                         const std::vector<dra_claim>& claims,
                                         std::chrono::milliseconds timeout);

}  // namespace gpushm_testing
