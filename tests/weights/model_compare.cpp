// SPDX-License-Identifier: Apache-2.0
#include "tests/weights/model_compare.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "gpushm/tensors.hpp"
#include "tensors/files/hash.hpp"
#include "tensors/files/model_files.hpp"
#include "tensors/files/selection.hpp"
#include "tensors/files/tensor_json.hpp"

namespace gpushm_tests {

namespace tensors = gpushm::tensors;

namespace {

tensors::tensor_list table_in(const gpushm::segment& loaded) {
  return tensors::read_tensors(gpushm::tensor_table(loaded), tensors::dialect::table);
}

bool is_wanted(const std::string& name, const gpushm::load_options& selection) {
  return selection.tensors.empty() ||
         std::any_of(selection.tensors.begin(),
                     selection.tensors.end(),
                     [&](const std::string& each) { return tensors::matches(each, name); });
}

/// Changes the shape and the bytes of a tensor to those of its slices.
void apply_slices(tensors::tensor& tensor,
                  std::vector<std::byte>& bytes,
                  const gpushm::load_options& selection) {
  const std::vector<std::uint64_t> shape = tensor.shape;
  std::vector<std::vector<std::uint64_t>> indices(shape.size());
  for (const auto& each : selection.slices) {
    if (tensors::matches(each.name, tensor.name)) {
      const auto dimension = static_cast<std::size_t>(each.dimension);
      const std::uint64_t unit = each.parts == 0 ? 1 : shape.at(dimension) / each.parts;
      for (std::uint64_t index = each.begin * unit; index != each.end * unit; ++index) {
        indices.at(dimension).push_back(index);
      }
    }
  }
  bool is_whole = true;
  for (std::size_t i = 0; i != shape.size(); ++i) {
    is_whole = is_whole && indices[i].empty();
    if (indices[i].empty()) {
      indices[i].resize(shape[i]);
      std::iota(indices[i].begin(), indices[i].end(), std::uint64_t{0});
    }
    tensor.shape[i] = indices[i].size();
  }
  if (!is_whole) {
    bytes = sliced_bytes(bytes, shape, tensor.type.bits, indices);
  }
}

std::string hash_of(const std::vector<std::byte>& bytes) {
  std::vector<std::uint64_t> pieces;
  for (std::size_t at = 0; at < bytes.size(); at += tensors::hashed_bytes) {
    const std::size_t count = std::min<std::size_t>(tensors::hashed_bytes, bytes.size() - at);
    pieces.push_back(tensors::hash_of({bytes.data() + at, count}));
  }
  return tensors::tensor_hash(pieces);
}

}  // namespace

bool is_model_of(const gpushm::segment& loaded, const std::string& path) {
  return table_in(loaded).metadata == tensors::open_model({path}).front().contents.metadata;
}

std::vector<std::byte> sliced_bytes(const std::vector<std::byte>& whole,
                                    const std::vector<std::uint64_t>& shape,
                                    std::uint64_t bits,
                                    const std::vector<std::vector<std::uint64_t>>& indices) {
  std::uint64_t count = 1;
  for (const auto& each : indices) {
    count *= each.size();
  }
  std::vector<std::byte> result((count * bits + 7) / 8);
  std::vector<std::size_t> at(indices.size());
  for (std::uint64_t to = 0; to != count; ++to) {
    std::uint64_t from = 0;
    for (std::size_t i = 0; i != shape.size(); ++i) {
      from = from * shape[i] + indices[i][at[i]];
    }
    if (bits % 8 == 0) {
      std::memcpy(&result[to * bits / 8], &whole[from * bits / 8], bits / 8);
    } else {
      for (std::uint64_t bit = 0; bit != bits; ++bit) {
        const std::uint64_t source = from * bits + bit;
        const std::uint64_t place = to * bits + bit;
        result[place / 8] |= (whole[source / 8] >> (source % 8) & std::byte{1}) << (place % 8);
      }
    }
    for (std::size_t i = shape.size(); i-- != 0;) {
      if (++at[i] != indices[i].size()) {
        break;
      }
      at[i] = 0;
    }
  }
  return result;
}

model_comparison::model_comparison(const gpushm::segment& loaded,
                                   const std::string& path,
                                   const gpushm::load_options& selection)
    : loaded_(loaded) {
  const auto table = table_in(loaded);
  for (const tensors::model_file& file : tensors::open_model({path})) {
    for (const tensors::tensor& each : file.contents.all) {
      if (!is_wanted(each.name, selection)) {
        continue;
      }
      expected wanted{each, std::vector<std::byte>(each.end - each.begin)};
      if (::pread(file.file.get(),
                  wanted.bytes.data(),
                  wanted.bytes.size(),
                  static_cast<off_t>(file.data_begin + each.begin)) !=
          static_cast<ssize_t>(wanted.bytes.size())) {
        throw std::runtime_error("cannot read " + path);
      }
      apply_slices(wanted.what, wanted.bytes, selection);
      wanted.what.hash = hash_of(wanted.bytes);
      const auto match = std::find_if(table.all.begin(), table.all.end(), [&](const auto& entry) {
        return entry.name == each.name;
      });
      wanted.what.begin = match == table.all.end() ? 0 : match->begin;
      wanted.what.end = wanted.what.begin + wanted.bytes.size();
      expected_.push_back(std::move(wanted));
    }
  }
}

std::string model_comparison::all() const {
  const auto table = table_in(loaded_);
  if (table.all.size() != expected_.size()) {
    return "it has " + std::to_string(table.all.size()) + " tensors";
  }
  for (std::size_t i = 0; i != expected_.size(); ++i) {
    const auto& wanted = expected_[i].what;
    if (std::find(table.all.begin(), table.all.end(), wanted) == table.all.end()) {
      return wanted.name + " has another type, shape, place or hash";
    }
    if (std::string result = bytes_of(i); result != "whole") {
      return result;
    }
  }
  return "whole";
}

std::string model_comparison::bytes_of(std::size_t index) const {
  const expected& wanted = expected_[index];
  std::vector<std::byte> got(wanted.bytes.size());
  loaded_.read(wanted.what.begin, got);
  // Builds without optimisation compare vectors byte by byte.
  return std::memcmp(got.data(), wanted.bytes.data(), got.size()) == 0
             ? "whole"
             : wanted.what.name + " has other bytes";
}

}  // namespace gpushm_tests
