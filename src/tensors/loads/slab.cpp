// SPDX-License-Identifier: Apache-2.0
#include "tensors/loads/slab.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/files/file.hpp"
#include "base/text/hex.hpp"
#include "base/text/quoted.hpp"
#include "gpushm/error.hpp"
#include "tensors/files/hash.hpp"
#include "tensors/files/layout.hpp"

namespace gpushm::tensors {

namespace {

using nlohmann::json;

constexpr std::string_view format_name = "gpushm-tensors/";
constexpr std::string_view format = "gpushm-tensors/2";
constexpr const char* operation = "open tensors";

[[noreturn]] void damaged(std::string_view name, std::string_view cause) {
  throw error(errc::protocol_error,
              operation,
              name,
              cause,
              "load the model again under another name; if this repeats, report it as a bug of the "
              "program that wrote the segment");
}

/// At a multiple of its size.
struct seal_value {
  /// The version of the contents (`contents_version`), which only grows. For updates in place,
  /// which do not exist yet: readers compare it before and after they read.
  std::uint64_t version = 1;
  slab_id id{};
  std::array<char, 32> table_hash{};
  /// Stored last, with release: depends on the id, so that no previous contents of the memory have
  /// it.
  std::uint64_t mark = 0;
  friend bool operator==(const seal_value&, const seal_value&) = default;
};
static_assert(sizeof(seal_value) == seal_bytes && offsetof(seal_value, version) == 0);
constexpr std::uint64_t version_place = offsetof(seal_value, version);
constexpr std::uint64_t mark_place = offsetof(seal_value, mark);
using identities = std::array<model_identity, max_identities>;

std::uint64_t mark_of(const slab_id& id) {
  std::string text(format);
  text.append(id.begin(), id.end());
  return hash_of(std::as_bytes(std::span(text)));
}
std::uint64_t seal_place(const slab_info& info) {
  return (info.table_offset + info.table_bytes + seal_bytes - 1) / seal_bytes * seal_bytes;
}
std::uint64_t sources_place(const slab_info& info) {
  return seal_place(info) + seal_bytes;
}

// ---- words that processes read while others write them: of host memory with the CPU's order, of a
// GPU by copies, of which each is complete before the next one begins ----

bool is_of_cpu(const segment& segment) {
  return segment.backend() == backend::host;
}

std::uint64_t load_word(const segment& segment, std::uint64_t offset) {
  std::uint64_t result = 0;
  if (is_of_cpu(segment)) {
    const auto* const first = static_cast<const std::byte*>(segment.data()) + offset;
    result = __atomic_load_n(reinterpret_cast<const std::uint64_t*>(first), __ATOMIC_ACQUIRE);
  } else {
    segment.read(offset, std::as_writable_bytes(std::span(&result, 1)));
  }
  return result;
}
void store_word(segment& segment, std::uint64_t offset, std::uint64_t value) {
  if (is_of_cpu(segment)) {
    auto* const first = static_cast<std::byte*>(segment.mutable_data()) + offset;
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(first), value, __ATOMIC_RELEASE);
  } else {
    segment.write(offset, std::as_bytes(std::span(&value, 1)));
  }
}
using identity_words = std::array<std::uint64_t, sizeof(model_identity) / sizeof(std::uint64_t)>;

identities load_identities(const segment& segment, std::uint64_t offset) {
  identities result{};
  if (!is_of_cpu(segment)) {
    segment.read(offset, std::as_writable_bytes(std::span(result)));
    return result;
  }
  for (model_identity& each : result) {
    identity_words words{};
    for (std::uint64_t& word : words) {
      word = load_word(segment, offset);
      offset += sizeof word;
    }
    each = std::bit_cast<model_identity>(words);
  }
  return result;
}
void store_identity(segment& segment, std::uint64_t offset, const model_identity& identity) {
  for (const std::uint64_t word : std::bit_cast<identity_words>(identity)) {
    store_word(segment, offset, word);
    offset += sizeof word;
  }
}

seal_value seal_for(const slab_info& info, const table_words& table) {
  seal_value result;
  result.id = info.id;
  result.mark = mark_of(info.id);
  const std::string hash = hash_text(bytes_in(table));
  std::copy(hash.begin(), hash.end(), result.table_hash.begin());
  return result;
}

/// All but the mark.
template <typename Seal>
auto bytes_before_mark(Seal& value) {
  if constexpr (std::is_const_v<Seal>) {
    return std::as_bytes(std::span(&value, 1)).first(mark_place);
  } else {
    return std::as_writable_bytes(std::span(&value, 1)).first(mark_place);
  }
}

/// The bytes from `begin`, a multiple of 8, to the end of the seal, and the seal in them. Of a GPU,
/// a copy takes longer than what it copies: this is one, in no order, so that the caller must
/// compare.
std::pair<table_words, seal_value> copy_with_seal(const segment& segment,
                                                  const slab_info& info,
                                                  std::uint64_t begin) {
  table_words words((seal_place(info) + seal_bytes - begin) / sizeof(std::uint64_t));
  segment.read(begin, std::as_writable_bytes(std::span(words)));
  seal_value seal;
  const auto last = std::as_bytes(std::span(words)).last(seal_bytes);
  std::copy(last.begin(), last.end(), std::as_writable_bytes(std::span(&seal, 1)).begin());
  return {std::move(words), seal};
}

/// The seal of a segment; nullopt if it has none (yet).
std::optional<seal_value> seal_of(const segment& segment, const slab_info& info) {
  if (load_word(segment, seal_place(info) + mark_place) != mark_of(info.id)) {
    return std::nullopt;
  }
  seal_value value;
  auto rest = bytes_before_mark(value);
  if (is_of_cpu(segment)) {  // the version may rise at the same time
    value.version = load_word(segment, seal_place(info) + version_place);
    rest = rest.subspan(sizeof value.version);
  }
  segment.read(seal_place(info) + mark_place - rest.size(), rest);
  value.mark = mark_of(info.id);
  return value.id == info.id ? std::optional(value) : std::nullopt;
}

std::optional<slab_id> id_of(const std::string& text) {
  slab_id result{};
  if (text.size() != 2 * result.size() ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i != result.size(); ++i) {
    result[i] = static_cast<std::uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  }
  return result;
}

}  // namespace

