// SPDX-License-Identifier: Apache-2.0
#include "copy.hpp"

#include <cstring>
#include <string>

#include "buffer.hpp"
#include "exchange.hpp"
#include "handle.hpp"

namespace gpushm_python {
namespace {

/// Copies elements with strides to elements in C order.
void gather(const array& what, const std::byte* from, std::byte* into) {
  const std::size_t itemsize = what.type->itemsize;
  if (what.is_contiguous()) {
    std::memcpy(into, from, what.bytes());
    return;
  }
  std::vector<std::int64_t> index(what.shape.size());
  for (std::int64_t left = what.elements(); left > 0; --left) {
    std::int64_t place = 0;
    for (std::size_t i = 0; i < index.size(); ++i) {
      place += index[i] * what.strides[i];
    }
    std::memcpy(into, from + static_cast<std::size_t>(place) * itemsize, itemsize);
    into += itemsize;
    for (std::size_t i = index.size(); i-- > 0;) {
      if (++index[i] < what.shape[i]) {
        break;
      }
      index[i] = 0;
    }
  }
}

std::uint64_t offset_in_segment(const array& what) {
  const void* const begin = gpushm_segment_data(what.segment.get());
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(what.data) -
                                    static_cast<const std::byte*>(begin));
}

void require_segment(const array& what) {
  if (what.segment == nullptr) {
    throw nb::type_error(
        "gpushm does not copy memory that another library has on a GPU (copy it with that "
        "library)");
  }
}

}  // namespace

std::vector<std::byte> copy_to_host(const array& what) {
  require_ready_on_cpu(what);
  std::vector<std::byte> result(what.bytes());
  if (result.empty()) {
    return result;
  }
  if (what.is_host()) {
    const std::shared_ptr<const void> owner = what.owner;
    const nb::gil_scoped_release released;
    gather(what, static_cast<const std::byte*>(what.data), result.data());
    return result;
  }
  require_segment(what);
  const std::uint64_t offset = offset_in_segment(what);
  if (what.is_contiguous()) {
    call(what.segment, [&](gpushm_segment* segment) {
      return gpushm_segment_read(segment, offset, result.data(), result.size());
    });
    return result;
  }
  std::vector<std::byte> extent(what.extent_bytes());
  call(what.segment, [&](gpushm_segment* segment) {
    return gpushm_segment_read(segment, offset, extent.data(), extent.size());
  });
  const nb::gil_scoped_release released;
  gather(what, extent.data(), result.data());
  return result;
}

void copy_from_host(const array& into, nb::handle source) {
  if (into.readonly) {
    raise_buffer_error("\"" + into.name + "\" is mapped for reading only",
                       "open it with access=\"read-write\"");
  }
  if (!into.is_contiguous()) {
    throw nb::value_error("the elements to overwrite are not contiguous");
  }
  with_host_bytes(source, [&](std::span<const std::byte> bytes) {
    if (bytes.size() != into.bytes()) {
      throw nb::value_error(("the source has " + std::to_string(bytes.size()) +
                             " bytes, the array " + std::to_string(into.bytes()))
                                .c_str());
    }
    if (bytes.empty()) {
      return;
    }
    if (into.is_host()) {
      const nb::gil_scoped_release released;
      std::memmove(into.data, bytes.data(), bytes.size());
      return;
    }
    require_segment(into);
    const std::uint64_t offset = offset_in_segment(into);
    call(into.segment, [&](gpushm_segment* segment) {
      return gpushm_segment_write(segment, offset, bytes.data(), bytes.size());
    });
  });
}

void with_host_bytes(nb::handle source,
                     const std::function<void(std::span<const std::byte>)>& use) {
  // DLPack first: it has element types that the buffer protocol lacks, and no formats.
  if (!nb::hasattr(source, "__dlpack__")) {
    const auto buffer = buffer_view::of(source);
    if (!buffer.has_value()) {
      const auto type = nb::cast<std::string>(nb::str(source.type()));
      throw nb::type_error((type + " has neither the buffer protocol nor __dlpack__").c_str());
    }
    use(buffer->bytes());
    return;
  }
  std::optional<array> imported;
  try {
    imported = import_object(source, nb::none());
  } catch (nb::python_error& e) {
    // NumPy arrays of other element types (strings, ml_dtypes).
    if (!e.matches(PyExc_BufferError)) {
      throw;
    }
    const auto buffer = buffer_view::of(source);
    if (!buffer.has_value()) {
      throw;
    }
    use(buffer->bytes());
    return;
  }
  if (!imported->is_host()) {
    throw nb::type_error(
        "the source is on a GPU (copy it there with its library, into from_dlpack of a view of the "
        "segment)");
  }
  if (!imported->is_contiguous()) {
    throw nb::value_error("the source is not contiguous (make a contiguous copy first)");
  }
  use({static_cast<const std::byte*>(imported->data), imported->bytes()});
}

}  // namespace gpushm_python
