// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlpack.hpp"
#include "dtype.hpp"
#include "timeline.hpp"

namespace gpushm_python {

/// What consumers of an array wait for: `value` of a timeline.
struct readiness {
  std::shared_ptr<gpushm_timeline> timeline;
  std::uint64_t value = 0;
};

/// Memory with an element type, a shape and strides: what frameworks exchange. Does not own
/// elements; `owner` keeps the memory mapped.
///
/// Thread-safety: distinct objects: safe; shared objects: immutable.
struct array {
  std::shared_ptr<const void> owner;
  std::shared_ptr<gpushm_segment> segment;  ///< null: memory of another library
  void* data = nullptr;
  const dtype* type = nullptr;
  dl::device device{dl::device_cpu, 0};
  bool readonly = true;
  bool of_window = false;  ///< of a gpushm.Window, where `segment` is null
  bool unflagged = false;  ///< for consumers of DLPack before 1.0, although it is read-only
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements, one for each dimension
  std::optional<readiness> ready;
  /// Makes a stream wait until it may use the elements; empty: it may. Throws as the library.
  std::function<void(void* stream)> arrival;
  /// Whether a CPU may use the elements; set if `arrival` is. Throws as the library.
  std::function<bool()> has_arrived;
  /// "the slot", and what else the error of a CPU says that uses it too early.
  struct early_use {
    const char* part = "";
    const char* state = "";
    const char* next_step = "";
  };
  early_use early;
  std::string name;  ///< of the segment, for messages

  [[nodiscard]] std::int64_t elements() const noexcept;
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return static_cast<std::uint64_t>(elements()) * type->itemsize;
  }
  /// Bytes from the first element to the end of the last one; 0 without elements.
  [[nodiscard]] std::uint64_t extent_bytes() const noexcept;
  [[nodiscard]] bool is_contiguous() const noexcept;
  /// Whether both have the same shape, and the same place for each element, without gaps.
  [[nodiscard]] bool is_arranged_as(const array& other) const noexcept;
  [[nodiscard]] bool is_host() const noexcept { return device.type == dl::device_cpu; }
};

std::vector<std::int64_t> contiguous_strides(std::span<const std::int64_t> shape);

/// The memory of which arrays are made.
struct memory_range {
  std::shared_ptr<const void> owner;
  std::shared_ptr<gpushm_segment> segment;
  void* data = nullptr;
  std::uint64_t bytes = 0;
  dl::device device{dl::device_cpu, 0};
  bool readonly = true;
  bool of_window = false;
  std::string name;
};

/// An array on a part of `range`. `shape`: null for one dimension of all whole elements after
/// `offset` bytes; `strides` in elements, null for contiguous; neither is negative. Raises
/// ValueError, and gpushm.SizeMismatchError for what is not within the range. Needs the GIL.
array make_array(const memory_range& range,
                 const dtype& type,
                 const std::vector<std::int64_t>* shape,
                 std::uint64_t offset,
                 const std::vector<std::int64_t>* strides,
                 std::optional<readiness> ready);
/// For many arrays of one range: one without elements, whose elements `place` then changes.
array array_in(const memory_range& range, std::optional<readiness> ready);
/// As make_array, of an array of this range. If it raises, the elements are not specified.
void place(array& into,
           const memory_range& range,
           const dtype& type,
           std::span<const std::int64_t> shape,
           std::uint64_t offset,
           std::optional<std::span<const std::int64_t>> strides);
/// The same, of Python's arguments. Also raises TypeError.
array make_array(const memory_range& range,
                 nanobind::handle dtype,
                 nanobind::handle shape,
                 std::uint64_t offset,
                 nanobind::handle strides,
                 std::optional<readiness> ready);

/// Python's (timeline, value), or None. Raises TypeError. Needs the GIL.
std::optional<readiness> to_readiness(nanobind::handle ready);
nanobind::object from_readiness(const std::optional<readiness>& readiness);

/// Whether the value is reached. Does not block; raises gpushm.PeerDiedError if it never will be.
/// Needs the GIL.
bool is_ready(const readiness& readiness);

/// Raises BufferError if the CPU must not read the memory yet: `cause` and next step say why.
/// Does not block. Needs the GIL.
void require_ready_on_cpu(const array& array);
/// Raises BufferError if a stream has the memory and the CPU has not: neither may it write then.
/// Does not block. Needs the GIL.
void require_arrived(const array& array);

void register_array(nanobind::module_& module);

}  // namespace gpushm_python
