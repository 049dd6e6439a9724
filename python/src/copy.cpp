// SPDX-License-Identifier: Apache-2.0
#include "copy.hpp"

#include <cstring>
#include <string>
#include <string_view>

#include "buffer.hpp"
#include "exchange.hpp"
#include "handle.hpp"
#include "segment.hpp"

namespace gpushm_python {
namespace {

/// Copies elements with strides to elements in C order.
void gather(const array& array, const std::byte* from, std::byte* into) {
  const std::size_t itemsize = array.type->itemsize;
  if (array.is_contiguous()) {
    std::memcpy(into, from, array.bytes());
    return;
  }
  std::vector<std::int64_t> index(array.shape.size());
  for (std::int64_t left = array.elements(); left > 0; --left) {
    std::int64_t place = 0;
    for (std::size_t i = 0; i < index.size(); ++i) {
      place += index[i] * array.strides[i];
    }
    std::memcpy(into, from + static_cast<std::size_t>(place) * itemsize, itemsize);
    into += itemsize;
    for (std::size_t i = index.size(); i-- > 0;) {
      if (++index[i] < array.shape[i]) {
        break;
      }
      index[i] = 0;
    }
  }
}

std::uint64_t offset_in_segment(const array& array) {
  const void* const begin = gpushm_segment_data(array.segment.get());
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(array.data) -
                                    static_cast<const std::byte*>(begin));
}

void require_segment(const array& array) {
  if (array.of_window) {
    throw nb::type_error(
        "gpushm does not copy memory of a window on a GPU (copy it with the library that uses it)");
  }
  if (array.segment == nullptr) {
    throw nb::type_error(
        "gpushm does not copy memory that another library has on a GPU (copy it with that "
        "library)");
  }
}

/// Elements are not converted: the bytes of others would be wrong numbers.
void require_type(const array& into, const char* source) {
  if (std::string_view(source) != into.type->name) {
    const std::string wanted = into.type->name;
    throw nb::type_error(("the source has elements of " + std::string(source) + ", the array of " +
                          wanted + " (convert the source: .astype(\"" + wanted +
                          "\"); or copy its bytes into a view of the segment as uint8)")
                             .c_str());
  }
}

/// Returns the buffer of an object with the buffer protocol. Raises TypeError unless they are
/// elements of the type of `order`, or have none, as those of `bytes`.
std::optional<buffer_view> buffer_for(nb::handle source, const array* order) {
  if (order == nullptr) {
    return buffer_view::of(source);
  }
  // NumPy has no format for types of ml_dtypes.
  if (const nb::object type = nb::getattr(source, "dtype", nb::none()); !type.is_none()) {
    require_type(*order, find_dtype(type).name);
    return buffer_view::of(source);
  }
  auto result = buffer_view::of(source, buffer_view::wanted::elements);
  if (result.has_value() && result->format() != "B" && result->format() != "c") {
    const std::string format(result->format());
    const dtype* const type = find_dtype(format, result->itemsize());
    require_type(*order, type == nullptr ? ("the format " + format).c_str() : type->name);
  }
  return result;
}

}  // namespace

std::vector<std::byte> copy_to_host(const array& array) {
  require_ready_on_cpu(array);
  std::vector<std::byte> result(array.bytes());
  if (result.empty()) {
    return result;
  }
  if (array.is_host()) {
    const std::shared_ptr<const void> owner = array.owner;
    const nb::gil_scoped_release released;
    gather(array, static_cast<const std::byte*>(array.data), result.data());
    return result;
  }
  require_segment(array);
  const std::uint64_t offset = offset_in_segment(array);
  if (array.is_contiguous()) {
    call(array.segment, [&](gpushm_segment* segment) {
      return gpushm_segment_read_on(segment, offset, result.data(), result.size(), nullptr);
    });
    return result;
  }
  std::vector<std::byte> extent(array.extent_bytes());
  call(array.segment, [&](gpushm_segment* segment) {
    return gpushm_segment_read_on(segment, offset, extent.data(), extent.size(), nullptr);
  });
  const nb::gil_scoped_release released;
  gather(array, extent.data(), result.data());
  return result;
}

