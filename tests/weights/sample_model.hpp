// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpushm_tests {

/// A tensor of a model for tests; its bytes follow from its name and its seed.
struct sample_tensor {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;
  std::uint64_t seed = 0;
};

[[nodiscard]] std::vector<std::byte> bytes_of(const sample_tensor& tensor);
/// A file with these tensors, one behind the other.
[[nodiscard]] std::string safetensors_of(const std::vector<sample_tensor>& tensors,
                                         const std::string& metadata = {});
/// A file with this header, and `data_bytes` behind it.
[[nodiscard]] std::string safetensors_with(const std::string& header, std::size_t data_bytes);
void write_file(const std::string& path, const std::string& content);

/// Tensors of all sizes: empty, small, larger than a piece, and not aligned in the file.
[[nodiscard]] std::vector<sample_tensor> sample_model();

}  // namespace gpushm_tests
