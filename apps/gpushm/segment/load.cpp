// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <chrono>
#include <iterator>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/progress.hpp"
#include "apps/gpushm/segment/slice_text.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/text/size_text.hpp"
#include "base/text/text_layout.hpp"
#include "gpushm/client.hpp"
#include "gpushm/tensors.hpp"
#include "gpushm/versions.hpp"

namespace gpushm::cli {

namespace {

struct load_arguments {
  connection_arguments connection;
  std::vector<std::string> paths;
  std::string name;
  load_options options;
  bool is_new_version = false;
};

void add_load_arguments(CLI::App& app, load_arguments& arguments) {
  app.add_option("FILE", arguments.paths, "Safetensors files, an index, or the folder of a model")
      ->required()
      ->type_name("");
  app.add_option("--name", arguments.name, "Name of the segment")->required()->type_name("NAME");
  add_device(app,
             "--device",
             "auto (default), host, an ordinal, GPU-<uuid> or MIG-<uuid>",
             arguments.options.device);
  add_text(app,
           "--threads",
           "N",
           "Threads that read (default: as many as CPUs, 8 to 16)",
           [&](const std::string& text) {
             constexpr const char* expected = "a number from 1 to 64";
             arguments.options.threads =
                 parse_number<decltype(arguments.options.threads)>("--threads", text, 10, expected);
             if (arguments.options.threads < 1 || arguments.options.threads > 64) {
               refuse("--threads", text, expected);
             }
           });
  add_choice(
      app,
      "--read",
      "How files are read (auto: direct unless they are in the page cache)",
      arguments.options.reading,
      {{"auto", reading::automatic}, {"cached", reading::cached}, {"direct", reading::direct}});
  add_choice(app,
             "--verify",
             "Whether files that were loaded before are read (auto: if their stamps have changed)",
             arguments.options.verify,
             {{"auto", verify::automatic}, {"full", verify::full}});
  add_texts(
      app,
      "--tensors",
      "PATTERN",
      "Load these tensors only: a name, or a pattern such as 'model.layers.*' (may be repeated)",
      [&](const std::string& text) { arguments.options.tensors.push_back(text); });
  add_texts(
      app,
      "--slice",
      "NAME=DIM:BEGIN-END",
      "Load a range of a dimension of these tensors: elements, several (BEGIN-END,BEGIN-END), or "
      "of equal parts (BEGIN-END/PARTS); may be repeated",
      [&](const std::string& text) {
        auto slices = parse_slices(text);
        if (!slices) {
          refuse("--slice",
                 text,
                 "a slice such as w=0:0-512, w=0:0-4,8-12 or '*.q_proj.weight=0:1-2/8'");
        }
        arguments.options.slices.insert(arguments.options.slices.end(),
                                        std::move_iterator(slices->begin()),
                                        std::move_iterator(slices->end()));
      });
  auto* const replace =
      app.add_flag("--replace",
                   arguments.options.replace,
                   "Remove another model of this name, or former contents of the files, and load");
  app.add_flag("--new-version",
               arguments.is_new_version,
               "Load it as the next version of the name: NAME@latest, when it is complete")
      ->excludes(replace);
  add_duration(app, "--timeout", "Time limit (default: an hour)", [&](auto value) {
    arguments.options.timeout = value;
  });
  add_connection(app, arguments.connection);
}

using clock = std::chrono::steady_clock;

/// What this process has done for it.
struct account {
  bool has_read = false;
  bool has_waited = false;
  std::uint64_t first_bytes = 0;  ///< that a loader before has left
  std::uint64_t bytes = 0;
  double seconds = 0;

  [[nodiscard]] const char* text() const {
    return has_read     ? "read by this process"
           : has_waited ? "read by another process"
                        : "loaded before";
  }
};

void show(const load_arguments& arguments, const segment& loaded, const account& done) {
  const std::size_t tensors = tensor_index(loaded).size();
  const double rate =
      done.has_read ? static_cast<double>(done.bytes - done.first_bytes) / done.seconds : 0;
  if (arguments.connection.json) {
    json document = to_json(loaded);
    document["tensors"] = tensors;
    document["read_here"] = done.has_read;
    document["read_bytes"] = done.has_read ? done.bytes - done.first_bytes : 0;
    document["seconds"] = done.seconds;
    print_json(json{{"loaded", std::move(document)}});
    return;
  }
  print_line(fmt::format("loaded \"{}\": {} tensors, {}", loaded.name(), tensors, done.text()));
  if (done.has_read) {
    print_line(fmt::format("  {} in {:.2f} s, {}/s",
                           base::size_text(done.bytes - done.first_bytes),
                           done.seconds,
                           base::size_text(static_cast<std::uint64_t>(rate))));
  }
  print(base::fields_text(segment_fields(loaded), 2));
}

int run_load(const load_arguments& arguments) {
  check_is_own(arguments.name, "load");
  const app::stop_signal stop;
  std::stop_source stop_load;
  client broker = connect(arguments.connection);
  load_options options = arguments.options;
  options.stop = stop_load.get_token();
  account done;
  std::optional<progress> bar;
  const auto start = clock::now();
  options.report = [&](const load_progress& far) {
    if (stop.pending()) {
      stop_load.request_stop();
    }
    if (!bar) {
      bar.emplace("load", far.total_bytes);
    }
    bar->update(far.bytes);
    if (far.is_here && !done.has_read) {
      done.has_read = true;
      done.first_bytes = far.resumed_bytes;
    }
    done.has_waited = done.has_waited || !far.is_here;
    done.bytes = far.bytes;
  };
  std::string name = arguments.name;
  if (arguments.is_new_version) {
    name += '@' + std::to_string(create_version(broker, arguments.name));
  }
  const segment loaded = load_tensors(broker, name, arguments.paths, options);
  done.seconds = std::chrono::duration<double>(clock::now() - start).count();
  bar.reset();
  show(arguments, loaded, done);
  return 0;
}

}  // namespace

void add_load(command_list& commands) {
  add_command<load_arguments>(commands,
                              "load",
                              "Load a model's tensors into a segment, once for all processes",
                              add_load_arguments,
                              run_load);
}

}  // namespace gpushm::cli
