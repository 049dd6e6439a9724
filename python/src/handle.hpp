// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "error.hpp"
#include "gil.hpp"
#include "gpushm/gpushm.h"
#include "stop.hpp"

namespace gpushm_python {

namespace nb = nanobind;

inline gpushm_string text(std::string_view value) {
  return {value.data(), value.size()};
}
inline std::string to_string(gpushm_string value) {
  return value.size == 0 ? std::string() : std::string(value.data, value.size);
}

/// A structure of the C interface, with its size.
template <typename Structure>
[[nodiscard]] Structure with_size() {
  Structure result{};
  result.struct_size = sizeof result;
  return result;
}

/// `release` is called without the GIL, by the thread that gives up the last reference.
template <typename Handle>
std::shared_ptr<Handle> own_handle(Handle* handle, void (*release)(Handle*)) {
  return {handle, [release](Handle* last) { without_gil([&] { release(last); }); }};
}

/// A handle of the C interface in a Python object, which Python's threads share. Each call holds a
/// reference while it runs without the GIL. close() in another thread ends the calls that wait
/// (`closing`), and the last of them releases the handle. Releasing may block, and is done without
/// the GIL, whichever thread has the last reference.
///
/// Thread-safety: the GIL protects members; the handle is used without it.
template <typename Handle>
class closable {
 public:
  closable() = default;
  closable(Handle* handle, void (*release)(Handle*)) : handle_(own_handle(handle, release)) {}
  explicit closable(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {}
  closable(const closable&) = delete;
  closable& operator=(const closable&) = delete;
  closable(closable&&) noexcept = default;
  closable& operator=(closable&&) = delete;
  ~closable() { close(); }

  [[nodiscard]] bool is_closed() const noexcept { return handle_ == nullptr; }
  /// Raises gpushm.InvalidArgumentError after close().
  [[nodiscard]] std::shared_ptr<Handle> get(const char* operation) const {
    if (handle_ == nullptr) {
      raise(GPUSHM_ERRC_INVALID_ARGUMENT,
            operation,
            "",
            "this object was closed",
            "use it before close(), or before the end of its `with` statement");
    }
    return handle_;
  }
  /// Null after close().
  [[nodiscard]] const std::shared_ptr<Handle>& shared() const noexcept { return handle_; }
  /// Gives the handle up, so that no other call can get it; null after close().
  [[nodiscard]] std::shared_ptr<Handle> take() noexcept { return std::exchange(handle_, nullptr); }
  /// Is requested by close(): for the calls that wait.
  [[nodiscard]] std::shared_ptr<stop_source> closing() {
    if (closing_ == nullptr) {
      closing_ = std::make_shared<stop_source>();
    }
    return closing_;
  }
  void put_back(std::shared_ptr<Handle> handle) noexcept { handle_ = std::move(handle); }
  void close() noexcept {
    const std::shared_ptr<Handle> last = take();
    if (last != nullptr && closing_ != nullptr) {
      closing_->request();
    }
  }

 private:
  std::shared_ptr<Handle> handle_;
  std::shared_ptr<stop_source> closing_;
};

/// A Python object with a new `Object` of these arguments (of these members, if it has no
/// constructor). Needs the GIL.
template <typename Object, typename... Arguments>
nb::object make_object(Arguments&&... arguments) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): Python owns it
  return nb::cast(new Object{std::forward<Arguments>(arguments)...}, nb::rv_policy::take_ownership);
}

/// `__enter__`, which returns the object, and `__exit__`, which calls `end(object)`. `enter`: the
/// signature of the first, for the stub.
template <typename Object, typename End>
void def_context_manager(nb::class_<Object>& type, const char* enter, End end) {
  type.def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig(enter))
      .def(
          "__exit__",
          [end](Object& self, nb::handle, nb::handle, nb::handle) { end(self); },
          nb::arg("type").none(),
          nb::arg("value").none(),
          nb::arg("traceback").none(),
          nb::sig("def __exit__(self, type: object, value: object, traceback: object, /) -> None"));
}

/// The bytes of a path, as Python encodes them. Raises TypeError. Needs the GIL.
inline std::string path_of(nb::handle path) {
  const auto encoded = nb::cast<nb::bytes>(nb::module_::import_("os").attr("fsencode")(path));
  return {encoded.c_str(), encoded.size()};
}

/// Calls `function()` without the GIL, and raises an exception unless the result is GPUSHM_OK.
template <typename Function>
void call_released(Function function) {
  failure failed;
  {
    const nb::gil_scoped_release released;
    failed = failure::of(function());
  }
  failed.raise_if_any();
}

/// Calls `function(handle)` without the GIL, releases the reference without it, too, and raises an
/// exception unless the result is GPUSHM_OK.
template <typename Handle, typename Function>
void call(std::shared_ptr<Handle> handle, Function function) {
  failure failed;
  {
    const nb::gil_scoped_release released;
    failed = failure::of(function(handle.get()));
    handle.reset();
  }
  failed.raise_if_any();
}

}  // namespace gpushm_python
