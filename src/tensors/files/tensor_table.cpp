// SPDX-License-Identifier: Apache-2.0
#include "tensors/files/tensor_table.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <tuple>
#include <type_traits>

#include "base/segments/names.hpp"
#include "base/text/quoted.hpp"

namespace gpushm::tensors {

namespace {

using base::in_quotes;

static_assert(std::endian::native == std::endian::little, "the table is little-endian");

constexpr std::array<char, 8> magic{'g', 'p', 'u', 's', 'h', 'm', 't', 'b'};
constexpr std::uint32_t version = 2;
constexpr std::size_t word = sizeof(std::uint64_t);

struct header {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t tensors = 0;
  std::uint32_t metadata = 0;
  std::uint32_t numbers = 0;
  std::uint32_t text_bytes = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(header) == 32);

/// A tensor.
struct record {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::array<char, 16> hash{};  ///< hexadecimal digits, or zeros
  std::uint32_t name_begin = 0;
  std::uint32_t name_bytes = 0;
  std::uint32_t framework_begin = 0;
  std::uint32_t framework_bytes = 0;
  std::uint32_t first_number = 0;
  std::uint16_t rank = 0;
  std::uint8_t dtype = 0;  ///< an index of `all_dtypes`
  std::uint8_t flags = 0;
  std::uint64_t reserved = 0;

  [[nodiscard]] bool has_strides() const noexcept { return flags != 0; }
  [[nodiscard]] std::size_t numbers() const noexcept {
    return std::size_t{rank} * (flags == 0 ? 1 : 2);
  }
  [[nodiscard]] bool has_hash() const noexcept { return hash.front() != '\0'; }
};
static_assert(sizeof(record) == 64 && offsetof(record, name_begin) == 32 &&
              offsetof(record, rank) == 52 && offsetof(record, reserved) == 56);

/// A text of the metadata.
struct text_record {
  std::uint32_t key_begin = 0;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_begin = 0;
  std::uint32_t value_bytes = 0;
};
static_assert(sizeof(text_record) == 16);

constexpr std::uint8_t strides_flag = 1;
/// The key of the metadata in the JSON of tables, where it is not the name of a tensor.
constexpr std::string_view metadata_key = "__metadata__";

constexpr std::size_t padded(std::size_t bytes) {
  return (bytes + word - 1) / word * word;
}

template <typename Value>
Value load_at(const table_words& words, std::size_t index) noexcept {
  static_assert(std::is_trivially_copyable_v<Value>);
  Value result;
  std::memcpy(&result, reinterpret_cast<const char*>(words.data()) + index, sizeof result);
  return result;
}
template <typename Value>
void store_at(table_words& words, std::size_t index, const Value& value) noexcept {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::memcpy(reinterpret_cast<char*>(words.data()) + index, &value, sizeof value);
}
record record_at(const table_words& words, std::size_t index) noexcept {
  return load_at<record>(words, sizeof(header) + index * sizeof(record));
}

[[noreturn]] void refuse(const std::string& cause) {
  throw invalid_table(cause);
}

/// The position in texts or numbers that follow each other without gaps.
class run {
 public:
  explicit run(std::size_t size) noexcept : size_(size) {}
  [[nodiscard]] bool take(std::size_t begin, std::size_t count) noexcept {
    if (begin != next_ || count > size_ - next_) {
      return false;
    }
    next_ += count;
    return true;
  }
  [[nodiscard]] bool is_at_end() const noexcept { return next_ == size_; }

