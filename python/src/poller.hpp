// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "gpushm/timeline.h"
#include "handle.hpp"

namespace gpushm_python {

/// gpushm._core.Poller: watches what tasks of asyncio wait for. In a forked child it does nothing.
/// Thread-safety: the GIL protects members; the handle is used without it.
class poller_object {
 public:
  poller_object();
  poller_object(const poller_object&) = delete;
  poller_object& operator=(const poller_object&) = delete;
  ~poller_object();

  /// The keys of the watches that are due; none after `wake`. Blocks. Needs the GIL.
  nb::list wait();
  void wake();
  void remove(std::uint64_t key);
  /// Calls `call(poller, stop, progress)` without the GIL, which may add the watch `key`. It is due
  /// when the object closes that `closing` belongs to, too. Raises the exception of a failure.
  template <typename Call>
  gpushm_progress watch(std::uint64_t key, const std::shared_ptr<stop_source>& closing, Call call) {
    auto stop = std::make_unique<call_stop>(stops(nullptr, closing));
    const gpushm_stop* const ended = stop->get();
    stops_.insert_or_assign(key, std::move(stop));
    gpushm_progress progress = GPUSHM_PROGRESS_BLOCKS;
    failure failed;
    {
      const nb::gil_scoped_release released;
      failed = failure::of(call(handle_, ended, &progress));
    }
    if (failed.code() != GPUSHM_OK || progress != GPUSHM_PROGRESS_WATCHED) {
      stops_.erase(key);
    }
    failed.raise_if_any();
    return progress;
  }

 private:
  const pid_t process_;
  gpushm_poller* handle_ = nullptr;
  /// The stops of the watches.
  std::unordered_map<std::uint64_t, std::unique_ptr<call_stop>> stops_;
};

/// What a function of the module returns that does not wait: `result`, False (watched), or None
/// (only a call that waits can tell).
inline nb::object to_progress(gpushm_progress progress, nb::object result) {
  switch (progress) {
    case GPUSHM_PROGRESS_DONE:
      return result;
    case GPUSHM_PROGRESS_WATCHED:
      return nb::bool_(false);
    case GPUSHM_PROGRESS_BLOCKS:
      break;
  }
  return nb::none();
}

/// Raises gpushm.CancelledError if the object was closed while a task waited, `has_waited`.
template <typename Object>
void require_open_still(const Object& object, bool has_waited, const char* operation) {
  if (has_waited && object.handle.is_closed()) {
    raise_closed_meanwhile(operation);
  }
}

void register_poller(nb::module_& module);

}  // namespace gpushm_python
