// SPDX-License-Identifier: Apache-2.0
// The handles of errors, and the last error of each thread.
#include "gpushm/error.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "base/report/c_interface.hpp"
#include "base/text/text.hpp"

/// Immutable; reference-counted by its handles.
struct gpushm_error {
  mutable std::atomic<std::uint32_t> handles{1};
  gpushm_errc code;
  std::string operation;
  std::string object;
  std::string cause;
  std::string next_step;
  std::string message;
  gpushm_error_details details;
};

namespace gpushm {

namespace {

// One line that is safe for any terminal or log: a peer may have chosen names, paths and causes.
std::string compose(std::string_view operation,
                    std::string_view object,
                    std::string_view cause,
                    std::string_view next_step) {
  std::string text(operation);
  if (!object.empty()) {
    if (!text.empty()) {
      text += ' ';
    }
    text += '"';
    text += object;
    text += '"';
  }
  if (!text.empty()) {
    text += ": ";
  }
  text += cause;
  if (!next_step.empty()) {
    text += " (";
    text += next_step;
    text += ')';
  }
  return base::printable(text);
}

/// Created when the library is loaded, and never destroyed.
gpushm_error* no_memory() {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): see above
  static auto* const instance =
      new gpushm_error{{1},
                       GPUSHM_ERRC_OUT_OF_MEMORY,
                       {},
                       {},
                       "this process is out of memory",
                       "raise its memory limit",
                       "this process is out of memory (raise its memory limit)",
                       {}};
  return instance;
}
[[maybe_unused]] const gpushm_error* const created_at_load = no_memory();

/// What the caller's version of the structure has. An error is never refused because of it.
gpushm_error_details details_in(const gpushm_error_details* given) noexcept {
  gpushm_error_details result{};
  if (given != nullptr && given->struct_size >= sizeof given->struct_size) {
    std::memcpy(&result, given, std::min(given->struct_size, sizeof result));
  }
  result.struct_size = sizeof result;
  return result;
}

/// The last error of a thread, freed when the thread exits.
struct last_error {
  gpushm_error* latest = nullptr;
  last_error() = default;
  last_error(const last_error&) = delete;
  last_error& operator=(const last_error&) = delete;
  /// A failure later in the thread's exit sets it again, and leaks it.
  ~last_error() { gpushm_error_free(std::exchange(latest, nullptr)); }
};
thread_local last_error last;

}  // namespace

}  // namespace gpushm

using gpushm::base::c_text;

void gpushm_private_failed(gpushm_error* failure) noexcept {
  if (failure == nullptr) {
    failure = gpushm_error_dup(gpushm::no_memory());
  }
  gpushm_error_free(std::exchange(gpushm::last.latest, failure));
}

const gpushm_error* gpushm_last_error() {
  return gpushm::last.latest;
}

gpushm_error* gpushm_error_create(gpushm_errc code,
                                  gpushm_string operation,
                                  gpushm_string object,
                                  gpushm_string cause,
                                  gpushm_string next_step,
                                  const gpushm_error_details* details) {
  using gpushm::glue::view;
  try {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): a handle
    return new gpushm_error{
        {1},
        code,
        std::string(view(operation)),
        std::string(view(object)),
        std::string(view(cause)),
        std::string(view(next_step)),
        gpushm::compose(view(operation), view(object), view(cause), view(next_step)),
        gpushm::details_in(details)};
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

gpushm_error* gpushm_error_dup(const gpushm_error* error) {
  if (error != nullptr) {
    error->handles.fetch_add(1, std::memory_order_relaxed);
  }
  return const_cast<gpushm_error*>(error);
}

void gpushm_error_free(gpushm_error* error) {
  if (error != nullptr && error->handles.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete error;  // NOLINT(cppcoreguidelines-owning-memory): a handle
  }
}

gpushm_errc gpushm_error_code(const gpushm_error* error) {
  return error == nullptr ? GPUSHM_OK : error->code;
}
gpushm_string gpushm_error_operation(const gpushm_error* error) {
  return error == nullptr ? gpushm_string{} : c_text(error->operation);
}
gpushm_string gpushm_error_object(const gpushm_error* error) {
  return error == nullptr ? gpushm_string{} : c_text(error->object);
}
gpushm_string gpushm_error_cause(const gpushm_error* error) {
  return error == nullptr ? gpushm_string{} : c_text(error->cause);
}
gpushm_string gpushm_error_next_step(const gpushm_error* error) {
  return error == nullptr ? gpushm_string{} : c_text(error->next_step);
}
gpushm_string gpushm_error_message(const gpushm_error* error) {
  return error == nullptr ? gpushm_string{} : c_text(error->message);
}
int32_t gpushm_error_pid(const gpushm_error* error) {
  return error == nullptr ? 0 : error->details.pid;
}
bool gpushm_error_value(const gpushm_error* error, uint64_t* value) {
  if (error == nullptr || !error->details.has_value) {
    return false;
  }
  if (value != nullptr) {
    *value = error->details.value;
  }
  return true;
}
