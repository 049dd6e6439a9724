// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "containers/yaml/problem.hpp"
#include "containers/yaml/tree.hpp"

namespace gpushm::yaml {

/// A key of a mapping with its value, merge keys followed.
struct entry {
  std::string key;
  const yaml::node* key_node = nullptr;
  const yaml::node* value = nullptr;
};

/// Reads typed values from a tree, converts them as the reference loader does, and collects the
/// problems. `key` names a value in problems: "major".
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class reader {
 public:
  /// Limits the time spent on a document that consists of mistakes.
  static constexpr std::size_t max_problems = 1'000;

  reader(std::string file, std::vector<problem>& problems)
      : file_(std::move(file)), problems_(problems) {}

  /// Keeps at most `max_problems` and one more that states that there are others.
  void report(const yaml::node& where, std::string rule, std::string text);
  /// Further reports are dropped.
  [[nodiscard]] bool full() const { return problems_.size() > max_problems; }
  [[nodiscard]] std::size_t problem_count() const { return problems_.size(); }

  [[nodiscard]] bool is_null(const yaml::node& node);

  // Null leaves `out` unchanged. False after a problem.
  bool read(const yaml::node& node, std::string_view key, std::string& out);
  bool read(const yaml::node& node, std::string_view key, std::int64_t& out);
  bool read(const yaml::node& node, std::string_view key, std::uint32_t& out);
  bool read(const yaml::node& node, std::string_view key, bool& out);
  template <typename Value>
  bool read(const yaml::node& node, std::string_view key, std::optional<Value>& out) {
    Value value{};
    if (is_null(node) || !read(node, key, value)) {
      return is_null(node);
    }
    out = std::move(value);
    return true;
  }

  /// The elements of a list; none for null, and after a problem.
  std::span<const yaml::node* const> elements(const yaml::node& node, std::string_view key);
  /// A list of strings or numbers: the valid elements; null is an empty element.
  template <typename Value>
  bool read(const yaml::node& node, std::string_view key, std::vector<Value>& out) {
    const std::size_t before = problem_count();
    for (const yaml::node* each : elements(node, key)) {
      Value value{};
      if (read(*each, key, value)) {
        out.push_back(std::move(value));
      }
    }
    return problem_count() == before;
  }

  /// Whether it is a mapping; reports a problem when it is another type.
  bool entries_expected(const yaml::node& node, std::string_view key);
  /// The keys of a mapping, each once; empty for null and after a problem. `key`: "a mount".
  std::vector<yaml::entry> entries(const yaml::node& node, std::string_view key);

  /// The same for a mapping with these keys, case-insensitive: the index of each in `fields`, and
  /// its value.
  struct field {
    std::size_t index = 0;
    const yaml::node* key = nullptr;
    const yaml::node* value = nullptr;
  };
  std::vector<field> fields(const yaml::node& node,
                            std::string_view field_name,
                            std::span<const std::string_view> names);

 private:
  void collect(const yaml::node& mapping, std::vector<yaml::entry>& entries);
  void merge(const yaml::node& value, std::vector<yaml::entry>& entries);
  void drop_duplicates(std::vector<yaml::entry>& entries);
  void mismatch(const yaml::node& node, std::string_view key, std::string_view expected);
  std::optional<std::int64_t> integer(const yaml::node& node,
                                      std::string_view key,
                                      std::int64_t min_value,
                                      std::int64_t max_value);

  std::string file_;
  std::vector<problem>& problems_;
};

}  // namespace gpushm::yaml
