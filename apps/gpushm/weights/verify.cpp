// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>
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
#include "base/text/size_text.hpp"
#include "base/text/text_layout.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

namespace {

/// Tensors that are not verified which are shown without `--all`.
constexpr std::size_t shown_problems = 20;

struct weights_verify_arguments {
  connection_arguments connection;
  std::string name;
  std::vector<std::string> files;
  bool all = false;
};

void add_weights_verify_arguments(CLI::App& app, weights_verify_arguments& arguments) {
  app.add_option("NAME", arguments.name, "NAME@NUMBER, NAME@ALIAS, a part of one, or a segment")
      ->required()
      ->type_name("");
  app.add_option("FILE",
                 arguments.files,
                 "Safetensors files, an index, or the folder of a model, which it must equal")
      ->type_name("");
  app.add_flag("-a,--all", arguments.all, "Show all tensors that are not verified, not only 20");
  add_connection(app, arguments.connection);
}

constexpr std::array all_verdicts{weight_verdict::damaged,
                                  weight_verdict::no_hash,
                                  weight_verdict::no_tensors,
                                  weight_verdict::different,
                                  weight_verdict::not_in_files,
                                  weight_verdict::missing};

void print_verification(const weights_verify_arguments& arguments,
                        const weight_source& source,
                        const weight_verification& result) {
  const std::size_t count = result.problems.size();
  if (count == 0) {
    print_line(fmt::format("verified \"{}\": {} tensors, {}{}",
                           source.text(),
                           result.verified,
                           base::size_text(result.bytes),
                           arguments.files.empty() ? "" : ", equal to the files"));
    return;
  }
  const std::size_t shown = arguments.all ? count : std::min(shown_problems, count);
  base::table table({{"RESULT"}, {"PART"}, {"TENSOR"}, {"TYPE"}});
  for (std::size_t i = 0; i != shown; ++i) {
    const weight_problem& each = result.problems[i];
    table.add({std::string(verdict_text(each.verdict)),
               std::string(each.subject->part),
               weight_name_text(*each.subject),
               weight_type_text(*each.subject)});
  }
  print(table.text(base::table::empty_columns::omitted));
  if (shown != count) {
    print_line(fmt::format("and {} more, which --all shows", count - shown));
  }
  std::string counts;
  for (const weight_verdict each : all_verdicts) {
    if (const std::uint64_t number = result.count(each); number != 0) {
      counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", number, verdict_text(each));
    }
  }
  print_line(fmt::format("\"{}\" is not verified: {}; {} tensors are verified",
                         source.text(),
                         counts,
                         result.verified));
}

json verification_json(const weights_verify_arguments& arguments,
                       const weight_source& source,
                       const weight_verification& result) {
  json document{{"name", source.text()},
                {"files", arguments.files},
                {"ok", result.problems.empty()},
                {"verified", result.verified},
                {"bytes", result.bytes}};
  json list = json::array();
  for (const weight_problem& each : result.problems) {
    json entry{{"result", verdict_text(each.verdict)}};
    entry.update(weight_key_json(*each.subject));
    entry.update(weight_json(*each.subject));
    entry["hash"] = each.hash.empty() ? json(nullptr) : json(each.hash);
    list.push_back(std::move(entry));
  }
  document["problems"] = std::move(list);
  return document;
}

int run_weights_verify(const weights_verify_arguments& arguments) {
  return with_comparison_status([&] {
    client broker = connect(arguments.connection);
    const auto source = open_weights(broker, arguments.connection, arguments.name);
    std::unique_ptr<weight_source> files;
    if (!arguments.files.empty()) {
      files = open_weight_files(arguments.files);
      match_parts(*source, *files);
    }
    const weight_verification result = verify_weights(*source, files.get());
    if (arguments.connection.json) {
      print_json(json{{"verification", verification_json(arguments, *source, result)}});
    } else {
      print_verification(arguments, *source, result);
    }
    return result.problems.empty() ? exit_ok : exit_failed;
  });
}

}  // namespace

void add_weights_verify(command_list& commands) {
  add_command<weights_verify_arguments>(commands,
                                        "verify",
                                        "Compare all bytes with the hashes in the tables, and with "
                                        "files: 0 equal, 1 not, 2 not compared",
                                        add_weights_verify_arguments,
                                        run_weights_verify);
}

}  // namespace gpushm::cli
