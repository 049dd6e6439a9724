// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <vector>

#include "client/timeline/timeline_impl.hpp"
#include "gpu/streams/stream_operations.hpp"
#include "gpushm/timeline.h"

/// The handle of the C interface, which has the contracts: operations of one node of a graph. Their
/// timelines may be closed before; their memory stays mapped as long as this exists.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
struct gpushm_graph_operations {
 public:
  /// Records `operations` in the graph into which `stream` is captured.
  gpushm_graph_operations(gpushm::cuda::CUstream stream,
                          std::span<const gpushm_stream_operation> operations);
  gpushm_graph_operations(const gpushm_graph_operations&) = delete;
  gpushm_graph_operations& operator=(const gpushm_graph_operations&) = delete;
  ~gpushm_graph_operations();

  void set(gpushm::cuda::CUgraphExec executable,
           gpushm::cuda::CUstream stream,
           std::span<const std::uint64_t> values,
           std::chrono::milliseconds timeout);

 private:
  using lives = std::vector<std::shared_ptr<gpushm_timeline::life>>;

  [[nodiscard]] std::vector<std::shared_lock<std::shared_mutex>> use_timelines() const;

  const std::uint64_t forks_ = gpushm::client_detail::fork_count();
  std::mutex mutex_;
  std::vector<gpushm_stream_operation> what_;
  lives lives_;  ///< of their timelines, in the order of locking
  /// Launches read and write their words.
  std::vector<gpushm_timeline::place_ptr> places_;
  gpushm::streams::graph_node node_;
};
