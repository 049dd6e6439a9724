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

[[noreturn]] void damaged(std::string_view name, std::string_view what) {
  throw error(errc::protocol_error,
              operation,
              name,
              what,
              "load the model again under another name; if this repeats, report it as a bug of the "
              "program that wrote the segment");
}

/// At a multiple of its size.
struct seal_value {
  /// Of the contents (`contents_version`): it only grows. For updates in place, which do not exist
  /// yet: readers compare it before and after what they read.
  std::uint64_t version = 1;
  slab_id id{};
  std::array<char, 32> table_hash{};
  /// Stored last, with release: depends on the id, so that no former contents of the memory have
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

bool is_of_cpu(const segment& what) {
  return what.backend() == backend::host;
}

std::uint64_t load_word(const segment& from, std::uint64_t at) {
  std::uint64_t result = 0;
  if (is_of_cpu(from)) {
    const auto* const first = static_cast<const std::byte*>(from.data()) + at;
    result = __atomic_load_n(reinterpret_cast<const std::uint64_t*>(first), __ATOMIC_ACQUIRE);
  } else {
    from.read(at, std::as_writable_bytes(std::span(&result, 1)));
  }
  return result;
}
void store_word(segment& to, std::uint64_t at, std::uint64_t value) {
  if (is_of_cpu(to)) {
    auto* const first = static_cast<std::byte*>(to.mutable_data()) + at;
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(first), value, __ATOMIC_RELEASE);
  } else {
    to.write(at, std::as_bytes(std::span(&value, 1)));
  }
}
using identity_words = std::array<std::uint64_t, sizeof(model_identity) / sizeof(std::uint64_t)>;