 private:
  std::size_t size_;
  std::size_t next_ = 0;
};

/// From the first to the last byte of a tensor: with strides, elements may be far apart, or the
/// same. Throws `invalid_table`.
std::uint64_t spanned_bytes(const table_entry& entry) {
  const auto wrong = [&](std::string_view cause) {
    refuse("tensor " + in_quotes(entry.name) + " " + std::string(cause));
  };
  std::uint64_t bytes = 0;
  if (const auto problem = size_of(entry.type, entry.shape, bytes); !problem.empty()) {
    wrong(problem);
  }
  if (entry.strides.empty() || bytes == 0) {
    return bytes;
  }
  std::uint64_t elements = 1;
  for (std::size_t i = 0; i != entry.shape.size(); ++i) {
    std::uint64_t further = 0;
    if (entry.strides[i] < 0 ||
        __builtin_mul_overflow(
            entry.shape[i] - 1, static_cast<std::uint64_t>(entry.strides[i]), &further) ||
        __builtin_add_overflow(elements, further, &elements)) {
      wrong("has strides that cannot be");
    }
  }
  if (const auto problem = size_of(entry.type, std::span(&elements, 1), bytes); !problem.empty()) {
    wrong(problem);
  }
  return bytes;
}

bool is_hash(const std::array<char, 16>& hash) noexcept {
  return std::all_of(hash.begin(), hash.end(), [](char each) {
    return (each >= '0' && each <= '9') || (each >= 'a' && each <= 'f');
  });
}

/// Writes texts one after the other.
class text_writer {
 public:
  text_writer(table_words& words, std::size_t index) noexcept
      : to_(reinterpret_cast<char*>(words.data()) + index) {}
  /// Returns where it begins.
  std::uint32_t add(std::string_view text) noexcept {
    const std::size_t begin = next_;
    std::copy(text.begin(), text.end(), to_ + begin);
    next_ += text.size();
    return static_cast<std::uint32_t>(begin);
  }

