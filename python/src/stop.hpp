// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "error.hpp"
#include "gpushm/gpushm.h"
#include "timeout.hpp"

namespace gpushm_python {

/// gpushm.Stop: cancels any number of waits, in any thread.
/// Thread-safety: shared objects: safe.
class stop_source {
 public:
  void request();
  [[nodiscard]] bool is_requested() const;

 private:
  friend class call_stop;
  void add(gpushm_stop* stop);
  void remove(gpushm_stop* stop);

  mutable std::mutex mutex_;
  bool requested_ = false;
  std::vector<gpushm_stop*> stops_;
};

/// What cancels a call: the caller's Stop, and the end of the object that it uses. Both may be
/// null.
struct stops {
  stops(std::shared_ptr<stop_source> of_caller,  // NOLINT(google-explicit-constructor)
        std::shared_ptr<stop_source> of_object = nullptr)
      : caller(std::move(of_caller)), object(std::move(of_object)) {}

  /// Raises gpushm.CancelledError if one of them is requested. Needs the GIL.
  void raise_if_requested(const char* operation) const;

  std::shared_ptr<stop_source> caller;
  std::shared_ptr<stop_source> object;
};

/// Raises the gpushm.CancelledError of a call whose object another thread has closed.
[[noreturn]] void raise_closed_meanwhile(const char* operation);

/// The cancellation of one call: by its stops, and by a signal's handler.
/// Thread-safety: shared objects: safe, but for the destructor.
class call_stop {
 public:
  /// Throws std::bad_alloc.
  explicit call_stop(stops sources);
  call_stop(const call_stop&) = delete;
  call_stop& operator=(const call_stop&) = delete;
  call_stop(call_stop&&) = delete;
  call_stop& operator=(call_stop&&) = delete;
  ~call_stop();

  [[nodiscard]] gpushm_stop* get() const noexcept { return stop_; }
  void request() const { gpushm_stop_request(stop_); }
  /// Whether one of its stops was requested.
  [[nodiscard]] bool is_requested() const;
  void raise_if_requested(const char* operation) const { sources_.raise_if_requested(operation); }

 private:
  stops sources_;
  gpushm_stop* stop_ = nullptr;
};

/// Whether Python runs signal handlers in this thread.
bool is_main_thread();

/// Runs a call that waits for something that this process does not have yet: without the GIL, and
/// in the main thread so that a signal's handler runs, and ends the wait if it raises an exception.
/// The call then runs in another thread, because the library's waits do not end with a signal. If
/// it does not end soon after it was cancelled (a broker that does not answer), it goes on alone:
/// `call` must own all that it uses, and what it has got is released with it. Raises what the
/// handler has raised, or the exception of the call's failure. Needs the GIL.
void run_cancellable(const stops& sources, std::function<gpushm_errc(gpushm_stop*)> call);

/// As `run_cancellable`; with a timeout of 0 it is one request, which takes at most the client's
/// request timeout, and needs no other thread.
void run_with_timeout(std::int64_t timeout_ms,
                      const stops& sources,
                      std::function<gpushm_errc(gpushm_stop*)> call);

/// One part of a wait.
struct step {
  gpushm_errc code = GPUSHM_OK;
  bool done = false;
};

/// Parts of a wait in the main thread, between which signal handlers run.
constexpr std::int64_t slice_ms = 50;

/// Waits by `call(timeout_ms, call_stop)` without the GIL, at most `timeout_ms`; in the main thread
/// in parts. `early`: a failure that means "not within the time of this call", which is final only
/// with the whole time. False: not within the time. Raises the failure's exception,
/// gpushm.CancelledError, or what a signal's handler has raised. Needs the GIL.
template <typename Call>
bool wait_in_parts(std::int64_t timeout_ms,
                   const stops& sources,
                   gpushm_errc early,
                   const char* operation,
                   Call call) {
  const call_stop stop(sources);
  const deadline end(timeout_ms);
  const bool main = is_main_thread();
  for (std::int64_t left = timeout_ms;; left = end.left_ms()) {
    const std::int64_t part = main ? std::min(left, slice_ms) : left;
    step result;
    failure failed;
    {
      const nanobind::gil_scoped_release released;
      result = call(part, stop);
      failed = failure::of(result.code);
    }
    if (result.code == GPUSHM_OK && result.done) {
      return true;
    }
    stop.raise_if_requested(operation);
    const bool last = left <= part;
    if (result.code != GPUSHM_OK && (last || result.code != early)) {
      failed.raise_if_any();
    }
    if (main && PyErr_CheckSignals() != 0) {
      throw nanobind::python_error();
    }
    if (last) {
      return false;
    }
  }
}

void register_stop(nanobind::module_& module);

}  // namespace gpushm_python
