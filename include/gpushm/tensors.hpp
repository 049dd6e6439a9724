// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "gpushm/segment.hpp"
#include "gpushm/tensors.h"

/// Tensors in segments: model weights that are loaded once and shared (docs/tensors.md).
namespace gpushm {
inline namespace v1 {

/// How far a load is. As `gpushm_load_progress`.
struct load_progress {
  std::uint64_t bytes = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t resumed_bytes = 0;
  bool is_here = false;
};

/// How files are read.
enum class reading : std::uint8_t {
  automatic = GPUSHM_READING_AUTOMATIC,  ///< direct if most of a file is not in the page cache
  cached = GPUSHM_READING_CACHED,        ///< through the page cache
  direct = GPUSHM_READING_DIRECT,        ///< O_DIRECT, where the file system has it
};

/// Whether files that have changed, or other ones, have what a segment was loaded from.
enum class verify : std::uint8_t {
  automatic = GPUSHM_VERIFY_AUTOMATIC,  ///< by stamps; where those differ, by all bytes, once
  full = GPUSHM_VERIFY_FULL,            ///< by all bytes in each load
};

/// A part of one dimension of tensors, such as one rank's of a tensor-parallel layer. As
/// `gpushm_tensor_slice`.
struct tensor_slice {
  std::string name;
  std::int32_t dimension = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t parts = 0;
};

/// Members without a comment are as in `gpushm_load_options`.
struct load_options {
  std::string device = "auto";
  std::uint32_t threads = 0;
  gpushm::reading reading = gpushm::reading::automatic;
  gpushm::verify verify = gpushm::verify::automatic;
  bool replace = false;
  std::vector<std::string> tensors = {};
  std::vector<tensor_slice> slices = {};
  /// For all of it; zero: only a complete segment is returned.
  std::chrono::milliseconds timeout = std::chrono::hours(1);
  std::stop_token stop = {};
  /// Called ten times a second, by the calling thread. What it throws ends the load.
  std::function<void(const load_progress&)> report = {};
};

/// Loads a model into the persistent segment `name`, once for all processes that call this at the
/// same time, and returns it, open for reading, when it is complete. As `gpushm_tensors_load`.
[[nodiscard]] inline segment load_tensors(client& client,
                                          std::string_view name,
                                          std::span<const std::string> paths,
                                          const load_options& options = {}) {
  std::vector<gpushm_string> texts;
  texts.reserve(paths.size());
  for (const std::string& each : paths) {
    texts.push_back(glue::text(each));
  }
  std::vector<gpushm_string> tensors;
  tensors.reserve(options.tensors.size());
  for (const std::string& each : options.tensors) {
    tensors.push_back(glue::text(each));
  }
  std::vector<gpushm_tensor_slice> slices;
  slices.reserve(options.slices.size());
  for (const tensor_slice& each : options.slices) {
    auto slice = glue::sized<gpushm_tensor_slice>();
    slice.name = glue::text(each.name);
    slice.dimension = each.dimension;
    slice.begin = each.begin;
    slice.end = each.end;
    slice.parts = each.parts;
    slices.push_back(slice);
  }
  std::stop_source stop;
  const std::stop_callback passes_on(options.stop, [&] { stop.request_stop(); });
  const glue::stop_bridge bridge(stop.get_token());
  struct {
    const load_options& options;
    std::stop_source& stop;
    std::exception_ptr thrown;
  } shared{options, stop, nullptr};
  auto wanted = glue::sized<gpushm_load_options>();
  wanted.device = glue::text(options.device);
  wanted.threads = options.threads;
  wanted.reading = static_cast<gpushm_reading>(options.reading);
  wanted.verify = static_cast<gpushm_verify>(options.verify);
  wanted.replace = options.replace;
  wanted.tensors = tensors.data();
  wanted.tensor_count = tensors.size();
  wanted.slices = slices.data();
  wanted.slice_count = slices.size();
  wanted.stop = bridge.handle();
  wanted.report_context = &shared;
  wanted.report = [](const gpushm_load_progress* progress, void* context) {
    auto& in = *static_cast<decltype(shared)*>(context);
    try {
      if (in.options.report && !in.thrown) {
        in.options.report(
            {progress->bytes, progress->total_bytes, progress->resumed_bytes, progress->is_here});
      }
    } catch (...) {
      in.thrown = std::current_exception();
      in.stop.request_stop();
    }
  };
  gpushm_segment* loaded = nullptr;
  const gpushm_errc code = gpushm_tensors_load(client.handle(),
                                               glue::text(name),
                                               texts.data(),
                                               texts.size(),
                                               &wanted,
                                               options.timeout.count(),
                                               &loaded);
  if (shared.thrown) {
    const segment unused(loaded);
    std::rethrow_exception(shared.thrown);
  }
  glue::check(code);
  return segment(loaded);
}

/// Opens a segment with tensors for reading when it is complete, also on the next broker as
/// `load_tensors`. As `gpushm_tensors_open`; `tensor_index` checks the table.
[[nodiscard]] inline segment open_tensors(client& client,
                                          std::string_view name,
                                          const open_options& options = {}) {
  const glue::stop_bridge stop(options.stop);
  const gpushm_open_options wanted = glue::options_of(options, stop);
  gpushm_segment* opened = nullptr;
  glue::check(gpushm_tensors_open(
      client.handle(), glue::text(name), &wanted, options.timeout.count(), &opened));
  return segment(opened);
}

namespace glue {
struct table_freed {
  void operator()(gpushm_tensors_table* table) const noexcept { gpushm_tensors_table_free(table); }
};
[[nodiscard]] inline std::unique_ptr<gpushm_tensors_table, table_freed> read_table(
    const segment& segment) {
  gpushm_tensors_table* read = nullptr;
  check(gpushm_tensors_table_read(segment.handle(), &read));
  return std::unique_ptr<gpushm_tensors_table, table_freed>(read);
}
}  // namespace glue

/// A tensor of a `tensor_index`, which owns all that it refers to.
struct tensor_entry {
  std::string_view name;
  std::string_view dtype;            ///< as safetensors names element types, such as "BF16"
  std::string_view framework_dtype;  ///< what a framework calls it, if that differs
  std::string_view hash;             ///< 16 hexadecimal digits (docs/tensors.md); empty: unknown
  std::uint64_t offset_bytes = 0;    ///< from the segment's first byte
  std::uint64_t size_bytes = 0;
  std::span<const std::uint64_t> shape;
  std::span<const std::int64_t> strides;  ///< in elements; empty: as in C
};

/// The tensors of a segment, by number and by name. All of them are within the segment. Does not
/// refer to the segment. Move-only; a moved-from one has no tensors.
///
/// Thread-safety: distinct objects: safe; shared objects: immutable.
class tensor_index {
 public:
  /// Reads and checks the table. As `gpushm_tensors_table_read`.
  explicit tensor_index(const segment& segment) : table_(glue::read_table(segment)) {}

  [[nodiscard]] std::size_t size() const noexcept {
    return gpushm_tensors_table_count(table_.get());
  }
  /// In the order of their places. Throws `errc::invalid_argument` unless `index` is below
  /// `size()`.
  [[nodiscard]] tensor_entry operator[](std::size_t index) const {
    auto from = glue::sized<gpushm_tensor>();
    glue::check(gpushm_tensors_table_get(table_.get(), index, &from));
    tensor_entry result;
    result.name = glue::view(from.name);
    result.dtype = glue::view(from.dtype);
    result.framework_dtype = glue::view(from.framework_dtype);
    result.hash = glue::view(from.hash);
    result.offset_bytes = from.offset_bytes;
    result.size_bytes = from.size_bytes;
    result.shape = {from.shape, from.rank};
    if (from.strides != nullptr) {
      result.strides = {from.strides, from.rank};
    }
    return result;
  }
  /// Returns nullopt if there is none. The time grows with the logarithm of `size()`.
  [[nodiscard]] std::optional<tensor_entry> find(std::string_view name) const {
    std::size_t index = 0;
    if (!gpushm_tensors_table_find(table_.get(), glue::text(name), &index)) {
      return std::nullopt;
    }
    return (*this)[index];
  }
  /// The texts of `__metadata__`, in the order of their keys.
  [[nodiscard]] std::vector<std::pair<std::string_view, std::string_view>> metadata() const {
    std::vector<std::pair<std::string_view, std::string_view>> result;
    const std::size_t count = gpushm_tensors_table_metadata_count(table_.get());
    for (std::size_t i = 0; i != count; ++i) {
      gpushm_string key{};
      gpushm_string value{};
      glue::check(gpushm_tensors_table_metadata_get(table_.get(), i, &key, &value));
      result.emplace_back(glue::view(key), glue::view(value));
    }
    return result;
  }

 private:
  std::unique_ptr<gpushm_tensors_table, glue::table_freed> table_;
};

/// The table of the tensors of a segment as JSON in UTF-8 (docs/tensors.md), for people and other
/// programs. Blocks and throws as `tensor_index`.
[[nodiscard]] inline std::string tensor_table(const segment& segment) {
  return std::string(glue::view(gpushm_tensors_table_text(glue::read_table(segment).get())));
}

/// A tensor of a segment: a copy of a `tensor_entry`.
struct tensor_place {
  std::string name;
  std::string dtype;               ///< as safetensors names element types, such as "BF16"
  std::string framework_dtype;     ///< what a framework calls it, if that differs
  std::string hash;                ///< 16 hexadecimal digits (docs/tensors.md); empty: unknown
  std::uint64_t offset_bytes = 0;  ///< from the segment's first byte
  std::uint64_t size_bytes = 0;
  std::vector<std::uint64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements; empty: as in C
};

/// The tensors of a segment, in the order of their places. Blocks and throws as `tensor_index`.
[[nodiscard]] inline std::vector<tensor_place> tensor_places(const segment& segment) {
  const tensor_index index(segment);
  std::vector<tensor_place> result(index.size());
  for (std::size_t i = 0; i != result.size(); ++i) {
    const tensor_entry from = index[i];
    tensor_place& to = result[i];
    to.name = from.name;
    to.dtype = from.dtype;
    to.framework_dtype = from.framework_dtype;
    to.hash = from.hash;
    to.offset_bytes = from.offset_bytes;
    to.size_bytes = from.size_bytes;
    to.shape.assign(from.shape.begin(), from.shape.end());
    to.strides.assign(from.strides.begin(), from.strides.end());
  }
  return result;
}

/// The size of a segment for tensors with this table. As `gpushm_tensors_size`.
[[nodiscard]] inline std::uint64_t tensors_size(std::string_view table) {
  std::uint64_t result = 0;
  glue::check(gpushm_tensors_size(glue::text(table), &result));
  return result;
}

/// Adds the table to a segment, and publishes it. As `gpushm_tensors_publish`.
inline void publish_tensors(segment& segment, std::string_view table) {
  glue::check(gpushm_tensors_publish(segment.handle(), glue::text(table)));
}

}  // namespace v1
}  // namespace gpushm
