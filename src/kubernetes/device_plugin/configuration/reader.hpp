// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "containers/yaml/problem.hpp"
#include "containers/yaml/reader.hpp"
#include "kubernetes/device_plugin/configuration/configuration.hpp"

namespace gpushm::device_plugin {

/// Reads a configuration from a tree. Problems and warnings name each value by its path
/// ("flags.migStrategy").
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class configuration_reader {
 public:
  configuration_reader(std::string file, configuration& content);

  using node = yaml::node;
  /// A key of a mapping and the function that reads its value; empty: the value is ignored.
  struct field {
    std::string_view name;
    std::function<void(const node& value, const std::string& path)> read;
  };

  /// Reads the mapping at `path` ("" is the whole file). Keys are case-insensitive, as in
  /// NVIDIA's device plugin; unknown ones become a warning.
  void read_mapping(const node& node, const std::string& path, std::initializer_list<field> fields);
  /// The elements of a list; none for null. `read` receives the path of each: "resources.gpus[0]".
  void read_list(const node& source,
                 const std::string& path,
                 const std::function<void(const node&, const std::string&)>& read);
  template <typename Value>
  bool read(const node& source, const std::string& path, Value& out) {
    return yaml_.read(source, path, out);
  }
  [[nodiscard]] bool is_null(const node& node) { return yaml_.is_null(node); }
  [[nodiscard]] static bool is_list(const node& node);

  void report(const node& where, std::string text, std::string next_step);
  void warn(const node& where, const std::string& text);
  [[nodiscard]] std::size_t problem_count() const {
    return problems_.size() + yaml_problems_.size();
  }
  /// All of them, in the order of the file.
  [[nodiscard]] std::vector<configuration_problem> take_problems();

 private:
  std::string file_;
  configuration& content_;
  std::vector<yaml::problem> yaml_problems_;
  yaml::reader yaml_;
  std::vector<configuration_problem> problems_;
};

/// "sharing" and "timeSlicing" → "sharing.timeSlicing".
[[nodiscard]] std::string path_of(const std::string& parent, std::string_view name);

/// What happens to the field `key` that the mapping `path` does not have, and where a setting of
/// that name belongs: "it is ignored: …".
[[nodiscard]] std::string unknown_field_advice(const std::string& path, std::string_view key);

/// Reads `sharing`. The two parts of the widely published form are in different places of the file
/// and are kept until its end.
class sharing_reader {
 public:
  sharing_reader(configuration_reader& reader, configuration& content)
      : in_(reader), content_(content) {}

  void read(const yaml::node& source, const std::string& path);
  /// Top-level `resources` when it is a list, as in that form.
  void read_misplaced_resources(const yaml::node& source, const std::string& path);
  /// Call after everything has been read.
  void finish();

 private:
  void read_time_slicing(const yaml::node& source, const std::string& path);
  void report_replicas(const yaml::node& value, const std::string& path, std::int64_t replicas);
  replicated_resource read_resource(const yaml::node& source, const std::string& path);
  void read_devices(const yaml::node& source, const std::string& path, device_selection& out);

  struct unfinished {
    replicated_resource resource;
    const yaml::node* at = nullptr;
    std::string path;
  };
  void complete(unfinished& unfinished);

  configuration_reader& in_;
  configuration& content_;
  const yaml::node* slicing_at_ = nullptr;
  const yaml::node* resources_at_ = nullptr;  ///< null: the key is absent
  const yaml::node* replicas_at_ = nullptr;   ///< directly under timeSlicing
  const yaml::node* misplaced_at_ = nullptr;  ///< a top-level list `resources`
  unsigned int replicas_ = 0;
  std::vector<unfinished> resources_;
};

void read_flags(configuration_reader& reader,
                const yaml::node& source,
                const std::string& path,
                plugin_flags& out);

}  // namespace gpushm::device_plugin