 private:
  char* to_;
  std::size_t next_ = 0;
};

}  // namespace

std::string_view bytes_in(const table_words& words) noexcept {
  return {reinterpret_cast<const char*>(words.data()), words.size() * word};
}

tensor_table::places tensor_table::places_for(const counts& counts) noexcept {
  places result;
  result.metadata = sizeof(header) + counts.tensors * sizeof(record);
  result.numbers = result.metadata + counts.metadata * sizeof(text_record);
  result.names = result.numbers + counts.numbers * word;
  result.texts = result.names + padded(counts.tensors * sizeof(std::uint32_t));
  result.end = result.texts + padded(counts.text_bytes);
  return result;
}

table_words encode_table(const tensor_list& content) {
  text_pairs metadata = content.metadata;
  std::sort(metadata.begin(), metadata.end());
  tensor_table::counts counts{content.all.size(), metadata.size(), 0, 0};
  for (const tensor& each : content.all) {
    counts.numbers += each.shape.size() + each.strides.size();
    counts.text_bytes += each.name.size() + each.framework_dtype.size();
  }
  for (const auto& [key, value] : metadata) {
    counts.text_bytes += key.size() + value.size();
  }
  const auto places = tensor_table::places_for(counts);
  if (places.end > max_table_bytes) {
    refuse("it has " + std::to_string(places.end) + " bytes, and may have " +
           std::to_string(max_table_bytes));
  }
  table_words result(places.end / word);
  const auto narrow = [](std::size_t value) { return static_cast<std::uint32_t>(value); };
  store_at(result,
           0,
           header{magic,
                  version,
                  narrow(counts.tensors),
                  narrow(counts.metadata),
                  narrow(counts.numbers),
                  narrow(counts.text_bytes),
                  0});
  text_writer texts(result, places.texts);
  std::size_t number = 0;
  const auto add_numbers = [&](const auto& numbers) {
    for (const auto each : numbers) {
      result[places.numbers / word + number++] = static_cast<std::uint64_t>(each);
    }
  };
  for (std::size_t i = 0; i != content.all.size(); ++i) {
    const tensor& from = content.all[i];
    record to;
    to.begin = from.begin;
    to.end = from.end;
    std::copy_n(from.hash.begin(), std::min(from.hash.size(), to.hash.size()), to.hash.begin());
    to.name_begin = texts.add(from.name);
    to.name_bytes = narrow(from.name.size());
    to.framework_begin = texts.add(from.framework_dtype);
    to.framework_bytes = narrow(from.framework_dtype.size());
    to.first_number = narrow(number);
    to.rank = static_cast<std::uint16_t>(from.shape.size());
    to.dtype = static_cast<std::uint8_t>(
        std::find(all_dtypes.begin(), all_dtypes.end(), from.type) - all_dtypes.begin());
    to.flags = from.strides.empty() ? 0 : strides_flag;
    add_numbers(from.shape);
    add_numbers(from.strides);
    store_at(result, sizeof(header) + i * sizeof to, to);
  }
  for (std::size_t i = 0; i != metadata.size(); ++i) {
    text_record to;
    to.key_begin = texts.add(metadata[i].first);
    to.key_bytes = narrow(metadata[i].first.size());
    to.value_begin = texts.add(metadata[i].second);
    to.value_bytes = narrow(metadata[i].second.size());
    store_at(result, places.metadata + i * sizeof to, to);
  }
  std::vector<std::uint32_t> by_name(content.all.size());
  std::iota(by_name.begin(), by_name.end(), 0U);
  std::sort(by_name.begin(), by_name.end(), [&](std::uint32_t left, std::uint32_t right) {
    return content.all[left].name < content.all[right].name;
  });
  for (std::size_t i = 0; i != by_name.size(); ++i) {
    store_at(result, places.names + i * sizeof(std::uint32_t), by_name[i]);
  }
  return result;
}

tensor_table::tensor_table(table_words words, std::uint64_t tensor_bytes)
    : words_(std::move(words)) {
  check_header();
  check_entries(tensor_bytes);
  check_texts();
  check_names();
}

void tensor_table::check_header() {
  const std::size_t bytes = bytes_in(words_).size();
  if (bytes < sizeof(header)) {
    refuse("it has " + std::to_string(bytes) + " bytes, fewer than its header");
  }
  const auto head = load_at<header>(words_, 0);
  if (head.magic != magic) {
    refuse("it does not begin with \"gpushmtb\"");
  }
  if (head.version != version) {
    refuse("it has version " + std::to_string(head.version) + ", and this library reads " +
           std::to_string(version));
  }
  counts_ = {head.tensors, head.metadata, head.numbers, head.text_bytes};
  places_ = places_for(counts_);
  if (places_.end != bytes || head.reserved != 0) {
    refuse("its header does not describe its " + std::to_string(bytes) + " bytes");
  }
}

void tensor_table::check_entries(std::uint64_t tensor_bytes) const {
  run texts(counts_.text_bytes);
  run numbers(counts_.numbers);
  std::pair<std::uint64_t, std::uint64_t> previous;
  for (std::size_t i = 0; i != counts_.tensors; ++i) {
    const record record = record_at(words_, i);
    if (!texts.take(record.name_begin, record.name_bytes) ||
        !texts.take(record.framework_begin, record.framework_bytes) ||
        !numbers.take(record.first_number, record.numbers()) || record.rank > max_dimensions ||
        record.dtype >= all_dtypes.size() || record.flags > strides_flag ||
        (record.has_strides() && record.rank == 0) || record.reserved != 0 ||
        (record.hash != std::array<char, 16>{} && !is_hash(record.hash))) {
      refuse("the record of tensor number " + std::to_string(i) + " is not valid");
    }
    const table_entry entry = (*this)[i];
    if (entry.name == metadata_key) {
      refuse("a tensor has the name \"__metadata__\"");
    }
    if (entry.end < entry.begin || entry.end > tensor_bytes) {
      refuse("tensor " + in_quotes(entry.name) + " is not within the segment");
    }
    if (spanned_bytes(entry) != entry.end - entry.begin) {
      refuse("tensor " + in_quotes(entry.name) + " has another size than its shape");
    }
    const std::pair place(entry.begin, entry.end);
    if (place < previous) {
      refuse("tensor " + in_quotes(entry.name) + " is not in the order of places");
    }
    previous = place;
  }
  std::string_view last_key;
  for (std::size_t i = 0; i != counts_.metadata; ++i) {
    const auto record = load_at<text_record>(words_, places_.metadata + i * sizeof(text_record));
    if (!texts.take(record.key_begin, record.key_bytes) ||
        !texts.take(record.value_begin, record.value_bytes)) {
      refuse("the metadata number " + std::to_string(i) + " are not valid");
    }
    const std::string_view key = metadata(i).first;
    if (i != 0 && key <= last_key) {
      refuse("the metadata " + in_quotes(key) + " are not in the order of keys");
    }
    last_key = key;
  }
  if (!texts.is_at_end() || !numbers.is_at_end()) {
    refuse("it has texts or numbers that nothing refers to");
  }
}

void tensor_table::check_texts() const {
  const std::size_t texts_end = places_.texts + counts_.text_bytes;
  const std::size_t names_end = places_.names + counts_.tensors * sizeof(std::uint32_t);
  const std::string_view bytes = bytes_in(words_);
  const auto is_zero = [](char each) { return each == '\0'; };
  if (!std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(texts_end), bytes.end(), is_zero) ||
      !std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(names_end),
                   bytes.begin() + static_cast<std::ptrdiff_t>(places_.texts),
                   is_zero)) {
    refuse("its padding is not zero");
  }
  // Almost all tables are ASCII, which is UTF-8 wherever it is divided.
  constexpr std::uint64_t high_bits = 0x8080'8080'8080'8080U;
  std::uint64_t bits = 0;
  for (std::size_t i = places_.texts / word; i != words_.size(); ++i) {
    bits |= words_[i];
  }
  if ((bits & high_bits) == 0) {
    return;
  }
  const auto check = [](std::string_view text) {
    if (!base::is_utf8(text)) {
      refuse("the text " + in_quotes(text) + " is not UTF-8");
    }
  };
  for (std::size_t i = 0; i != counts_.tensors; ++i) {
    const table_entry entry = (*this)[i];
    check(entry.name);
    check(entry.framework_dtype);
  }
  for (std::size_t i = 0; i != counts_.metadata; ++i) {
    const auto [key, value] = metadata(i);
    check(key);
    check(value);
  }
}

