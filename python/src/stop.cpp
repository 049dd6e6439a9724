// SPDX-License-Identifier: Apache-2.0
#include "stop.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "handle.hpp"

namespace gpushm_python {
namespace {

using std::chrono::milliseconds;

/// How long a cancelled call may take to return.
constexpr milliseconds grace{1000};

struct background_call {
  background_call(const stops& sources, std::function<gpushm_errc(gpushm_stop*)> work)
      : stop(sources), call(std::move(work)) {}

  void run() {
    failure ended;
    try {
      ended = failure::of(call(stop.get()));
    } catch (const std::exception&) {  // only of allocations: the library throws nothing
      ended = failure::out_of_memory();
    }
    call = nullptr;
    const std::lock_guard lock(mutex);
    result = std::move(ended);
    done = true;
    changed.notify_all();
  }

  /// Returns false on timeout.
  bool wait_for(milliseconds time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [&] { return done; });
  }

  const call_stop stop;
  std::function<gpushm_errc(gpushm_stop*)> call;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  failure result;
};

/// Runs calls in a thread of their own. The thread stays for a while after a call: starting one
/// takes up to 0.4 ms, and a process that attaches makes several calls one after another.
/// Thread-safety: shared objects: safe. A forked child has an object of its own.
class call_threads {
 public:
  /// Never destroyed: a thread may still refer to it when the process exits. Throws std::bad_alloc.
  static call_threads& of_this_process() {
    static std::atomic<call_threads*> current{nullptr};
    call_threads* threads = current.load(std::memory_order_acquire);
    if (threads == nullptr || threads->pid_ != ::getpid()) {
      threads = std::make_unique<call_threads>().release();
      current.store(threads, std::memory_order_release);
    }
    return *threads;
  }

  /// Throws std::system_error.
  void run(std::shared_ptr<background_call> work) {
    {
      const std::lock_guard lock(mutex_);
      if (is_idle_ && !next_) {
        next_ = std::move(work);
        arrived_.notify_one();
        return;
      }
    }
    // The program's handlers of signals run in its own threads.
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before);
    try {
      std::thread([this, work = std::move(work)]() mutable { serve(std::move(work)); }).detach();
    } catch (...) {
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

 private:
  static constexpr std::chrono::seconds idle_time{1};

  void serve(std::shared_ptr<background_call> work) {
    ::pthread_setname_np(::pthread_self(), "gpushm-call");
    while (work) {
      work->run();
      work = nullptr;
      std::unique_lock lock(mutex_);
      if (is_idle_) {  // another thread waits
        return;
      }
      is_idle_ = true;
      arrived_.wait_for(lock, idle_time, [this] { return next_ != nullptr; });
      is_idle_ = false;
      work = std::exchange(next_, nullptr);
    }
  }

  const pid_t pid_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable arrived_;
  bool is_idle_ = false;  ///< a thread waits for `next_`
  std::shared_ptr<background_call> next_;
};

}  // namespace

void stop_source::request() {
  const std::lock_guard lock(mutex_);
  requested_ = true;
  for (gpushm_stop* each : stops_) {
    gpushm_stop_request(each);
  }
}

bool stop_source::is_requested() const {
  const std::lock_guard lock(mutex_);
  return requested_;
}

void stop_source::add(gpushm_stop* stop) {
  const std::lock_guard lock(mutex_);
  stops_.push_back(stop);
  if (requested_) {
    gpushm_stop_request(stop);
  }
}

void stop_source::remove(gpushm_stop* stop) {
  const std::lock_guard lock(mutex_);
  std::erase(stops_, stop);
}

void stops::raise_if_requested(const char* operation) const {
  if (caller != nullptr && caller->is_requested()) {
    raise(GPUSHM_ERRC_CANCELLED, operation, "", "its Stop was requested", "");
  }
  if (object != nullptr && object->is_requested()) {
    raise_closed_meanwhile(operation);
  }
}

void raise_closed_meanwhile(const char* operation) {
  raise(GPUSHM_ERRC_CANCELLED,
        operation,
        "",
        "the object was closed during the call",
        "close it after the last call, or expect this error in the threads that use it");
}

call_stop::call_stop(stops sources) : sources_(std::move(sources)) {
  if (gpushm_stop_create(&stop_) != GPUSHM_OK) {
    throw std::bad_alloc();
  }
  for (const auto& each : {sources_.caller, sources_.object}) {
    if (each != nullptr) {
      each->add(stop_);
    }
  }
}

call_stop::~call_stop() {
  for (const auto& each : {sources_.caller, sources_.object}) {
    if (each != nullptr) {
      each->remove(stop_);
    }
  }
  gpushm_stop_free(stop_);
}

bool call_stop::is_requested() const {
  return (sources_.caller != nullptr && sources_.caller->is_requested()) ||
         (sources_.object != nullptr && sources_.object->is_requested());
}

bool is_main_thread() {
  // The thread that forked is the main one in the child, for Python and for the kernel.
  return ::syscall(SYS_gettid) == ::getpid();
}

void run_cancellable(const stops& sources, std::function<gpushm_errc(gpushm_stop*)> call) {
  const auto work = std::make_shared<background_call>(sources, std::move(call));
  if (!is_main_thread()) {
    {
      const nb::gil_scoped_release released;
      work->run();
    }
    work->result.raise_if_any();
    return;
  }
  call_threads::of_this_process().run(work);
  while (true) {
    bool done = false;
    {
      const nb::gil_scoped_release released;
      done = work->wait_for(milliseconds(slice_ms));
    }
    if (done) {
      break;
    }
    if (PyErr_CheckSignals() != 0) {
      nb::python_error raised;
      work->stop.request();
      {
        const nb::gil_scoped_release released;
        work->wait_for(grace);
      }
      throw raised;  // NOLINT(misc-throw-by-value-catch-by-reference): captured above, before other
                     // code ran
    }
  }
  work->result.raise_if_any();
}

void run_with_timeout(std::int64_t timeout_ms,
                      const stops& sources,
                      std::function<gpushm_errc(gpushm_stop*)> call) {
  if (timeout_ms == 0) {
    call_released([&] { return call(nullptr); });
  } else {
    run_cancellable(sources, std::move(call));
  }
}

void register_stop(nb::module_& module) {
  nb::class_<stop_source>(module,
                          "Stop",
                          nb::is_final(),
                          "Cancels waits: pass it as ``stop`` to any number of them.\n\n"
                          "May be shared between threads.")
      .def(nb::init<>())
      .def("request",
           &stop_source::request,
           nb::sig("def request(self) -> None"),
           "End every wait that was given this object, now or later, with\n"
           ":class:`gpushm.CancelledError`. Does not block.")
      .def_prop_ro("requested",
                   &stop_source::is_requested,
                   nb::sig("def requested(self) -> bool"),
                   "Whether :meth:`request` was called.");
}

}  // namespace gpushm_python
