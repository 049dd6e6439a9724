// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/files/guarded_fd.hpp"
#include "tensors/files/file_stamp.hpp"
#include "tensors/files/strided.hpp"
#include "tensors/files/tensor.hpp"

namespace gpushm::tensors {

/// A slice of a tensor that is not contiguous in its file.
struct strided_tensor {
  std::size_t index = 0;  ///< in `model_file::contents`
  strided_source source;
};
/// A safetensors file that was opened, and whose header was checked.
struct model_file {
  std::string path;
  base::guarded_fd file;
  file_stamp stamp;  ///< before its first byte was read
  std::uint64_t size_bytes = 0;
  std::uint64_t data_begin = 0;         ///< where the tensors begin
  tensor_list contents;                 ///< of the model; places are relative to `data_begin`
  std::vector<strided_tensor> strided;  ///< by `index`
  std::string header_hash;  ///< XXH3-128 of the header's text, and of what is left out of it
};

/// The largest header, as in the reference.
inline constexpr std::uint64_t max_header_bytes = 100'000'000;

/// Opens and checks the files of one model. A path is a safetensors file, an index of several
/// (`*.index.json`), or a folder with `model.safetensors.index.json` or `model.safetensors`; the
/// files of an index are in its folder, and have the tensors that it names; others in them are left
/// out, and counted in the log. Checked is that tensors fill each file exactly, without holes and
/// overlaps, and that no name occurs twice. Blocks while headers are read. Throws `error` for
/// operation "load" and the path: invalid_file, permission_denied, system_error,
/// too_many_descriptors.
[[nodiscard]] std::vector<model_file> open_model(const std::vector<std::string>& paths);

/// The file that `open_model` opens first for this path: of a folder the index or model in it.
/// Throws `error`: invalid_file.
[[nodiscard]] std::string first_file_of(const std::string& path);
/// Whether it is an index of several files, by its name.
[[nodiscard]] bool is_index(const std::string& path);

}  // namespace gpushm::tensors
