// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/slice_text.hpp"

#include <cstdint>
#include <string>

#include "base/text/text.hpp"

namespace gpushm::cli {

namespace {

/// The text before the first separator, which is removed from `text` with it; all of it without
/// one.
std::string_view take_before(std::string_view& text, char separator) {
  const std::size_t at = text.find(separator);
  const std::string_view result = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return result;
}

}  // namespace

std::optional<std::vector<tensor_slice>> parse_slices(std::string_view text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string_view::npos || equals == 0) {
    return std::nullopt;
  }
  tensor_slice slice;
  slice.name = text.substr(0, equals);
  text.remove_prefix(equals + 1);
  const auto dimension = base::number<std::int32_t>(take_before(text, ':'));
  if (!dimension || text.empty() || text.back() == '/') {
    return std::nullopt;
  }
  slice.dimension = *dimension;
  std::string_view ranges = take_before(text, '/');
  if (ranges.ends_with(',')) {
    return std::nullopt;
  }
  if (!text.empty()) {
    const auto parts = base::number<std::uint64_t>(text);
    if (!parts || *parts == 0) {
      return std::nullopt;
    }
    slice.parts = *parts;
  }
  std::vector<tensor_slice> result;
  do {
    std::string_view end_text = take_before(ranges, ',');
    const auto begin = base::number<std::uint64_t>(take_before(end_text, '-'));
    const auto end = base::number<std::uint64_t>(end_text);
    if (!begin || !end || *begin >= *end) {
      return std::nullopt;
    }
    slice.begin = *begin;
    slice.end = *end;
    result.push_back(slice);
  } while (!ranges.empty());
  return result;
}

}  // namespace gpushm::cli
