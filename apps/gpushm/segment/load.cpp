// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <chrono>
#include <optional>
#include <stop_token>

#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/progress.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/size_text.hpp"
#include "base/text_layout.hpp"
#include "gpushm/tensors.hpp"

namespace gpushm::cli {

namespace {

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

}  // namespace

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
  const segment loaded = load_tensors(broker, arguments.name, arguments.paths, options);
  done.seconds = std::chrono::duration<double>(clock::now() - start).count();
  bar.reset();
  show(arguments, loaded, done);
  return 0;
}

}  // namespace gpushm::cli
