// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "gpu/driver/cuda_abi.hpp"

namespace gpushm::streams {

/// One operation on a word.
struct operation {
  enum class kind : std::uint8_t {
    wait,          ///< until the word, compared cyclically, has reached the value
    wait_any_bit,  ///< until the word has a bit of the value
    store,
  } what = kind::wait;
  cuda::CUdeviceptr address = 0;
  std::uint64_t value = 0;
};
/// In one `enqueue`.
inline constexpr std::size_t max_operations = 64;

/// For calls that register shared memory with CUDA or enqueue operations on it: what they return
/// shows whether streams can use it; no attribute is queried (one is not always true: FACTS I9).
/// Throws driver_error.
void check_operation(cuda::CUresult result,
                     std::string_view operation,
                     std::string_view object,
                     std::string_view call);

/// Enqueues a signal: what the stream did before is visible, to every GPU and CPU, to those who see
/// the value. Does not wait for the stream. Throws driver_error.
void enqueue_signal(cuda::CUstream stream,
                    cuda::CUdeviceptr address,
                    std::uint64_t value,
                    std::string_view object);
/// Enqueues a wait until the word, compared cyclically, has reached the value.
void enqueue_wait(cuda::CUstream stream,
                  cuda::CUdeviceptr address,
                  std::uint64_t value,
                  std::string_view object);
/// Enqueues all, in this order, by one call of the driver. Precondition: not more than
/// `max_operations`.
void enqueue(cuda::CUstream stream, std::span<const operation> batch, std::string_view object);

/// Operations that a graph contains.
struct graph_node {
  cuda::CUgraphNode node = nullptr;
  cuda::CUcontext context = nullptr;
};
/// As `enqueue`, on a stream that is captured. `batch` must not be empty. Throws driver_error.
[[nodiscard]] graph_node record(cuda::CUstream stream,
                                std::span<const operation> batch,
                                std::string_view object);
/// Sets the operations of the next launches of `executable`, which was made of the node's graph.
/// Throws driver_error, and then nothing is changed.
void set_operations(cuda::CUgraphExec executable,
                    const graph_node& node,
                    std::span<const operation> batch,
                    std::string_view object);

/// Whether calls on `stream` are recorded for a graph instead of executed.
[[nodiscard]] bool is_capturing(cuda::CUstream stream) noexcept;

}  // namespace gpushm::streams
