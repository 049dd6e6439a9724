// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/weights/commands.hpp"
#include "apps/gpushm/weights/comparison.hpp"
#include "apps/gpushm/weights/weight_source.hpp"
#include "base/text/text_layout.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

namespace {

/// Differences that are shown without `--all`.
constexpr std::size_t shown_differences = 20;

struct weights_diff_arguments {
  connection_arguments connection;
  std::string first;
  std::vector<std::string> second;
  bool is_by_bytes = false;
  bool all = false;
};

void add_weights_diff_arguments(CLI::App& app, weights_diff_arguments& arguments) {
  app.add_option("A", arguments.first, "NAME@NUMBER, NAME@ALIAS, a part of one, or a segment")
      ->required()
      ->type_name("");
  app.add_option("B",
                 arguments.second,
                 "Another one, or safetensors files, an index, or the folder of a model")
      ->required()
      ->type_name("");
  app.add_flag("--bytes",
               arguments.is_by_bytes,
               "Compare the bytes of all tensors, and use no hash that a segment has");
  app.add_flag("-a,--all", arguments.all, "Show all differences, not only the first 20");
  add_connection(app, arguments.connection);
}

/// Opens what the arguments name. Connects to the broker for the first name.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class side_opener {
 public:
  explicit side_opener(const connection_arguments& connection) : connection_(connection) {}

  [[nodiscard]] std::unique_ptr<weight_source> open(const std::vector<std::string>& arguments) {
    const bool are_paths = is_weights_path(arguments.front());
    const bool is_mixed =
        std::any_of(arguments.begin(), arguments.end(), [&](const std::string& each) {
          return is_weights_path(each) != are_paths;
        });
    if (is_mixed || (!are_paths && arguments.size() > 1)) {
      throw usage_error(errc::invalid_argument,
                        "compare weights",
                        arguments[1],
                        "B is one name, or files",
                        "pass one name; paths begin with / or ./, or end with .safetensors or "
                        ".index.json");
    }
    if (are_paths) {
      return open_weight_files(arguments);
    }
    if (!broker_) {
      broker_.emplace(connect(connection_));
    }
    return open_weights(*broker_, connection_, arguments.front());
  }

 private:
  const connection_arguments& connection_;
  std::optional<client> broker_;
};

constexpr std::array all_changes{weight_change::added,
                                 weight_change::removed,
                                 weight_change::dtype,
                                 weight_change::shape,
                                 weight_change::strides,
                                 weight_change::contents};

std::string differences_text(const weight_comparison& result, std::size_t shown) {
  base::table table({{"CHANGE"}, {"PART"}, {"TENSOR"}, {"A"}, {"B"}});
  for (std::size_t i = 0; i != shown; ++i) {
    const weight_difference& each = result.differences[i];
    const weight& named = each.first != nullptr ? *each.first : *each.second;
    const bool is_layout = each.change != weight_change::contents;
    const auto type_of = [&](const weight* side) {
      return is_layout && side != nullptr ? weight_type_text(*side) : std::string();
    };
    table.add({std::string(change_text(each.change)),
               std::string(named.part),
               weight_name_text(named),
               type_of(each.first),
               type_of(each.second)});
  }
  return table.text(base::table::empty_columns::omitted);
}

void print_comparison(const weights_diff_arguments& arguments,
                      const weight_source& first,
                      const weight_source& second,
                      const weight_comparison& result) {
  const std::size_t count = result.differences.size();
  const std::size_t shown = arguments.all ? count : std::min(shown_differences, count);
  if (count == 0) {
    print_line(fmt::format(
        R"("{}" and "{}" are equal: {} tensors)", first.text(), second.text(), result.equal));
    return;
  }
  print(differences_text(result, shown));
  if (shown != count) {
    print_line(fmt::format("and {} more, which --all shows", count - shown));
  }
  std::string counts;
  for (const weight_change each : all_changes) {
    if (const std::uint64_t number = result.count(each); number != 0) {
      counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", number, change_text(each));
    }
  }
  print_line(fmt::format(R"("{}" and "{}" differ: {}; {} tensors are equal)",
                         first.text(),
                         second.text(),
                         counts,
                         result.equal));
}

json comparison_json(const weight_source& first,
                     const weight_source& second,
                     const weight_comparison& result) {
  json document{{"a", first.text()},
                {"b", second.text()},
                {"equal", result.differences.empty()},
                {"equal_tensors", result.equal}};
  for (const weight_change each : all_changes) {
    document[std::string(change_text(each))] = result.count(each);
  }
  document["by_hashes"] = result.by_hashes;
  document["by_bytes"] = result.by_bytes;
  json list = json::array();
  for (const weight_difference& each : result.differences) {
    json entry{{"change", change_text(each.change)}};
    entry.update(weight_key_json(each.first != nullptr ? *each.first : *each.second));
    entry["a"] = each.first == nullptr ? json(nullptr) : weight_json(*each.first);
    entry["b"] = each.second == nullptr ? json(nullptr) : weight_json(*each.second);
    list.push_back(std::move(entry));
  }
  document["differences"] = std::move(list);
  return document;
}

int run_weights_diff(const weights_diff_arguments& arguments) {
  return with_comparison_status([&] {
    side_opener opener(arguments.connection);
    const auto first = opener.open({arguments.first});
    const auto second = opener.open(arguments.second);
    match_parts(*first, *second);
    const weight_comparison result = compare_weights(*first, *second, arguments.is_by_bytes);
    if (arguments.connection.json) {
      print_json(json{{"diff", comparison_json(*first, *second, result)}});
    } else {
      print_comparison(arguments, *first, *second, result);
    }
    if (result.by_hashes != 0) {
      note(
          fmt::format("{} tensors were compared by the hashes that both segments have: who may "
                      "write a segment can forge them; --bytes compares the bytes",
                      result.by_hashes));
    }
    return result.differences.empty() ? exit_ok : exit_failed;
  });
}

}  // namespace

void add_weights_diff(command_list& commands) {
  add_command<weights_diff_arguments>(commands,
                                      "diff",
                                      "Compare versions, segments and files by tensor: 0 equal, 1 "
                                      "different, 2 not compared",
                                      add_weights_diff_arguments,
                                      run_weights_diff);
}

}  // namespace gpushm::cli
