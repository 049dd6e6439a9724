// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "array.hpp"
#include "dlpack.hpp"

namespace gpushm_python {

/// Makes the consumer's CUDA stream (null: the legacy default one) wait until the elements are
/// complete; never this thread. Needs the GIL.
void make_stream_wait(const array& what, void* stream);

/// A tensor for a consumer, which releases it by its deleter: on any thread, without the GIL, also
/// after the interpreter has ended. Copied: one in host memory that the consumer alone has.
std::unique_ptr<dl::managed_tensor_versioned, void (*)(dl::managed_tensor_versioned*)>
export_versioned(const array& what, bool copied);

/// Takes over a tensor of another library, and releases it when nothing uses the array any more.
/// Raises BufferError for what gpushm cannot represent; the tensor is released then, too.
array import_versioned(dl::managed_tensor_versioned* tensor);

/// An array of an object with `__dlpack__`. `stream`: None, or what the protocol defines.
/// Raises TypeError, BufferError, and what the object raises. Needs the GIL.
array import_object(nanobind::handle object, nanobind::handle stream);

/// As import_object, for a copy: on a GPU, `stream` will use the memory (null: the legacy default
/// one).
array import_for_copy(nanobind::handle object, void* stream);

/// Methods and attributes of gpushm.Array.
void register_exchange(nanobind::class_<array>& type);
/// gpushm.from_dlpack.
void register_from_dlpack(nanobind::module_& module);

}  // namespace gpushm_python
