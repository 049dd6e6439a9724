// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "tensors/files/dtype.hpp"
#include "tensors/files/tensor.hpp"

/// The table of the tensors of a segment: binary, as docs/tensors.md specifies it. What another
/// process has written is hostile: all of it is checked once, before any of it is used. Each table
/// has one encoding.
namespace gpushm::tensors {

/// Says what is wrong with a table, and where. The caller adds the segment's name.
class invalid_table : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The bytes of a table: whole words, so that shapes in it can be used where they are.
using table_words = std::vector<std::uint64_t>;

/// Upper bound, because readers keep it in memory.
inline constexpr std::uint64_t max_table_bytes = 1U << 30U;

/// Precondition: tensors by place, with unique names, and so are the keys of the metadata. Throws
/// `invalid_table`: it would be larger than `max_table_bytes`.
[[nodiscard]] table_words encode_table(const tensor_list& content);
[[nodiscard]] std::string_view bytes_in(const table_words& words) noexcept;

/// A tensor of a table. Refers to the table's bytes.
struct table_entry {
  std::string_view name;
  dtype type;
  std::string_view framework_dtype;  ///< as `tensor::framework_dtype`
  std::string_view hash;             ///< as `tensor::hash`
  std::uint64_t begin = 0;           ///< of its bytes, from the segment's first byte
  std::uint64_t end = 0;
  std::span<const std::uint64_t> shape;
  std::span<const std::int64_t> strides;  ///< as `tensor::strides`
};

/// A table that has been checked. Its entries stay valid when it is moved.
///
/// Thread-safety: distinct objects: safe; shared objects: immutable.
class tensor_table {
 public:
  /// `tensor_bytes`: of the segment, before the table. Throws `invalid_table`.
  tensor_table(table_words words, std::uint64_t tensor_bytes);

  [[nodiscard]] std::size_t size() const noexcept { return counts_.tensors; }
  /// Returns a tensor in the order of places: by `begin`, then `end`. Precondition: below `size()`.
  [[nodiscard]] table_entry operator[](std::size_t index) const noexcept;
  /// Returns nullopt if there is no tensor of that name. Time: the logarithm of `size()`.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const noexcept;

  [[nodiscard]] std::size_t metadata_size() const noexcept { return counts_.metadata; }
  /// Returns a text of the metadata in the order of keys. Precondition: below `metadata_size()`.
  [[nodiscard]] std::pair<std::string_view, std::string_view> metadata(
      std::size_t index) const noexcept;

  [[nodiscard]] const table_words& words() const noexcept { return words_; }
  /// A copy that does not refer to this table.
  [[nodiscard]] tensor_list content() const;

 private:
  struct counts {
    std::size_t tensors = 0;
    std::size_t metadata = 0;
    std::size_t numbers = 0;
    std::size_t text_bytes = 0;
  };
  /// From the first byte of the table.
  struct places {
    std::size_t metadata = 0;
    std::size_t numbers = 0;
    std::size_t names = 0;
    std::size_t texts = 0;
    std::size_t end = 0;
  };
  static places places_for(const counts& counts) noexcept;

  [[nodiscard]] std::string_view text(std::size_t begin, std::size_t bytes) const noexcept;
  [[nodiscard]] std::uint32_t by_name(std::size_t index) const noexcept;
  void check_header();
  void check_entries(std::uint64_t tensor_bytes) const;
  void check_names() const;
  void check_texts() const;

  friend table_words encode_table(const tensor_list& content);

  table_words words_;
  counts counts_;
  places places_;
};

}  // namespace gpushm::tensors
