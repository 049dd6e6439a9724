// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <thread>

#include "base/operations.hpp"
#include "kubelet/dra/cluster.hpp"
#include "kubelet/dra/slice.hpp"

namespace gpushm::dra {

/// Keeps this driver's ResourceSlice as it should be: makes it, makes it again when a kubelet has
/// deleted it, mends what others changed, removes slices of this driver and node that are not its.
///
/// Shared objects: safe.
class slice_publisher {
 public:
  struct state {
    bool published = false;
    std::string problem;
  };

  /// Nothing is owned; `observer` may be null.
  slice_publisher(slice_options options,
                  resource_api& api,
                  cluster& through,
                  base::operation_observer* observer);
  slice_publisher(const slice_publisher&) = delete;
  slice_publisher& operator=(const slice_publisher&) = delete;
  /// Leaves the slice as it is.
  ~slice_publisher();

  [[nodiscard]] state now() const;

 private:
  void run(const std::stop_token& stop);
  void take_list(const std::vector<nlohmann::json>& items);
  void take_event(const kube::watch_event& event);
  void reconcile();
  void watch_if_not_yet();
  void create();
  void replace(const nlohmann::json& found);
  void remove(const std::string& name, const nlohmann::json& slice);
  void know(const nlohmann::json& slice);
  void forget(const nlohmann::json& slice);
  void fetch_own();
  [[nodiscard]] nlohmann::json wanted(std::int64_t generation);

  const slice_options options_;
  resource_api& api_;
  cluster& through_;
  base::operation_observer* const observer_;

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, nlohmann::json> known_;  ///< by name
  std::deque<std::string> gone_;                 ///< UIDs
  bool listed_ = false;
  bool dirty_ = false;
  std::int64_t generation_ = 0;  ///< the highest that was seen
  state state_;
  std::unique_ptr<cluster::subscription> subscription_;
  std::jthread thread_;  // last: it uses all the others
};

}  // namespace gpushm::dra
