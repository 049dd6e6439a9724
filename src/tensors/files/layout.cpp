// SPDX-License-Identifier: Apache-2.0
#include "tensors/files/layout.hpp"

#include <algorithm>

#include "tensors/files/hash.hpp"

namespace gpushm::tensors {

namespace {

class planner {
 public:
  explicit planner(layout& into) : into_(into) {}

  /// `source`: null: its bytes are contiguous.
  void add(std::uint32_t file,
           std::uint64_t data_begin,
           const tensor& entry,
           const strided_source* source) {
    if (source != nullptr) {
      into_.strided.push_back(*source);
    }
    into_.first_part.push_back(into_.parts.size());
    tensor placed = entry;
    placed.begin = aligned(next_);
    placed.end = next_ = placed.begin + (entry.end - entry.begin);
    placed.hash = std::string(16, '0');
    const std::uint64_t first = data_begin + entry.begin;
    const std::uint64_t size = entry.end - entry.begin;
    for (std::uint64_t at = 0; at != size;) {
      const part part{placed.begin + at, std::min(hashed_bytes, size - at)};
      const auto run = source == nullptr ? strided_source::run{at, size - at} : source->run_at(at);
      // Most of a slice of rows is in few runs, which need not be copied out of a buffer.
      if (part.bytes <= run.bytes) {
        add_part(file, first + run.offset, part);
      } else {
        add_strided(file, first, at, part);
      }
      at += part.bytes;
    }
    into_.tensor_bytes += size;
    into_.table.all.push_back(std::move(placed));
  }
  void finish() {
    into_.first_part.push_back(into_.parts.size());
    into_.table_offset = aligned(next_);
  }

 private:
  void add_part(std::uint32_t file, std::uint64_t file_offset, part part) {
    // Parts of a piece follow each other in the file: tensors may have been left out.
    const bool fits = !into_.pieces.empty() && into_.pieces.back().file == file &&
                      into_.pieces.back().strided == piece::contiguous &&
                      into_.pieces.back().file_offset + into_.pieces.back().bytes == file_offset &&
                      into_.pieces.back().bytes + part.bytes <= piece_bytes;
    if (!fits) {
      into_.pieces.push_back({file, file_offset, 0, into_.parts.size()});
    }
    into_.pieces.back().bytes += part.bytes;
    ++into_.pieces.back().parts;
    into_.parts.push_back(part);
  }
  /// A piece of its own.
  void add_strided(std::uint32_t file, std::uint64_t offset, std::uint64_t first_byte, part part) {
    const std::size_t source = into_.strided.size() - 1;
    into_.pieces.push_back({file, offset, part.bytes, into_.parts.size(), 1, source, first_byte});
    into_.parts.push_back(part);
  }

  layout& into_;
  std::uint64_t next_ = 0;
};

}  // namespace

layout plan(std::span<const model_file> files) {
  layout result;
  planner plans(result);
  for (std::uint32_t file = 0; file != files.size(); ++file) {
    const model_file& from = files[file];
    auto strided = from.strided.begin();
    for (std::size_t i = 0; i != from.contents.all.size(); ++i) {
      const bool is_strided = strided != from.strided.end() && strided->index == i;
      plans.add(
          file, from.data_begin, from.contents.all[i], is_strided ? &(strided++)->source : nullptr);
    }
    // One file's metadata describes the model; others repeat it ("format": "pt").
    auto& known = result.table.metadata;
    for (const auto& entry : from.contents.metadata) {
      if (std::none_of(known.begin(), known.end(), [&](const auto& each) {
            return each.first == entry.first;
          })) {
        known.push_back(entry);
      }
    }
  }
  plans.finish();
  return result;
}

tensor_list table_with(const layout& plan, const std::uint64_t* hashes) {
  tensor_list result = plan.table;
  for (std::size_t i = 0; i != result.all.size(); ++i) {
    const std::size_t first = plan.first_part[i];
    result.all[i].hash = tensor_hash({hashes + first, plan.first_part[i + 1] - first});
  }
  return result;
}

}  // namespace gpushm::tensors
