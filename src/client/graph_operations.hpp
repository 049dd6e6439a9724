// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "client/timeline_impl.hpp"
#include "gpushm/timeline.h"
#include "streams/stream_operations.hpp"

/// The handle of the C interface, which has the contracts: operations of one node of a graph.
///
/// Thread-safety: distinct objects: safe; shared objects: safe.
struct gpushm_graph_operations {
 public:
  /// Records `what` in the graph into which `stream` is captured.
  gpushm_graph_operations(gpushm::cuda::CUstream stream,
                          std::span<const gpushm_stream_operation> what);

  void set(gpushm::cuda::CUgraphExec executable,
           gpushm::cuda::CUstream stream,
           std::span<const std::uint64_t> values,
           std::chrono::milliseconds timeout);

 private:
  std::mutex mutex_;
  std::vector<gpushm_stream_operation> what_;
  gpushm::streams::graph_node node_;
};
