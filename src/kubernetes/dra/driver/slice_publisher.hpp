// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <stop_token>
#include <string>
#include <thread>

#include "base/report/operations.hpp"
#include "kubernetes/dra/claims/cluster.hpp"
#include "kubernetes/dra/claims/rate_limiter.hpp"
#include "kubernetes/dra/driver/slice.hpp"

namespace gpushm::dra {

/// Keeps this driver's ResourceSlice up to date: creates it, recreates it after a kubelet deleted
/// it, rewrites it after other clients changed it, and removes superfluous slices of this driver
/// and node. Never touches slices of other drivers and nodes, whatever their names.
///
/// The slice is written at most 10 times in a burst and then once in 30 s, and at most 100
/// superfluous slices are removed in a burst and then one per second: each write makes the
/// scheduler reevaluate the pool.
///
/// Switches to a served version of the API when the server no longer serves the current one.
///
/// Thread-safety: shared objects: safe.
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
  /// Does not remove the slice.
  ~slice_publisher();

  [[nodiscard]] state now() const;

 private:
  void run(const std::stop_token& stop);
  void handle_list(const std::vector<nlohmann::json>& items);
  void handle_event(const api_client::watch_event& event);
  void handle_failure(const std::exception& failure);
  void reconcile();
  void publish(const nlohmann::json* current);
  /// Uses the current version of the API.
  void watch();
  void create();
  void replace(const nlohmann::json& stored);
  void remove(const std::string& name, const nlohmann::json& slice);
  void store(const nlohmann::json& slice);
  void erase(const nlohmann::json& slice);
  /// Fetches the server's slice. Throws `error` (already_exists) for one of another node or driver.
  void fetch_own();
  void fetch_node_uid();
  void check_rate(rate_limiter& limiter);
  /// `stored` is the server's reply to `written`, which was sent after `lists` lists.
  void handle_reply(const nlohmann::json& written,
                    const nlohmann::json& stored,
                    std::uint64_t lists);
  void report(const std::string& problem);
  [[nodiscard]] nlohmann::json expected_slice(std::int64_t generation);

  const slice_options options_;
  resource_api& api_;
  cluster& through_;
  base::operation_observer* const observer_;

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, nlohmann::json> slices_;  ///< by name
  std::deque<std::string> deleted_uids_;          ///< oldest first
  std::uint64_t lists_ = 0;                       ///< number of lists received
  bool listed_again_ = false;  ///< the server is reachable: failed requests may succeed now
  bool dirty_ = false;
  bool stale_ = false;           ///< `slices_` may be stale: fetch from the server
  std::int64_t generation_ = 0;  ///< the highest seen
  state state_;
  std::unique_ptr<cluster::subscription> subscription_;

  // Used by the thread only.
  std::string watched_version_;
  std::string node_uid_;  ///< empty: not fetched yet, or stale
  rate_limiter writes_{10, std::chrono::seconds(30)};
  rate_limiter removals_{100, std::chrono::seconds(1)};
  rate_limiter version_changes_{5, std::chrono::seconds(10)};
  std::jthread thread_;  // last: it uses all other members
};

}  // namespace gpushm::dra
