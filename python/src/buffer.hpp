// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace gpushm_python {

/// Py_buffer. The limited API declares it since 3.11; its layout is the same in every CPython 3,
/// and is part of the stable ABI.
struct py_buffer {
  void* buf;
  PyObject* obj;
  Py_ssize_t len;
  Py_ssize_t itemsize;
  int readonly;
  int ndim;
  char* format;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  Py_ssize_t* suboffsets;
  void* internal;
};

/// Type slots that export host memory of gpushm.Array and gpushm.Segment. A buffer keeps the memory
/// mapped, also after Segment.close().
const PyType_Slot* array_buffer_slots();
const PyType_Slot* segment_buffer_slots();

/// The bytes, in C order, of an object with the buffer protocol. Needs the GIL; so does the
/// destructor. Thread-safety: distinct objects: safe.
class buffer_view {
 public:
  enum class wanted : bool { bytes, elements };
  /// Returns nullopt if the object has no buffer. Raises what the object raises for its contiguous
  /// bytes, or elements, which have a format.
  static std::optional<buffer_view> of(nanobind::handle object, wanted view = wanted::bytes);
  buffer_view(buffer_view&& other) noexcept;
  buffer_view(const buffer_view&) = delete;
  buffer_view& operator=(const buffer_view&) = delete;
  buffer_view& operator=(buffer_view&&) = delete;
  ~buffer_view();
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept;
  /// The format of one element, if elements were requested.
  [[nodiscard]] std::string_view format() const noexcept {
    return buffer_.format == nullptr ? "B" : buffer_.format;
  }
  [[nodiscard]] std::size_t itemsize() const noexcept {
    return static_cast<std::size_t>(buffer_.itemsize);
  }

 private:
  buffer_view() = default;
  py_buffer buffer_{};
};

}  // namespace gpushm_python
