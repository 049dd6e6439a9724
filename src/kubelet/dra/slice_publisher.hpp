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
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <thread>

#include "base/operations.hpp"
#include "kubelet/dra/cluster.hpp"
#include "kubelet/dra/slice.hpp"
#include "kubelet/dra/write_brake.hpp"

namespace gpushm::dra {

/// Keeps this driver's ResourceSlice as it should be: makes it, makes it again when a kubelet has
/// deleted it, writes it again when others changed it, removes slices of this driver and node that
/// are not its. Slices of other drivers and nodes are never touched, whatever their names.
///
/// Whatever others do, the slice is written at most 10 times at once and then once in 30 s, and
/// superfluous slices are removed at most 100 at once and then one a second: each write makes the
/// scheduler look at the pool again.
///
/// A version of the API that the server does not serve any more is left for the one that it does.
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
  void take_failure(const std::exception& failure);
  void reconcile();
  void publish(const nlohmann::json* current);
  /// In the version of the API that is spoken now.
  void watch();
  void create();
  void replace(const nlohmann::json& found);
  void remove(const std::string& name, const nlohmann::json& slice);
  void know(const nlohmann::json& slice);
  void forget(const nlohmann::json& slice);
  /// What the server has now. Throws `error` (already_exists) for a slice of another node, driver.
  void fetch_own();
  void ask_node();
  void brake(write_brake& of);
  /// `made` is what the server made of `written`, which was sent after `lists` lists.
  void take_answer(const nlohmann::json& written, const nlohmann::json& made, std::uint64_t lists);
  void say(const std::string& problem);
  [[nodiscard]] nlohmann::json wanted(std::int64_t generation);

  const slice_options options_;
  resource_api& api_;
  cluster& through_;
  base::operation_observer* const observer_;

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, nlohmann::json> known_;  ///< by name
  std::deque<std::string> gone_;                 ///< UIDs
  std::uint64_t lists_ = 0;                      ///< that were taken
  bool listed_again_ = false;                    ///< the server is there: what failed may work now
  bool dirty_ = false;
  bool doubtful_ = false;        ///< what is known may be old: the server is asked
  std::int64_t generation_ = 0;  ///< the highest that was seen
  state state_;
  std::unique_ptr<cluster::subscription> subscription_;

  // Of the thread.
  std::string watched_version_;
  std::string node_uid_;  ///< empty: not asked for yet, or not to be believed any more
  write_brake writes_{10, std::chrono::seconds(30)};
  write_brake removals_{100, std::chrono::seconds(1)};
  write_brake version_changes_{5, std::chrono::seconds(10)};
  std::jthread thread_;  // last: it uses all the others
};

}  // namespace gpushm::dra
