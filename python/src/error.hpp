// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string_view>

#include "gpushm/gpushm.h"

namespace gpushm_python {

/// The result of a call of the C interface, captured in the thread that made the call.
/// Thread-safety: distinct objects: safe.
class failure {
 public:
  failure() = default;
  /// With `code` GPUSHM_OK: no failure. Does not need the GIL.
  static failure of(gpushm_errc code);
  /// For a C++ exception of code that runs without the GIL. Does not need the GIL.
  static failure out_of_memory();

  [[nodiscard]] gpushm_errc code() const noexcept { return code_; }
  /// Needs the GIL. Raises the exception class of the code (gpushm/_errors.py).
  void raise_if_any() const;
  /// The exception, not raised. Needs the GIL, and a failure.
  [[nodiscard]] nanobind::object exception() const;

 private:
  gpushm_errc code_ = GPUSHM_OK;
  std::shared_ptr<gpushm_error> error_;
};

/// The exception for an error. Needs the GIL.
nanobind::object make_exception(const gpushm_error* error);

/// Raises the exception class of `code`, for what this layer refuses. Needs the GIL.
[[noreturn]] void raise(gpushm_errc code,
                        std::string_view operation,
                        std::string_view object,
                        std::string_view cause,
                        std::string_view next_step);

/// Raises a BufferError: exchange protocols define this class. Needs the GIL.
[[noreturn]] void raise_buffer_error(std::string_view cause, std::string_view next_step);

}  // namespace gpushm_python
