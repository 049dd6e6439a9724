// SPDX-License-Identifier: Apache-2.0
#include "log.hpp"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "gpushm/gpushm.h"
#include "handle.hpp"
#include "process_state.hpp"

namespace gpushm_python {
namespace {

namespace nb = nanobind;

/// Lines that Python has not taken. Beyond that, new ones are counted.
constexpr std::size_t max_lines = 256;

struct log_line {
  gpushm_log_level level;
  std::string text;
};

/// Threads of the library add lines, without the GIL: a thread that has the GIL may wait for them
/// (a destructor joins them). One thread of Python takes the lines (gpushm/_log.py).
struct log_queue {
  std::mutex mutex;
  // A new one in a forked child: the parent's may have a waiting thread.
  std::unique_ptr<std::condition_variable> changed = std::make_unique<std::condition_variable>();
  std::deque<log_line> lines;
  std::uint64_t dropped = 0;
  bool is_open = false;
};

log_queue& queue() {
  return process_state<log_queue>();
}

void add_line(void* /*user*/, gpushm_log_level level, gpushm_string line) {
  log_queue& to = queue();
  const std::lock_guard lock(to.mutex);
  if (!to.is_open) {
    return;
  }
  try {
    if (to.lines.size() < max_lines) {
      to.lines.push_back({level, to_string(line)});
    } else {
      ++to.dropped;
    }
  } catch (const std::exception&) {  // no memory
    ++to.dropped;
  }
  to.changed->notify_one();
}

void open_log() {
  {
    log_queue& lines = queue();
    const std::lock_guard lock(lines.mutex);
    // NOLINTNEXTLINE(bugprone-unused-return-value): never destroyed, see above
    static_cast<void>(lines.changed.release());
    lines.changed = std::make_unique<std::condition_variable>();
    lines.lines.clear();
    lines.dropped = 0;
    lines.is_open = true;
  }
  call_released([] { return gpushm_set_log_sink(add_line, nullptr, nullptr); });
}

void close_log() {
  call_released([] { return gpushm_set_log_sink(nullptr, nullptr, nullptr); });
  log_queue& lines = queue();
  const std::lock_guard lock(lines.mutex);
  lines.is_open = false;
  lines.changed->notify_one();
}

nb::object take_lines() {
  std::deque<log_line> taken;
  std::uint64_t dropped = 0;
  {
    const nb::gil_scoped_release released;
    log_queue& from = queue();
    std::unique_lock lock(from.mutex);
    from.changed->wait(lock,
                       [&] { return !from.is_open || !from.lines.empty() || from.dropped != 0; });
    taken.swap(from.lines);
    dropped = std::exchange(from.dropped, 0);
  }
  if (taken.empty() && dropped == 0) {
    return nb::none();
  }
  nb::list result;
  for (const log_line& each : taken) {
    result.append(nb::make_tuple(
        static_cast<int>(each.level),
        nb::steal(PyUnicode_DecodeUTF8(
            each.text.data(), static_cast<Py_ssize_t>(each.text.size()), "replace"))));
  }
  if (dropped != 0) {
    result.append(nb::make_tuple(
        static_cast<int>(GPUSHM_LOG_WARNING),
        nb::str((std::to_string(dropped) + " lines of the log were dropped").c_str())));
  }
  return result;
}

}  // namespace

void register_log(nb::module_& module) {
  module.def("open_log",
             open_log,
             nb::sig("def open_log() -> None"),
             "Keep the library's log lines, at most 256, for :func:`take_log_lines`. In a forked "
             "child:\n"
             "again, as its parent's are not its own.");
  module.def("close_log",
             close_log,
             nb::sig("def close_log() -> None"),
             "Discard the library's log lines from now on.");
  module.def("take_log_lines",
             take_lines,
             nb::sig("def take_log_lines() -> list[tuple[int, str]] | None"),
             "The lines that were kept, with their levels. Blocks until there is one; None: the "
             "log was\n"
             "closed, and all were taken. One thread at a time.");
}

}  // namespace gpushm_python
