// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpushm/segment.hpp"
#include "gpushm/tensors.hpp"
#include "tensors/files/tensor.hpp"

namespace gpushm_tests {

/// Whether a loaded model has the metadata of this file ("__metadata__"). Throws `gpushm::error`.
[[nodiscard]] bool is_model_of(const gpushm::segment& loaded, const std::string& path);

/// Those elements of a tensor of this shape that have these indices in each dimension, in their
/// order, copied one by one.
[[nodiscard]] std::vector<std::byte> sliced_bytes(
    const std::vector<std::byte>& whole,
    const std::vector<std::uint64_t>& shape,
    std::uint64_t bits,
    const std::vector<std::vector<std::uint64_t>>& indices);

/// Compares a loaded model with its file, with code that no load uses.
///
/// Thread-safety: distinct objects: safe; shared objects: const members safe.
class model_comparison {
 public:
  /// Reads the table and all of the file. `loaded` must outlive this object. `selection`: its
  /// tensors and slices, those of not negative dimensions. Throws `gpushm::error`;
  /// std::runtime_error: the file ends too early.
  model_comparison(const gpushm::segment& loaded,
                   const std::string& path,
                   const gpushm::load_options& selection = {});

  /// "whole", or the first tensor that differs in type, shape, hash or bytes. Reads the table
  /// again. Throws `gpushm::error`.
  [[nodiscard]] std::string all() const;
  /// "whole", or what differs. Only the bytes of one tensor. Throws `gpushm::error`.
  [[nodiscard]] std::string bytes_of(std::size_t index) const;
  [[nodiscard]] std::size_t tensors() const { return expected_.size(); }

 private:
  struct expected {
    gpushm::tensors::tensor what;  ///< its places are in the segment; with its hash
    std::vector<std::byte> bytes;
  };
  const gpushm::segment& loaded_;
  std::vector<expected> expected_;
};

}  // namespace gpushm_tests
