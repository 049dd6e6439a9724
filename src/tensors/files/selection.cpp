// SPDX-License-Identifier: Apache-2.0
#include "tensors/files/selection.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/text/quoted.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"
#include "tensors/files/hash.hpp"

namespace gpushm::tensors {

namespace {

using base::in_quotes;

[[noreturn]] void refuse(const std::string& cause, std::string_view next_step) {
  throw error(errc::invalid_argument, "load", {}, cause, next_step);
}

// ---- names and patterns ----

/// The characters of UTF-8; a byte that is part of none is one above all of them.
std::u32string characters_of(std::string_view text) {
  constexpr char32_t first_other = 0x11'0000;
  std::u32string result;
  while (!text.empty()) {
    const base::character next = base::first_character(text);
    result +=
        next.length != 0 ? next.value : first_other + static_cast<unsigned char>(text.front());
    text.remove_prefix(std::max<std::size_t>(next.length, 1));
  }
  return result;
}

bool is_in_set(std::u32string_view set, char32_t value) {
  for (std::size_t i = 0; i != set.size(); ++i) {
    if (i + 2 < set.size() && set[i + 1] == U'-') {
      if (set[i] <= value && value <= set[i + 2]) {
        return true;
      }
      i += 2;
    } else if (set[i] == value) {
      return true;
    }
  }
  return false;
}

/// Where the pattern continues if its item at `position`, which is not `*`, matches the character;
/// nullopt if it does not.
std::optional<std::size_t> behind_item(std::u32string_view pattern,
                                       std::size_t position,
                                       char32_t value) {
  if (pattern[position] == U'?') {
    return position + 1;
  }
  if (pattern[position] == U'[') {
    const bool is_negated = position + 1 < pattern.size() && pattern[position + 1] == U'!';
    const std::size_t first = position + (is_negated ? 2 : 1);
    // The set may begin with "]".
    const std::size_t end = pattern.find(U']', first + 1);
    if (end != std::u32string_view::npos) {
      const bool is_in = is_in_set(pattern.substr(first, end - first), value);
      return is_in != is_negated ? std::optional(end + 1) : std::nullopt;
    }
  }
  return pattern[position] == value ? std::optional(position + 1) : std::nullopt;
}

bool matches(std::u32string_view pattern, std::u32string_view name) {
  std::size_t in_pattern = 0;
  std::size_t in_name = 0;
  // After the last "*": it takes one character more whenever what follows does not match.
  std::optional<std::pair<std::size_t, std::size_t>> retry;
  while (in_name != name.size()) {
    if (in_pattern != pattern.size() && pattern[in_pattern] == U'*') {
      retry.emplace(++in_pattern, in_name);
      continue;
    }
    const auto next = in_pattern == pattern.size()
                          ? std::nullopt
                          : behind_item(pattern, in_pattern, name[in_name]);
    if (next) {
      in_pattern = *next;
      ++in_name;
    } else if (retry) {
      in_pattern = retry->first;
      in_name = ++retry->second;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<std::ptrdiff_t>(in_pattern),
                     pattern.end(),
                     [](char32_t each) { return each == U'*'; });
}

/// A tensor of the files.
struct place {
  std::size_t file = 0;
  std::size_t index = 0;
};

/// Finds the tensors of a model by names and patterns.
class tensor_names {
 public:
  explicit tensor_names(const std::vector<model_file>& files) {
    for (std::size_t file = 0; file != files.size(); ++file) {
      const auto& all = files[file].contents.all;
      for (std::size_t i = 0; i != all.size(); ++i) {
        by_name_.emplace(all[i].name, all_.size());
        all_.push_back({{file, i}, characters_of(all[i].name)});
      }
    }
  }
  [[nodiscard]] std::size_t count() const noexcept { return all_.size(); }
  [[nodiscard]] const place& operator[](std::size_t number) const { return all_[number].where; }

  /// Their numbers. A tensor of exactly this name is the only one. Throws if there is none.
  [[nodiscard]] std::vector<std::size_t> find(const std::string& name) const {
    if (const auto known = by_name_.find(name); known != by_name_.end()) {
      return {known->second};
    }
    const bool is_pattern = name.find_first_of("*?[") != std::string::npos;
    std::vector<std::size_t> result;
    if (is_pattern) {
      const std::u32string pattern = characters_of(name);
      for (std::size_t i = 0; i != all_.size(); ++i) {
        if (matches(pattern, all_[i].name)) {
          result.push_back(i);
        }
      }
    }
    if (result.empty()) {
      refuse((is_pattern ? "no tensor of these files matches " : "these files have no tensor ") +
                 in_quotes(name),
             "pass names of tensors, or patterns such as \"model.layers.1.*\"");
    }
    return result;
  }

 private:
  struct entry {
    place where;
    std::u32string name;
  };
  std::vector<entry> all_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

// ---- slices ----

std::string text_of(const tensor_slice& slice) {
  return "slice " + in_quotes(slice.name) + " (dim " + std::to_string(slice.dimension) + ", " +
         std::to_string(slice.begin) + " to " + std::to_string(slice.end) +
         (slice.parts == 0 ? ")" : " of " + std::to_string(slice.parts) + " parts)");
}

std::string shape_text(const tensor& tensor) {
  std::string result = "[";
  for (const std::uint64_t each : tensor.shape) {
    result += (result.size() == 1 ? "" : ", ") + std::to_string(each);
  }
  return result + ']';
}

[[noreturn]] void refuse_slice(const tensor_slice& slice,
                               const tensor& tensor,
                               const std::string& why,
                               std::string_view next_step) {
  refuse(text_of(slice) + " of tensor " + in_quotes(tensor.name) + " of shape " +
             shape_text(tensor) + ": " + why,
         next_step);
}

/// A range of one dimension, in elements.
struct range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const tensor_slice* by = nullptr;  ///< the first one that it is of; null: all of the dimension
  [[nodiscard]] std::uint64_t count() const noexcept { return end - begin; }
};

/// What is wanted of one dimension: ranges in the order of the slices. None follows directly on the
/// previous one in the tensor.
struct dimension_ranges {
  std::vector<range> all;
  [[nodiscard]] bool is_sliced() const noexcept { return all.front().by != nullptr; }
  [[nodiscard]] bool is_whole(std::uint64_t size) const noexcept {
    return all.size() == 1 && all.front().begin == 0 && all.front().end == size;
  }
  [[nodiscard]] std::uint64_t count() const noexcept {
    std::uint64_t result = 0;
    for (const range& each : all) {
      result += each.count();
    }
    return result;
  }
  [[nodiscard]] std::uint64_t lowest() const noexcept {
    std::uint64_t result = all.front().begin;
    for (const range& each : all) {
      result = std::min(result, each.begin);
    }
    return result;
  }
};

/// The largest number of ranges of one tensor, in all dimensions: a plan must not grow without
/// bound. Enough for one range for each of queries, keys and values of 256 heads.
constexpr std::size_t max_ranges = 1'024;

std::size_t dimension_of(const tensor_slice& slice, const tensor& tensor) {
  const auto rank = static_cast<std::int64_t>(tensor.shape.size());
  const std::int64_t result = slice.dimension + (slice.dimension < 0 ? rank : 0);
  if (result < 0 || result >= rank) {
    refuse_slice(slice,
                 tensor,
                 rank == 0 ? "it is a scalar" : "it has " + std::to_string(rank) + " dimensions",
                 "let the slice's name or pattern select tensors with that dimension only");
  }
  return static_cast<std::size_t>(result);
}

range range_of(const tensor_slice& slice, const tensor& tensor, std::uint64_t size) {
  const std::uint64_t end = slice.parts == 0 ? size : slice.parts;
  if (slice.begin >= slice.end || slice.end > end) {
    refuse_slice(
        slice,
        tensor,
        slice.begin >= slice.end ? "the slice is empty" : "it ends behind the last one",
        "pass a begin that is less than the end, and an end of at most " + std::to_string(end));
  }
  if (slice.parts == 0) {
    return {slice.begin, slice.end, &slice};
  }
  if (size == 0 || size % slice.parts != 0) {
    refuse_slice(slice,
                 tensor,
                 std::to_string(size) + " elements cannot be divided into equal parts",
                 "pass the begin and the end in elements");
  }
  const std::uint64_t each = size / slice.parts;
  return {slice.begin * each, slice.end * each, &slice};
}

/// What is wanted of one tensor, by dimension; empty: all.
using ranges = std::vector<dimension_ranges>;

void add(ranges& selected, const tensor_slice& slice, const tensor& entry) {
  const std::size_t dimension = dimension_of(slice, entry);
  const range added = range_of(slice, entry, entry.shape[dimension]);
  if (selected.empty()) {
    for (const std::uint64_t size : entry.shape) {
      selected.push_back({.all = {range{0, size}}});
    }
  }
  auto& known = selected[dimension].all;
  if (!selected[dimension].is_sliced()) {
    known = {added};
    return;
  }
  // Slices of different names do not determine the order of their ranges.
  const tensor_slice& former = *known.front().by;
  if (former.name != slice.name || former.dimension != slice.dimension) {
    refuse_slice(slice,
                 entry,
                 text_of(former) + " has the same dimension",
                 "pass all ranges of a dimension by the same name and number");
  }
  if (known.back().end == added.begin) {
    known.back().end = added.end;
    return;
  }
  known.push_back(added);
  std::size_t count = 0;
  for (const dimension_ranges& each : selected) {
    count += each.is_sliced() ? each.all.size() : 0;
  }
  if (count > max_ranges) {
    refuse_slice(slice,
                 entry,
                 "its slices have more than " + std::to_string(max_ranges) + " ranges",
                 "load the tensor under several names, or all of it");
  }
}

/// An element that was selected twice is a mistake in the ranges.
void check_overlaps(const ranges& selected, const tensor& tensor) {
  for (const dimension_ranges& dimension : selected) {
    std::vector<range> sorted = dimension.all;
    std::sort(sorted.begin(), sorted.end(), [](const range& left, const range& right) {
      return left.begin < right.begin;
    });
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      const range& one = sorted[i - 1];
      const range& other = sorted[i];
      if (other.begin < one.end) {
        refuse_slice(*other.by,
                     tensor,
                     "the ranges " + std::to_string(one.begin) + " to " + std::to_string(one.end) +
                         " and " + std::to_string(other.begin) + " to " +
                         std::to_string(other.end) + " overlap",
                     "pass each element once");
      }
    }
  }
}

[[noreturn]] void refuse_bits(const ranges& selected, const tensor& tensor) {
  const auto slice = std::find_if(
      selected.rbegin(), selected.rend(), [](const auto& each) { return each.is_sliced(); });
  refuse_slice(*slice->all.front().by,
               tensor,
               std::string(tensor.type.name) + " elements have " +
                   std::to_string(tensor.type.bits) +
                   " bits, and each run of this slice must be whole bytes of the file",
               "begin and end the slice where bytes of the file do, or load all of the tensor");
}

bool is_whole(const ranges& selected, const tensor& tensor) {
  for (std::size_t i = 0; i != selected.size(); ++i) {
    if (!selected[i].is_whole(tensor.shape[i])) {
      return false;
    }
  }
  return true;
}

/// The ranges, from the lowest index on; an index has `unit` of the units of the result.
strided_source::dimension dimension_in(const dimension_ranges& ranges, std::uint64_t unit) {
  strided_source::dimension result;
  const std::uint64_t lowest = ranges.lowest();
  for (const range& each : ranges.all) {
    result.ranges.push_back({result.count, (each.begin - lowest) * unit});
    result.count += each.count() * unit;
  }
  return result;
}

/// The new shape of a tensor of which not all is wanted, and the place of its bytes in the file.
/// Returns where they are if they are not contiguous; `tensor::end` is then where they would end if
/// they were.
std::optional<strided_source> narrow(tensor& narrowed, const ranges& selected) {
  std::size_t sliced = 0;  // the last dimension of which not all is wanted
  bool is_empty = false;
  for (std::size_t i = 0; i != narrowed.shape.size(); ++i) {
    sliced = selected[i].is_whole(narrowed.shape[i]) ? sliced : i;
    is_empty = is_empty || selected[i].count() == 0;
  }
  const tensor whole = narrowed;
  for (std::size_t i = 0; i != narrowed.shape.size(); ++i) {
    narrowed.shape[i] = selected[i].count();
  }
  if (is_empty) {
    narrowed.end = narrowed.begin;
    return std::nullopt;
  }
  // No product overflows: that of all, which has no zero, does not (`bytes_of`).
  std::uint64_t stride = whole.type.bits;
  std::uint64_t first = 0;  // of all bits that are wanted, in the file
  std::uint64_t rows = 1;
  bool are_bytes = true;
  strided_source result;
  for (std::size_t i = whole.shape.size(); i-- != 0;) {
    const dimension_ranges& dimension_ranges = selected[i];
    first += dimension_ranges.lowest() * stride;
    if (i == sliced) {
      for (const range& each : dimension_ranges.all) {
        are_bytes = are_bytes && (each.begin - dimension_ranges.lowest()) * stride % 8 == 0 &&
                    each.count() * stride % 8 == 0;
      }
      result.row = dimension_in(dimension_ranges, stride);
    } else if (i < sliced && dimension_ranges.count() != 1) {
      are_bytes = are_bytes && stride % 8 == 0;
      rows *= dimension_ranges.count();
      auto next = dimension_in(dimension_ranges, 1);
      next.stride_bytes = stride / 8;
      auto& outer = result.outer;
      if (!outer.empty() && outer.back().ranges.size() == 1 && next.ranges.size() == 1 &&
          outer.back().count * outer.back().stride_bytes == next.stride_bytes) {
        outer.back().count *= next.count;
      } else {
        outer.push_back(std::move(next));
      }
    }
    stride *= whole.shape[i];
  }
  if (!are_bytes || first % 8 != 0) {
    refuse_bits(selected, whole);
  }
  std::reverse(result.outer.begin(), result.outer.end());
  // From bits to bytes.
  result.row.count /= 8;
  result.row.stride_bytes = 1;
  for (strided_source::range& each : result.row.ranges) {
    each = {each.first / 8, each.begin / 8};
  }
  narrowed.begin += first / 8;
  narrowed.end = narrowed.begin + rows * result.row.count;
  return rows == 1 && result.row.ranges.size() == 1 ? std::nullopt
                                                    : std::optional(std::move(result));
}

// ---- texts that are hashed ----

void add(std::string& text, std::string_view name) {
  text += std::to_string(name.size()) + ':';
  text += name;
}
template <typename... Numbers>
void add_numbers(std::string& text, Numbers... numbers) {
  ((text += ' ' + std::to_string(numbers)), ...);
}

/// Equal for slices that are ranges of the same dimension, whose order counts.
auto key_of(const tensor_slice& slice) {
  return std::tie(slice.name, slice.dimension);
}

/// Whether both are one range.
bool is_joined(const tensor_slice& slice, const tensor_slice& next) {
  return key_of(slice) == key_of(next) && slice.parts == next.parts && slice.begin < slice.end &&
         slice.end == next.begin && next.begin < next.end;
}

}  // namespace

bool matches(std::string_view pattern, std::string_view name) {
  return matches(characters_of(pattern), characters_of(name));
}

std::string selection_text(const load_options& options) {
  std::string result;
  std::vector<std::string_view> names(options.tensors.begin(), options.tensors.end());
  std::sort(names.begin(), names.end());
  for (const std::string_view each : names) {
    result += "tensors ";
    add(result, each);
    result += '\n';
  }
  std::vector<tensor_slice> slices = options.slices;
  std::stable_sort(slices.begin(), slices.end(), [](const auto& left, const auto& right) {
    return key_of(left) < key_of(right);
  });
  for (std::size_t i = 0; i != slices.size(); ++i) {
    tensor_slice& each = slices[i];
    if (i + 1 != slices.size() && is_joined(each, slices[i + 1])) {
      slices[i + 1].begin = each.begin;
      continue;
    }
    result += "slice ";
    add(result, each.name);
    add_numbers(result, each.dimension, each.begin, each.end, each.parts);
    result += '\n';
  }
  return result;
}

std::string apply_selection(std::vector<model_file>& files, const load_options& options) {
  if (options.tensors.empty() && options.slices.empty()) {
    return {};
  }
  const tensor_names names(files);
  std::vector<bool> is_wanted(names.count(), options.tensors.empty());
  std::unordered_set<std::string_view> seen;
  for (const std::string& each : options.tensors) {
    if (!seen.insert(each).second) {
      refuse("the tensors have " + in_quotes(each) + " twice", "pass each name or pattern once");
    }
    for (const std::size_t number : names.find(each)) {
      is_wanted[number] = true;
    }
  }
  std::vector<ranges> wanted(names.count());
  for (const tensor_slice& each : options.slices) {
    for (const std::size_t number : names.find(each.name)) {
      if (is_wanted[number]) {
        const place& at = names[number];
        add(wanted[number], each, files[at.file].contents.all[at.index]);
      }
    }
  }
  // The names above refer to the files' texts.
  std::string result;
  bool is_all = true;
  std::vector<tensor_list> kept(files.size());
  for (std::size_t number = 0; number != names.count(); ++number) {
    const place& at = names[number];
    if (!is_wanted[number]) {
      is_all = false;
      continue;
    }
    model_file& file = files[at.file];
    tensor narrowed = file.contents.all[at.index];
    add(result, narrowed.name);
    check_overlaps(wanted[number], narrowed);
    if (!is_whole(wanted[number], narrowed)) {
      is_all = false;
      for (std::size_t i = 0; i != narrowed.shape.size(); ++i) {
        add_numbers(result, narrowed.shape[i], wanted[number][i].all.size());
        for (const range& each : wanted[number][i].all) {
          add_numbers(result, each.begin, each.end);
        }
      }
      if (auto source = narrow(narrowed, wanted[number])) {
        file.strided.push_back({kept[at.file].all.size(), *std::move(source)});
      }
    }
    result += '\n';
    kept[at.file].all.push_back(std::move(narrowed));
  }
  for (std::size_t i = 0; i != files.size(); ++i) {
    files[i].contents.all = std::move(kept[i].all);
  }
  return is_all ? std::string() : hash_text(result);
}

}  // namespace gpushm::tensors
