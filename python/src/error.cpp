// SPDX-License-Identifier: Apache-2.0
#include "error.hpp"

#include <cstdint>
#include <new>
#include <string>

#include "handle.hpp"

namespace gpushm_python {
namespace {

[[noreturn]] void raise_object(const nb::object& exception) {
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

nb::object text_object(gpushm_string value) {
  // Names and files of others may be in it, which are not always UTF-8.
  return nb::steal(
      PyUnicode_DecodeUTF8(value.data, static_cast<Py_ssize_t>(value.size), "replace"));
}

}  // namespace

failure failure::of(gpushm_errc code) {
  failure result;
  result.code_ = code;
  if (code != GPUSHM_OK) {
    result.error_.reset(gpushm_error_dup(gpushm_last_error()), gpushm_error_free);
  }
  return result;
}

failure failure::out_of_memory() {
  failure result;
  result.code_ = GPUSHM_ERRC_OUT_OF_MEMORY;
  // Null if there is no memory for that, either; the exception then has no text.
  result.error_.reset(gpushm_error_create(GPUSHM_ERRC_OUT_OF_MEMORY,
                                          text("wait"),
                                          text(""),
                                          text("this process has no memory left"),
                                          text("free some"),
                                          nullptr),
                      gpushm_error_free);
  return result;
}

nb::object failure::exception() const {
  return make_exception(error_.get());
}

void failure::raise_if_any() const {
  if (code_ != GPUSHM_OK) {
    raise_object(exception());
  }
}

nb::object make_exception(const gpushm_error* error) {
  if (error == nullptr) {
    throw std::bad_alloc();
  }
  nb::object value = nb::none();
  if (std::uint64_t number = 0; gpushm_error_value(error, &number)) {
    value = nb::cast(number);
  }
  return nb::module_::import_("gpushm._errors")
      .attr("from_parts")(static_cast<int>(gpushm_error_code(error)),
                          text_object(gpushm_error_operation(error)),
                          text_object(gpushm_error_object(error)),
                          text_object(gpushm_error_cause(error)),
                          text_object(gpushm_error_next_step(error)),
                          text_object(gpushm_error_message(error)),
                          gpushm_error_pid(error),
                          value);
}

void raise(gpushm_errc code,
           std::string_view operation,
           std::string_view object,
           std::string_view cause,
           std::string_view next_step) {
  const std::shared_ptr<gpushm_error> error(
      gpushm_error_create(
          code, text(operation), text(object), text(cause), text(next_step), nullptr),
      gpushm_error_free);
  if (error == nullptr) {
    throw std::bad_alloc();
  }
  raise_object(make_exception(error.get()));
}

void raise_buffer_error(std::string_view cause, std::string_view next_step) {
  const std::string message = std::string(cause) + " (" + std::string(next_step) + ")";
  PyErr_SetString(PyExc_BufferError, message.c_str());
  throw nb::python_error();
}

}  // namespace gpushm_python
