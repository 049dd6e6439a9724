// SPDX-License-Identifier: Apache-2.0
// The log sink.
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "base/files/fork_guard.hpp"
#include "base/report/c_interface.hpp"
#include "base/report/log.hpp"
#include "base/text/text.hpp"

namespace gpushm {

namespace {

/// A user's function and its argument.
class user_sink {
 public:
  user_sink(gpushm_log_sink function, void* user, gpushm_destroy destroy) noexcept
      : function_(function), user_(user), destroy_(destroy) {}
  user_sink(const user_sink&) = delete;
  user_sink& operator=(const user_sink&) = delete;
  ~user_sink() {
    if (destroy_ != nullptr) {
      destroy_(user_);
    }
  }
  void operator()(gpushm_log_level level, gpushm_string text) const noexcept {
    function_(user_, level, text);
  }

 private:
  gpushm_log_sink function_;
  void* user_;
  gpushm_destroy destroy_;
};

struct sink_holder {
  base::fork_safe_mutex mutex;
  std::shared_ptr<const user_sink> sink;
};

// Never destroyed: destructors that log may run after those of static objects.
sink_holder& holder() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): see above
  static auto* const instance = new sink_holder;
  return *instance;
}
// Created when the library is loaded: a forked child must not find it half created.
[[maybe_unused]] const sink_holder& created_at_load = holder();

std::shared_ptr<const user_sink> current_sink() {
  const std::lock_guard lock(holder().mutex);
  return holder().sink;
}

}  // namespace

}  // namespace gpushm

void gpushm_private_log(gpushm_log_level level, gpushm_string text) noexcept {
  try {
    if (const auto sink = gpushm::current_sink()) {
      const std::string line = gpushm::base::printable_lines(gpushm::glue::view(text));
      (*sink)(level, gpushm::base::c_text(line));
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory to report with
  }
}

gpushm_errc gpushm_set_log_sink(gpushm_log_sink sink, void* user, gpushm_destroy destroy) {
  return gpushm::base::c_call([&] {
    std::shared_ptr<const gpushm::user_sink> next;
    try {
      next = std::make_shared<const gpushm::user_sink>(sink, user, destroy);
    } catch (const std::bad_alloc&) {
      if (destroy != nullptr) {
        destroy(user);
      }
      throw;
    }
    if (sink == nullptr) {
      next.reset();
    }
    const std::lock_guard lock(gpushm::holder().mutex);
    // The previous sink is destroyed after the lock is released: its destructor runs user code.
    gpushm::holder().sink.swap(next);
  });
}
