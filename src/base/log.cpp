// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/fork_guard.hpp"
#include "base/text.hpp"

namespace gpushm {

namespace {

using sink_function = std::function<void(log_level, std::string_view)>;

struct sink_holder {
  base::fork_safe_mutex mutex;
  std::shared_ptr<const sink_function> sink;
};

// Never destroyed: destructors that log may run after those of static objects.
sink_holder& holder() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): see above
  static auto* const instance = new sink_holder;
  return *instance;
}
// Made when the library is loaded: a forked child must not find it half made.
[[maybe_unused]] const sink_holder& made_at_load = holder();

std::shared_ptr<const sink_function> current_sink() {
  const std::lock_guard lock(holder().mutex);
  return holder().sink;
}

/// The outermost one of this thread.
thread_local base::held_log_lines* holding = nullptr;

void deliver(log_level level, std::string_view text) noexcept {
  try {
    if (const auto sink = current_sink()) {
      (*sink)(level, base::printable_lines(text));
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): a failing sink must not break what it reports on
  }
}

}  // namespace

void set_log_sink(sink_function sink) {
  std::shared_ptr<const sink_function> next;
  if (sink) {
    next = std::make_shared<const sink_function>(std::move(sink));
  }
  // The former one ends without the lock: that is the user's code.
  const std::lock_guard lock(holder().mutex);
  holder().sink.swap(next);
}

namespace base {

void log(log_level level, std::string_view text) noexcept {
  if (holding != nullptr) {
    holding->keep(level, text);
  } else {
    deliver(level, text);
  }
}

held_log_lines::held_log_lines() noexcept {
  if (holding == nullptr) {
    holding = this;
  }
}

held_log_lines::~held_log_lines() {
  if (holding != this) {
    return;
  }
  holding = nullptr;  // what the sink calls may log too
  for (const line& each : lines_) {
    deliver(each.level, each.text);
  }
  if (left_out_ != 0) {
    try {
      deliver(log_level::warning, std::to_string(left_out_) + " more lines were left out");
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): then they are not counted
    }
  }
}

void held_log_lines::keep(log_level level, std::string_view text) noexcept {
  constexpr std::size_t max_lines = 256;
  try {
    if (lines_.size() < max_lines) {
      lines_.push_back({level, std::string(text)});
      return;
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): counted below
  }
  ++left_out_;
}

}  // namespace base
}  // namespace gpushm