void copy_into(const array& into, nb::handle source) {
  if (into.readonly) {
    raise_buffer_error("\"" + into.name + "\" is mapped for reading only",
                       "open it with access=\"read-write\"");
  }
  if (into.extent_bytes() != into.bytes()) {
    throw nb::value_error("the elements to overwrite have gaps");
  }
  require_arrived(into);
  with_bytes(source, &into, std::nullopt, [&](const source_bytes& bytes) {
    if (bytes.size != into.bytes()) {
      throw nb::value_error(("the source has " + std::to_string(bytes.size) + " bytes, the array " +
                             std::to_string(into.bytes()))
                                .c_str());
    }
    if (bytes.size == 0) {
      return;
    }
    if (into.is_host() && bytes.is_host) {
      const nb::gil_scoped_release released;
      std::memmove(into.data, bytes.first, bytes.size);
      return;
    }
    require_segment(into);
    write_bytes(into.segment, offset_in_segment(into), bytes, nullptr);
  });
}

void write_bytes(const std::shared_ptr<gpushm_segment>& into,
                 std::uint64_t offset,
                 const source_bytes& bytes,
                 std::optional<void*> stream) {
  call(into, [&](gpushm_segment* segment) {
    if (!bytes.is_host) {
      return gpushm_segment_write_from_gpu_on(
          segment, offset, bytes.first, bytes.size, stream.value_or(nullptr));
    }
    return stream ? gpushm_segment_write_on(segment, offset, bytes.first, bytes.size, *stream)
                  : gpushm_segment_write(segment, offset, bytes.first, bytes.size);
  });
}

void with_bytes(nb::handle source,
                const array* order,
                std::optional<void*> stream,
                const std::function<void(const source_bytes&)>& use) {
  const bool in_c_order = order == nullptr || order->is_contiguous();
  const auto raise_other_order = [] {
    throw nb::value_error(
        "the elements to overwrite are not contiguous, and the source has another order (pass one "
        "with the same shape and strides)");
  };
  const auto use_buffer = [&](const buffer_view& buffer) {
    if (!in_c_order) {
      raise_other_order();
    }
    use({buffer.bytes().data(), buffer.bytes().size(), true});
  };
  // DLPack first: it has element types that the buffer protocol lacks, and no formats.
  if (!nb::hasattr(source, "__dlpack__") && !nb::hasattr(source, "__cuda_array_interface__")) {
    const auto buffer = buffer_for(source, order);
    if (!buffer.has_value()) {
      const auto type = nb::cast<std::string>(nb::str(source.type()));
      throw nb::type_error((type + " has neither the buffer protocol nor __dlpack__").c_str());
    }
    use_buffer(*buffer);
    return;
  }
  std::optional<array> imported;
  try {
    imported = import_for_copy(source, stream.value_or(nullptr));
  } catch (nb::python_error& e) {
    // NumPy arrays of other element types (strings, ml_dtypes).
    if (!e.matches(PyExc_BufferError)) {
      throw;
    }
    const auto buffer = buffer_for(source, order);
    if (!buffer.has_value()) {
      throw;
    }
    use_buffer(*buffer);
    return;
  }
  if (order != nullptr && !nb::isinstance<segment_object>(source)) {  // whose bytes have no type
    require_type(*order, imported->type->name);
  }
  if (in_c_order ? imported->is_contiguous() : imported->is_arranged_as(*order)) {
    use({static_cast<const std::byte*>(imported->data), imported->bytes(), imported->is_host()});
    return;
  }
  if (!in_c_order) {
    raise_other_order();
  }
  if (!imported->is_host() || order == nullptr) {
    throw nb::value_error("the source is not contiguous (make a contiguous copy first)");
  }
  const std::vector<std::byte> gathered = copy_to_host(*imported);
  use({gathered.data(), gathered.size(), true});
}

}  // namespace gpushm_python
