// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "array.hpp"

namespace gpushm_python {

/// The elements in C order. Blocks until a GPU has copied them, after the legacy default stream;
/// without the GIL. Raises BufferError if the array is not ready, TypeError for GPU memory of
/// another library. Needs the GIL.
std::vector<std::byte> copy_to_host(const array& array);

/// Overwrites the elements of an array without gaps. The source has elements of the same type, or
/// is bytes. If the array is in C order, so are the bytes of the source; otherwise the source has
/// its shape and strides. Blocks until done, on a GPU after the legacy default stream. Raises
/// ValueError, TypeError, BufferError, and what the library does. Needs the GIL.
void copy_into(const array& into, nanobind::handle source);

struct source_bytes {
  const std::byte* first = nullptr;
  std::size_t size = 0;
  bool is_host = true;
};

/// Calls `use` with the bytes of an object with the buffer protocol or `__dlpack__`; on a GPU,
/// `stream`, or else the legacy default one, waits for the work that its library has begun.
/// `order`: the array that they are for, whose element type and order they have; null: bytes of any
/// type in C order, and what is not contiguous is refused. Raises ValueError, TypeError,
/// BufferError. Needs the GIL.
void with_bytes(nanobind::handle source,
                const array* order,
                std::optional<void*> stream,
                const std::function<void(const source_bytes&)>& use);

/// `stream`: what the copy comes after; nullopt: no order, or, of a GPU's memory, the legacy
/// default stream, which waits for the source. Blocks until done, without the GIL. Raises as
/// gpushm_segment_write. Needs the GIL.
void write_bytes(const std::shared_ptr<gpushm_segment>& into,
                 std::uint64_t offset,
                 const source_bytes& bytes,
                 std::optional<void*> stream);

}  // namespace gpushm_python