identities load_identities(const segment& from, std::uint64_t at) {
  identities result{};
  if (!is_of_cpu(from)) {
    from.read(at, std::as_writable_bytes(std::span(result)));
    return result;
  }
  for (model_identity& each : result) {
    identity_words words{};
    for (std::uint64_t& word : words) {
      word = load_word(from, at);
      at += sizeof word;
    }
    each = std::bit_cast<model_identity>(words);
  }
  return result;
}
void store_identity(segment& to, std::uint64_t at, const model_identity& which) {
  for (const std::uint64_t word : std::bit_cast<identity_words>(which)) {
    store_word(to, at, word);
    at += sizeof word;
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
std::pair<table_words, seal_value> copy_with_seal(const segment& what,
                                                  const slab_info& info,
                                                  std::uint64_t begin) {
  table_words words((seal_place(info) + seal_bytes - begin) / sizeof(std::uint64_t));
  what.read(begin, std::as_writable_bytes(std::span(words)));
  seal_value seal;
  const auto last = std::as_bytes(std::span(words)).last(seal_bytes);
  std::copy(last.begin(), last.end(), std::as_writable_bytes(std::span(&seal, 1)).begin());
  return {std::move(words), seal};
}

/// The seal of a segment; nothing if it has none (yet).
std::optional<seal_value> seal_of(const segment& what, const slab_info& info) {
  if (load_word(what, seal_place(info) + mark_place) != mark_of(info.id)) {
    return std::nullopt;
  }
  seal_value found;
  auto rest = bytes_before_mark(found);
  if (is_of_cpu(what)) {  // the version may rise at the same time
    found.version = load_word(what, seal_place(info) + version_place);
    rest = rest.subspan(sizeof found.version);
  }
  what.read(seal_place(info) + mark_place - rest.size(), rest);
  found.mark = mark_of(info.id);
  return found.id == info.id ? std::optional(found) : std::nullopt;
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

std::uint64_t slab_bytes(const slab_info& what) {
  return sources_place(what) + what.sources_bytes;
}

std::string to_metadata(const slab_info& what) {
  return json{{"format", format},
              {"id", base::hex_text(what.id)},
              {"fingerprint", what.fingerprint},
              {"table_offset", what.table_offset},
              {"table_bytes", what.table_bytes},
              {"sources_bytes", what.sources_bytes}}
      .dump();
}

std::optional<slab_info> info_of(const segment& what) {
  const auto metadata = what.metadata();
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
                what.name(),
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
    damaged(what.name(), "its metadata lack the place of the table of tensors");
  }
  const auto known = id_of(id->get<std::string>());
  slab_info result{known.value_or(slab_id{}),
                   fingerprint->get<std::string>(),
                   offset->get<std::uint64_t>(),
                   bytes->get<std::uint64_t>(),
                   sources->get<std::uint64_t>()};
  const std::uint64_t size = what.size_bytes();
  // No sum of them overflows: none is larger than the segment.
  if (!known || result.table_offset % tensor_alignment != 0 ||
      result.table_bytes % sizeof(std::uint64_t) != 0 || result.table_bytes > max_table_bytes ||
      result.table_bytes > size || result.table_offset > size ||
      result.sources_bytes > identities_bytes + max_names_bytes ||
      (result.sources_bytes != 0 && result.sources_bytes < identities_bytes) ||
      size > std::numeric_limits<std::int64_t>::max() || slab_bytes(result) != size) {
    damaged(what.name(), "its metadata place the table of tensors where it cannot be");
  }
  return result;
}

void seal(segment& what,
          const slab_info& info,
          const table_words& table,
          const model_sources& sources) {
  what.write(info.table_offset, std::as_bytes(std::span(table)));
  if (info.sources_bytes != 0) {
    std::string text(info.sources_bytes, '\0');
    identities first{};
    std::copy_n(sources.known.begin(), std::min(sources.known.size(), first.size()), first.begin());
    std::memcpy(text.data(), first.data(), sizeof first);
    std::copy_n(sources.names.begin(),
                std::min<std::size_t>(sources.names.size(), text.size() - sizeof(identities)),
                text.begin() + sizeof(identities));
    what.write(sources_place(info), std::as_bytes(std::span(text)));
  }
  const seal_value value = seal_for(info, table);
  what.write(seal_place(info), bytes_before_mark(value));
  store_word(what, seal_place(info) + mark_place, value.mark);
}

bool is_sealed(const segment& what, const slab_info& info) {
  if (!is_of_cpu(what)) {
    const seal_value copied = copy_with_seal(what, info, seal_place(info)).second;
    if (copied.mark != mark_of(info.id) || copied.id == info.id) {
      return copied.mark == mark_of(info.id);
    }  // otherwise it was sealed during the copy
  }
  return seal_of(what, info).has_value();
}

std::uint64_t contents_version(const segment& what, const slab_info& info) {
  const auto found = seal_of(what, info);
  return found ? found->version : 0;
}

void set_contents_version(segment& what, const slab_info& info, std::uint64_t version) {
  store_word(what, seal_place(info) + version_place, version);
}

namespace {

/// Throws `error`: protocol_error.
tensor_table checked(const segment& what, const slab_info& info, table_words words) {
  try {
    return {std::move(words), info.table_offset};
  } catch (const invalid_table& why) {
    damaged(what.name(), std::string("its table of tensors is not valid: ") + why.what());
  }
}

}  // namespace

std::optional<tensor_table> table_of(const segment& what, const slab_info& info) {
  const std::size_t size = info.table_bytes / sizeof(std::uint64_t);
  if (!is_of_cpu(what)) {
    auto [words, seal] = copy_with_seal(what, info, info.table_offset);
    if (seal.mark != mark_of(info.id)) {
      return std::nullopt;
    }
    words.resize(size);
    seal_value expected = seal_for(info, words);
    expected.version = seal.version;
    if (expected == seal) {
      return checked(what, info, std::move(words));
    }  // otherwise it was sealed during the copy, or is damaged
  }
  const auto found = seal_of(what, info);
  if (!found) {
    return std::nullopt;
  }
  table_words words(size);
  what.read(info.table_offset, std::as_writable_bytes(std::span(words)));
  seal_value expected = seal_for(info, words);
  expected.version = found->version;
  if (expected != *found) {
    damaged(what.name(), "its table of tensors does not have the hash in its seal");
  }
  return checked(what, info, std::move(words));
}

model_sources sources_of(const segment& what, const slab_info& info) {
  model_sources result;
  if (info.sources_bytes == 0) {
    return result;
  }
  for (const model_identity& each : load_identities(what, sources_place(info))) {
    if (each != model_identity{}) {
      result.known.push_back(each);
    }
  }
  result.names.resize(info.sources_bytes - sizeof(identities));
  what.read(sources_place(info) + sizeof(identities),
            std::as_writable_bytes(std::span(result.names)));
  return result;
}

void remember(segment& what, const slab_info& info, const model_identity& which) {
  const identities all = load_identities(what, sources_place(info));
  if (std::find(all.begin(), all.end(), which) != all.end()) {
    return;
  }
  const auto empty = std::find(all.begin(), all.end(), model_identity{});
  const auto index = empty != all.end() ? static_cast<std::size_t>(empty - all.begin())
                                        : which.front() % all.size();
  store_identity(what, sources_place(info) + index * sizeof which, which);
}

}  // namespace gpushm::tensors
