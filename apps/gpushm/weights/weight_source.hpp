// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "apps/gpushm/options.hpp"
#include "gpushm/client.hpp"
#include "tensors/files/layout.hpp"
#include "tensors/loads/copy_lane.hpp"

namespace gpushm::cli {

/// A tensor of a segment or a file, or a segment without tensors as a whole. Views into its source.
struct weight {
  std::string_view part;  ///< of a version; empty: the part without a name, or no version
  bool is_whole_segment = false;
  std::string_view name;             ///< of the tensor; empty of a whole segment
  std::string_view dtype;            ///< empty of a whole segment
  std::string_view framework_dtype;  ///< where `dtype` is not enough; files have none
  std::string_view stored_hash;      ///< in the segment's table; empty: none
  std::span<const std::uint64_t> shape;
  std::span<const std::int64_t> strides;  ///< empty: contiguous
  std::uint64_t size_bytes = 0;
  std::size_t memory = 0;  ///< which segment or file of the source
  std::uint64_t offset = 0;

  /// Tensors with equal keys are compared with each other.
  [[nodiscard]] auto key() const noexcept { return std::tuple(part, !is_whole_segment, name); }
};

/// Weights that commands compare: of a version, a segment or files.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class weight_source {
 public:
  /// The largest number of bytes of one `read`.
  static constexpr std::uint64_t block_bytes = tensors::piece_bytes;
  /// The size of the buffers for `read`, which begin at a multiple of 4096: it may read whole disk
  /// blocks.
  static constexpr std::size_t buffer_bytes = tensors::copy_lane::buffer_bytes;

  virtual ~weight_source() = default;
  weight_source(const weight_source&) = delete;
  weight_source& operator=(const weight_source&) = delete;

  /// "w/x@7", or the paths: what the weights are in.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  /// The weights by key, of which each is unique.
  [[nodiscard]] const std::vector<weight>& weights() const noexcept { return weights_; }
  /// Returns a weight; null if there is none with this key.
  [[nodiscard]] const weight* find(const weight& other) const noexcept;
  /// Whether it is a version, whose parts have names.
  [[nodiscard]] virtual bool is_version() const noexcept { return false; }
  [[nodiscard]] virtual bool is_file() const noexcept { return false; }
  /// Drops the names of parts, so that the tensors of a version can be compared with those of files
  /// or of one segment. Throws `error` (invalid_argument): a part has no tensors, or two parts have
  /// a tensor of the same name.
  void join_parts();
  /// Reads `bytes` bytes, at most `block_bytes`, of a weight of this source from its byte `first`
  /// on. Returns where in `buffer` they begin. Blocks. Throws `error`: driver_error, and of files
  /// invalid_file, system_error.
  [[nodiscard]] virtual const std::byte* read(const weight& weight,
                                              std::uint64_t first,
                                              std::uint64_t bytes,
                                              std::byte* buffer) const = 0;
  /// Throws `error` (invalid_file) if a file has changed since the source was opened.
  virtual void check_unchanged() const {}

 protected:
  explicit weight_source(std::string text) : text_(std::move(text)) {}
  /// Sorts them, and reports two with one key.
  void set_weights(std::vector<weight> weights);

 private:
  std::string text_;
  std::vector<weight> weights_;
};

/// Whether an argument is the path of a file or folder: it begins with "/", "./" or "../", is "."
/// or
/// "..", or ends with ".safetensors" or ".index.json". Others are names, also if such a file
/// exists.
[[nodiscard]] bool is_weights_path(std::string_view argument) noexcept;

/// Opens a version (NAME@NUMBER, NAME@ALIAS), a segment of one (NAME@NUMBER/PART), or another
/// segment. An alias is resolved once: all segments are of one version, also if it moves meanwhile.
/// The segments stay open as long as the source exists. Throws `error`: as `client::open`;
/// invalid_argument (a segment whose tensors are not complete), protocol_error (a table is
/// damaged), unsupported_version.
[[nodiscard]] std::unique_ptr<weight_source> open_weights(client& broker,
                                                          const connection_arguments& connection,
                                                          const std::string& name);
/// Opens safetensors files, an index, or the folder of a model. Throws `error` as
/// `tensors::open_model`.
[[nodiscard]] std::unique_ptr<weight_source> open_weight_files(
    const std::vector<std::string>& paths);

/// Prepares two sources for a comparison: if only one of them is a version, its parts are joined.
void match_parts(weight_source& first, weight_source& second);

}  // namespace gpushm::cli