void tensor_table::check_names() const {
  // Strictly ascending: so all names are different, and each tensor occurs once.
  std::string_view last;
  for (std::size_t i = 0; i != counts_.tensors; ++i) {
    const std::uint32_t index = by_name(i);
    if (index >= counts_.tensors) {
      refuse("its list of names refers to tensor number " + std::to_string(index) + " of " +
             std::to_string(counts_.tensors));
    }
    const std::string_view name = (*this)[index].name;
    if (i != 0 && name <= last) {
      refuse(name == last ? "the name " + in_quotes(name) + " is there twice"
                          : "the name " + in_quotes(name) + " is not in the order of names");
    }
    last = name;
  }
}

std::string_view tensor_table::text(std::size_t begin, std::size_t bytes) const noexcept {
  return {reinterpret_cast<const char*>(words_.data()) + places_.texts + begin, bytes};
}

std::uint32_t tensor_table::by_name(std::size_t index) const noexcept {
  return load_at<std::uint32_t>(words_, places_.names + index * sizeof(std::uint32_t));
}

table_entry tensor_table::operator[](std::size_t index) const noexcept {
  const std::size_t at = sizeof(header) + index * sizeof(record);
  const auto from = load_at<record>(words_, at);
  table_entry result;
  result.name = text(from.name_begin, from.name_bytes);
  result.type = all_dtypes[from.dtype];
  result.framework_dtype = text(from.framework_begin, from.framework_bytes);
  if (from.has_hash()) {
    result.hash = bytes_in(words_).substr(at + offsetof(record, hash), from.hash.size());
  }
  result.begin = from.begin;
  result.end = from.end;
  const std::uint64_t* const numbers = words_.data() + places_.numbers / word + from.first_number;
  result.shape = {numbers, from.rank};
  if (from.has_strides()) {
    result.strides = {reinterpret_cast<const std::int64_t*>(numbers) + from.rank, from.rank};
  }
  return result;
}

std::optional<std::size_t> tensor_table::find(std::string_view name) const noexcept {
  std::size_t begin = 0;
  std::size_t end = counts_.tensors;
  while (begin != end) {
    const std::size_t middle = begin + (end - begin) / 2;
    const std::uint32_t index = by_name(middle);
    const record record = record_at(words_, index);
    const auto order = text(record.name_begin, record.name_bytes).compare(name);
    if (order == 0) {
      return index;
    }
    (order < 0 ? begin : end) = order < 0 ? middle + 1 : middle;
  }
  return std::nullopt;
}

std::pair<std::string_view, std::string_view> tensor_table::metadata(
    std::size_t index) const noexcept {
  const auto from = load_at<text_record>(words_, places_.metadata + index * sizeof(text_record));
  return {text(from.key_begin, from.key_bytes), text(from.value_begin, from.value_bytes)};
}

tensor_list tensor_table::content() const {
  tensor_list result;
  for (std::size_t i = 0; i != metadata_size(); ++i) {
    result.metadata.emplace_back(metadata(i));
  }
  for (std::size_t i = 0; i != size(); ++i) {
    const table_entry from = (*this)[i];
    result.all.push_back({std::string(from.name),
                          from.type,
                          {from.shape.begin(), from.shape.end()},
                          from.begin,
                          from.end,
                          {from.strides.begin(), from.strides.end()},
                          std::string(from.hash),
                          std::string(from.framework_dtype)});
  }
  return result;
}

}  // namespace gpushm::tensors
