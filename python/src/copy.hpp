// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "array.hpp"

namespace gpushm_python {

/// The elements in C order. Blocks until a GPU has copied them; without the GIL. Raises BufferError
/// if the array is not ready, TypeError for GPU memory of another library. Needs the GIL.
std::vector<std::byte> copy_to_host(const array& what);

/// Overwrites the elements of a contiguous array. Raises ValueError, TypeError, BufferError. Needs
/// the GIL.
void copy_from_host(const array& into, nanobind::handle source);

/// Calls `use` with the bytes of an object with the buffer protocol or `__dlpack__`, in host
/// memory. Raises TypeError, BufferError. Needs the GIL.
void with_host_bytes(nanobind::handle source,
                     const std::function<void(std::span<const std::byte>)>& use);

}  // namespace gpushm_python
