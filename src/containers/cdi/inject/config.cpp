// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/inject/config.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "base/text/quoted.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cdi {

namespace {

[[noreturn]] void refuse(const std::string& name, std::string_view cause) {
  throw error(errc::invalid_argument, "read config", name, cause);
}

std::string place_of(std::string_view text, std::size_t position) {
  const std::string_view before = text.substr(0, std::min(position, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
  std::string place = "line ";
  place += std::to_string(line);
  place += ", column ";
  place += std::to_string(before.size() - start + 1);
  return place;
}

// Builds the document from the parser's events. The library's builder would keep the last of equal
// keys, round large integers, and search an object for each new key.
class builder {
 public:
  builder(oci_config& root, const std::string& name) : root_(root), name_(name) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(oci_config::number_integer_t value) { return add(value); }
  bool number_unsigned(oci_config::number_unsigned_t value) { return add(value); }
  bool number_float(oci_config::number_float_t value, const std::string& token) {
    if (token.find_first_of(".eE") == std::string::npos) {
      refuse(name_, fmt::format("the number {} has more than 64 bits", base::in_quotes(token)));
    }
    return add(value);
  }
  bool string(std::string& value) { return add(std::move(value)); }
  // NOLINTNEXTLINE(readability-convert-member-functions-to-static): the parser calls it
  bool binary(oci_config::binary_t& /*value*/) { return false; }

  bool start_object(std::size_t /*size*/) { return open(oci_config::object()); }
  bool end_object() { return close(); }
  bool start_array(std::size_t /*size*/) { return open(oci_config::array()); }
  bool end_array() { return close(); }

  bool key(std::string& text) {
    level& at = levels_.back();
    auto& members = at.value->get_ref<oci_config::object_t&>();
    if (known(at, members, text)) {
      refuse(name_, fmt::format("duplicate key {} in one object", base::in_quotes(text)));
    }
    // Bypasses the map's insertion, which searches.
    auto& list = static_cast<oci_config::object_t::Container&>(members);
    list.emplace_back(std::move(text), nullptr);
    at.slot = &list.back().second;
    return true;
  }

  bool parse_error(std::size_t position,
                   const std::string& /*token*/,
                   const nlohmann::detail::exception& failure) {
    failed_at_ = position;
    reason_ = failure.what();
    return false;
  }

  [[nodiscard]] std::size_t failed_at() const { return failed_at_; }
  /// Without the library's error name and position; the position is counted separately.
  [[nodiscard]] std::string reason() const {
    const auto start = reason_.find(": ");
    return start == std::string::npos ? reason_ : reason_.substr(start + 2);
  }

 private:
  struct level {
    oci_config* value = nullptr;
    oci_config* slot = nullptr;                 ///< of an object: the next value
    std::unordered_set<std::string> keys = {};  ///< keys of a large object
  };

  static bool known(level& level, const oci_config::object_t& members, const std::string& text) {
    constexpr std::size_t few = 16;
    if (members.size() < few) {
      return std::any_of(
          members.begin(), members.end(), [&](const auto& member) { return member.first == text; });
    }
    if (level.keys.empty()) {
      for (const auto& member : members) {
        level.keys.insert(member.first);
      }
    }
    return !level.keys.insert(text).second;
  }

  oci_config* place(oci_config value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    level& at = levels_.back();
    if (at.slot != nullptr) {
      *at.slot = std::move(value);
      return std::exchange(at.slot, nullptr);
    }
    auto& elements = at.value->get_ref<oci_config::array_t&>();
    elements.push_back(std::move(value));
    return &elements.back();
  }
  bool add(oci_config value) {
    place(std::move(value));
    return true;
  }
  bool open(oci_config value) {
    if (levels_.size() == max_config_depth) {
      refuse(name_, fmt::format("it is nested more than {} levels deep", max_config_depth));
    }
    levels_.push_back({place(std::move(value))});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  oci_config& root_;
  const std::string& name_;
  std::vector<level> levels_;
  std::size_t failed_at_ = 0;
  std::string reason_;
};

}  // namespace

oci_config parse_config(std::string_view text, const std::string& name) {
  if (text.size() > max_config_bytes) {
    refuse(name, fmt::format("it is larger than {} MiB", max_config_bytes >> 20U));
  }
  // The parser would treat it as the end.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {
    refuse(name, place_of(text, zero) + ": NUL byte");
  }
  oci_config config;
  builder created(config, name);
  if (!oci_config::sax_parse(text.begin(), text.end(), &created)) {
    // The position is after the unexpected character.
    refuse(name,
           fmt::format("{}: {}",
                       place_of(text, std::max<std::size_t>(created.failed_at(), 1) - 1),
                       created.reason()));
  }
  if (!config.is_object()) {
    refuse(name, "it is not a JSON object");
  }
  return config;
}

std::string to_text(const oci_config& config, std::string_view like) {
  // The blanks after the first line feed are the indentation of the first level.
  int indent = -1;
  char with = ' ';
  if (const auto end = like.find('\n'); end != std::string_view::npos && end + 1 < like.size()) {
    const std::string_view rest = like.substr(end + 1);
    const auto blanks = std::min(rest.find_first_not_of(" \t"), rest.size());
    indent = static_cast<int>(std::min<std::size_t>(blanks, 8));
    with = rest.front() == '\t' ? '\t' : ' ';
  }
  std::string text = config.dump(indent, with);
  if (like.ends_with('\n')) {
    text += '\n';
  }
  return text;
}

}  // namespace gpushm::cdi