model_identity identity_from(std::string_view stamps) {
  const auto hash = id_of(hash_text(stamps));
  return hash.value_or(model_identity{});
}

slab_info new_slab(std::string fingerprint,
                   std::uint64_t table_offset,
                   std::uint64_t table_bytes,
                   std::uint64_t sources_bytes) {
  slab_info result{{}, std::move(fingerprint), table_offset, table_bytes, sources_bytes};
  base::random_bytes(result.id);
  return result;
}

std::uint64_t slab_bytes(const slab_info& slab) {
  return sources_place(slab) + slab.sources_bytes;
}

std::string to_metadata(const slab_info& slab) {
  return json{{"format", format},
              {"id", base::hex_text(slab.id)},
              {"fingerprint", slab.fingerprint},
              {"table_offset", slab.table_offset},
              {"table_bytes", slab.table_bytes},
              {"sources_bytes", slab.sources_bytes}}
      .dump();
}

std::optional<slab_info> info_of(const segment& segment) {
  if (segment.state() == segment_state::suspended) {  // an open gives the mapping that is there
    throw error(errc::invalid_argument,
                "open",
                segment.name(),
                "this process has suspended the segment: no memory is mapped at its address",
                "resume it first");
  }
  const auto metadata = segment.metadata();
  const std::string_view text(reinterpret_cast<const char*>(metadata.data()), metadata.size());
  if (text.find(format_name) == std::string_view::npos) {
    return std::nullopt;
  }
  // At most 64 KiB; the library's parser does not recurse.
  const json read = json::parse(text, nullptr, false);
  const json called = read.is_object() ? read.value("format", json()) : json();
  if (!called.is_string() || !called.get_ref<const std::string&>().starts_with(format_name)) {
    return std::nullopt;
  }
  if (called != format) {
    throw error(errc::unsupported_version,
                operation,
                segment.name(),
                "its tensors have the format " +
                    base::in_quotes(called.get_ref<const std::string&>()) +
                    ", and this library reads " + base::in_quotes(format),
                "remove it (gpushm rm), and load or publish it again with the version of gpushm "
                "that reads it");
  }
  const auto id = read.find("id");
  const auto fingerprint = read.find("fingerprint");
  const auto offset = read.find("table_offset");
  const auto bytes = read.find("table_bytes");
  const auto sources = read.find("sources_bytes");
  if (id == read.end() || !id->is_string() || fingerprint == read.end() ||
      !fingerprint->is_string() || offset == read.end() || !offset->is_number_unsigned() ||
      bytes == read.end() || !bytes->is_number_unsigned() || sources == read.end() ||
      !sources->is_number_unsigned()) {
    damaged(segment.name(), "its metadata lack the place of the table of tensors");
  }
  const auto known = id_of(id->get<std::string>());
  slab_info result{known.value_or(slab_id{}),
                   fingerprint->get<std::string>(),
                   offset->get<std::uint64_t>(),
                   bytes->get<std::uint64_t>(),
                   sources->get<std::uint64_t>()};
  const std::uint64_t size = segment.size_bytes();
  // No sum of them overflows: none is larger than the segment.
  if (!known || result.table_offset % tensor_alignment != 0 ||
      result.table_bytes % sizeof(std::uint64_t) != 0 || result.table_bytes > max_table_bytes ||
      result.table_bytes > size || result.table_offset > size ||
      result.sources_bytes > identities_bytes + max_names_bytes ||
      (result.sources_bytes != 0 && result.sources_bytes < identities_bytes) ||
      size > std::numeric_limits<std::int64_t>::max() || slab_bytes(result) != size) {
    damaged(segment.name(), "its metadata place the table of tensors where it cannot be");
  }
  return result;
}

