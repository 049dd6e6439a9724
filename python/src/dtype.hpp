// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

#include "dlpack.hpp"

namespace gpushm_python {

/// An element type. Static objects.
struct dtype {
  const char* name;     ///< as NumPy, ml_dtypes and PyTorch name it
  std::uint8_t code;    ///< DLPack's
  std::uint8_t bits;    ///< of one lane
  std::uint16_t lanes;  ///< 2: float4_e2m1fn_x2, two elements in one byte
  std::uint32_t itemsize;
  const char* format;    ///< of the buffer protocol (struct); null: it has none
  const char* typestr;   ///< of __cuda_array_interface__; null: it has none
  const char* in_table;  ///< its name in tables of tensors (safetensors); null: it has none

  [[nodiscard]] dl::data_type dlpack() const noexcept { return {code, bits, lanes}; }
};

/// Finds the type of a name ("float32", "<f4", "torch.bfloat16"), a NumPy, ml_dtypes or PyTorch
/// dtype, or a NumPy or Python scalar type. Raises TypeError that lists the known ones. Needs the
/// GIL.
const dtype& find_dtype(nanobind::handle object);
/// Returns null if unknown.
const dtype* find_dtype(std::string_view name) noexcept;
/// The type of DLPack; null if unknown.
const dtype* find_dtype(dl::data_type type) noexcept;
/// Finds the type of a format of the buffer protocol. Returns null if it is unknown, or in
/// big-endian order.
const dtype* find_dtype(std::string_view format, std::size_t itemsize) noexcept;

void register_dtypes(nanobind::module_& module);

}  // namespace gpushm_python
