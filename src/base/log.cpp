// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <memory>
#include <mutex>
#include <utility>

namespace gpushm {

namespace {

using sink_function = std::function<void(log_level, std::string_view)>;

struct sink_holder {
  std::mutex mutex;
  std::shared_ptr<const sink_function> sink;
};

// Never destroyed: destructors that log may run after those of static objects.
sink_holder& holder() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): see above
  static auto* const instance = new sink_holder;
  return *instance;
}

}  // namespace

void set_log_sink(sink_function sink) {
  std::shared_ptr<const sink_function> next;
  if (sink) {
    next = std::make_shared<const sink_function>(std::move(sink));
  }
  const std::lock_guard lock(holder().mutex);
  holder().sink = std::move(next);
}

namespace base {

void log(log_level level, std::string_view text) noexcept {
  try {
    std::shared_ptr<const sink_function> sink;
    {
      const std::lock_guard lock(holder().mutex);
      sink = holder().sink;
    }
    if (sink) {
      (*sink)(level, text);
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): a failing sink must not break what it reports on
  }
}

}  // namespace base
}  // namespace gpushm