void seal(segment& segment,
          const slab_info& info,
          const table_words& table,
          const model_sources& sources) {
  segment.write(info.table_offset, std::as_bytes(std::span(table)));
  if (info.sources_bytes != 0) {
    std::string text(info.sources_bytes, '\0');
    identities first{};
    std::copy_n(sources.known.begin(), std::min(sources.known.size(), first.size()), first.begin());
    std::memcpy(text.data(), first.data(), sizeof first);
    std::copy_n(sources.names.begin(),
                std::min<std::size_t>(sources.names.size(), text.size() - sizeof(identities)),
                text.begin() + sizeof(identities));
    segment.write(sources_place(info), std::as_bytes(std::span(text)));
  }
  const seal_value value = seal_for(info, table);
  segment.write(seal_place(info), bytes_before_mark(value));
  store_word(segment, seal_place(info) + mark_place, value.mark);
}

bool is_sealed(const segment& segment, const slab_info& info) {
  if (!is_of_cpu(segment)) {
    const seal_value copied = copy_with_seal(segment, info, seal_place(info)).second;
    if (copied.mark != mark_of(info.id) || copied.id == info.id) {
      return copied.mark == mark_of(info.id);
    }  // otherwise it was sealed during the copy
  }
  return seal_of(segment, info).has_value();
}

std::uint64_t contents_version(const segment& segment, const slab_info& info) {
  const auto found = seal_of(segment, info);
  return found ? found->version : 0;
}

void set_contents_version(segment& segment, const slab_info& info, std::uint64_t version) {
  store_word(segment, seal_place(info) + version_place, version);
}

namespace {

/// Throws `error`: protocol_error.
tensor_table checked(const segment& segment, const slab_info& info, table_words words) {
  try {
    return {std::move(words), info.table_offset};
  } catch (const invalid_table& why) {
    damaged(segment.name(), std::string("its table of tensors is not valid: ") + why.what());
  }
}

}  // namespace

std::optional<tensor_table> table_of(const segment& segment, const slab_info& info) {
  const std::size_t size = info.table_bytes / sizeof(std::uint64_t);
  if (!is_of_cpu(segment)) {
    auto [words, seal] = copy_with_seal(segment, info, info.table_offset);
    if (seal.mark != mark_of(info.id)) {
      return std::nullopt;
    }
    words.resize(size);
    seal_value expected = seal_for(info, words);
    expected.version = seal.version;
    if (expected == seal) {
      return checked(segment, info, std::move(words));
    }  // otherwise it was sealed during the copy, or is damaged
  }
  const auto seal = seal_of(segment, info);
  if (!seal) {
    return std::nullopt;
  }
  table_words words(size);
  segment.read(info.table_offset, std::as_writable_bytes(std::span(words)));
  seal_value expected = seal_for(info, words);
  expected.version = seal->version;
  if (expected != *seal) {
    damaged(segment.name(), "its table of tensors does not have the hash in its seal");
  }
  return checked(segment, info, std::move(words));
}

model_sources sources_of(const segment& segment, const slab_info& info) {
  model_sources result;
  if (info.sources_bytes == 0) {
    return result;
  }
  for (const model_identity& each : load_identities(segment, sources_place(info))) {
    if (each != model_identity{}) {
      result.known.push_back(each);
    }
  }
  result.names.resize(info.sources_bytes - sizeof(identities));
  segment.read(sources_place(info) + sizeof(identities),
               std::as_writable_bytes(std::span(result.names)));
  return result;
}

void remember(segment& segment, const slab_info& info, const model_identity& identity) {
  const identities identities = load_identities(segment, sources_place(info));
  if (std::find(identities.begin(), identities.end(), identity) != identities.end()) {
    return;
  }
  const auto empty = std::find(identities.begin(), identities.end(), model_identity{});
  const auto index = empty != identities.end()
                         ? static_cast<std::size_t>(empty - identities.begin())
                         : identity.front() % identities.size();
  store_identity(segment, sources_place(info) + index * sizeof identity, identity);
}

}  // namespace gpushm::tensors
