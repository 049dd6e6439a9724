// SPDX-License-Identifier: Apache-2.0
#include "weights/slab.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/file.hpp"
#include "base/hex.hpp"
#include "base/quoted.hpp"
#include "gpushm/error.hpp"
#include "weights/hash.hpp"
#include "weights/layout.hpp"
#include "weights/tensor_json.hpp"

namespace gpushm::weights {

namespace {

using nlohmann::json;

constexpr std::string_view format = "gpushm-tensors/1";
constexpr const char* operation = "open tensors";

[[noreturn]] void damaged(std::string_view name, std::string_view what) {
  throw error(errc::protocol_error,
              operation,
              name,
              what,
              "load the model again under another name; if this repeats, report it as a bug of the "
              "program that wrote the segment");
}

/// The last bytes of the segment.
struct seal_value {
  std::array<char, 16> magic{};
  slab_id id{};
  std::array<char, 32> table_hash{};
  friend bool operator==(const seal_value&, const seal_value&) = default;
};
static_assert(sizeof(seal_value) == seal_bytes);

seal_value seal_for(const slab_info& info, std::string_view table) {
  seal_value result;
  std::copy(format.begin(), format.end(), result.magic.begin());
  result.id = info.id;
  const std::string hash = hash_text(table);
  std::copy(hash.begin(), hash.end(), result.table_hash.begin());
  return result;
}

/// The seal of a segment; nothing if it has none (yet).
std::optional<seal_value> seal_of(const segment& what, const slab_info& info) {
  seal_value found;
  const std::uint64_t at = info.table_offset + info.table_bytes;
  what.read(at, std::as_writable_bytes(std::span(&found, 1)));
  const bool is_seal =
      std::equal(format.begin(), format.end(), found.magic.begin()) && found.id == info.id;
  return is_seal ? std::optional(found) : std::nullopt;
}

std::span<const std::byte> as_bytes_of(const seal_value& value) {
  return std::as_bytes(std::span(&value, 1));
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

/// From the first to the last byte of a tensor: with strides, elements may be far apart, or the
/// same. Throws `invalid_json` as `bytes_of`.
std::uint64_t spanned_bytes(std::string_view name, const tensor& of) {
  const std::uint64_t bytes = bytes_of(of);
  if (of.strides.empty() || bytes == 0) {
    return bytes;
  }
  std::uint64_t elements = 1;
  for (std::size_t i = 0; i != of.shape.size(); ++i) {
    std::uint64_t further = 0;
    if (of.strides[i] < 0 ||
        __builtin_mul_overflow(
            of.shape[i] - 1, static_cast<std::uint64_t>(of.strides[i]), &further) ||
        __builtin_add_overflow(elements, further, &elements)) {
      damaged(name, "tensor " + base::in_quotes(of.name) + " has strides that cannot be");
    }
  }
  tensor flat;
  flat.name = of.name;
  flat.type = of.type;
  flat.shape = {elements};
  return bytes_of(flat);
}

}  // namespace

slab_info new_slab(std::string fingerprint, std::uint64_t table_offset, std::uint64_t table_bytes) {
  slab_info result{{}, std::move(fingerprint), table_offset, table_bytes};
  base::random_bytes(result.id);
  return result;
}

std::uint64_t slab_bytes(const slab_info& what) {
  return what.table_offset + what.table_bytes + seal_bytes;
}

std::string to_metadata(const slab_info& what) {
  return json{{"format", format},
              {"id", base::hex_text(what.id)},
              {"fingerprint", what.fingerprint},
              {"table_offset", what.table_offset},
              {"table_bytes", what.table_bytes}}
      .dump();
}

std::optional<slab_info> info_of(const segment& what) {
  const auto metadata = what.metadata();
  const std::string_view text(reinterpret_cast<const char*>(metadata.data()), metadata.size());
  if (text.find(format) == std::string_view::npos) {
    return std::nullopt;
  }
  // At most 64 KiB; the library's parser does not recurse.
  const json read = json::parse(text, nullptr, false);
  if (!read.is_object() || read.value("format", json()) != format) {
    return std::nullopt;
  }
  const auto id = read.find("id");
  const auto fingerprint = read.find("fingerprint");
  const auto offset = read.find("table_offset");
  const auto bytes = read.find("table_bytes");
  if (id == read.end() || !id->is_string() || fingerprint == read.end() ||
      !fingerprint->is_string() || offset == read.end() || !offset->is_number_unsigned() ||
      bytes == read.end() || !bytes->is_number_unsigned()) {
    damaged(what.name(), "its metadata lack the place of the table of tensors");
  }
  const auto known = id_of(id->get<std::string>());
  slab_info result{known.value_or(slab_id{}),
                   fingerprint->get<std::string>(),
                   offset->get<std::uint64_t>(),
                   bytes->get<std::uint64_t>()};
  const std::uint64_t size = what.size_bytes();
  if (!known || result.table_bytes > max_table_bytes || size < seal_bytes ||
      result.table_bytes > size - seal_bytes ||
      result.table_offset != size - seal_bytes - result.table_bytes) {
    damaged(what.name(), "its metadata place the table of tensors where it cannot be");
  }
  return result;
}

void seal(segment& what, const slab_info& info, std::string_view table) {
  what.write(info.table_offset, std::as_bytes(std::span(table)));
  what.write(info.table_offset + info.table_bytes, as_bytes_of(seal_for(info, table)));
}

bool is_sealed(const segment& what, const slab_info& info) {
  return seal_of(what, info).has_value();
}

std::optional<std::string> table_of(const segment& what, const slab_info& info) {
  const auto found = seal_of(what, info);
  if (!found) {
    return std::nullopt;
  }
  std::string table(info.table_bytes, '\0');
  what.read(info.table_offset, std::as_writable_bytes(std::span(table)));
  if (seal_for(info, table) != *found) {
    damaged(what.name(), "its table of tensors does not have the hash in its seal");
  }
  return table;
}

tensors checked_table(std::string_view name, std::string_view table, const slab_info& info) {
  tensors result;
  try {
    result = read_tensors(table, dialect::table);
    for (const tensor& each : result.all) {
      if (each.end < each.begin || each.end > info.table_offset) {
        damaged(name, "tensor " + base::in_quotes(each.name) + " is not within the segment");
      }
      const std::uint64_t bytes = spanned_bytes(name, each);
      if (bytes != each.end - each.begin) {
        damaged(name, "tensor " + base::in_quotes(each.name) + " has another size than its shape");
      }
    }
  } catch (const invalid_json& why) {
    damaged(name, std::string("its table of tensors is not valid: ") + why.what());
  }
  return result;
}

}  // namespace gpushm::weights
