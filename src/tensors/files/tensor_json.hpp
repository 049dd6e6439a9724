// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tensors/files/tensor.hpp"

/// The JSON of safetensors headers, of tables that programs publish (a superset), and of the index
/// of a model in several files. It may be hostile: all of it is checked, and memory is proportional
/// to the text.
namespace gpushm::tensors {

/// Says what is wrong, and where. The caller adds the file's name.
class invalid_json : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class dialect : std::uint8_t {
  file,   ///< a safetensors header
  table,  ///< of a program: with strides, hashes, and more types
};

/// Reads tensors, sorted by their place; their bytes are not checked against anything. As the
/// reference (safetensors 0.8) reads them, but refuses duplicate names. Throws `invalid_json`.
[[nodiscard]] tensor_list read_tensors(std::string_view json, dialect dialect);
/// `read_tensors` reads it back.
[[nodiscard]] std::string write_tensors(const tensor_list& tensor_list);

/// The bytes of a tensor of that type and shape. Throws `invalid_json`: more than 2^64 - 1 bits, or
/// no whole number of bytes.
[[nodiscard]] std::uint64_t bytes_of(const tensor& tensor);

/// Reads the index of a model in several files: the file of each tensor, by the tensor's name.
[[nodiscard]] text_pairs read_index(std::string_view json);

}  // namespace gpushm::tensors
