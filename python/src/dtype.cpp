// SPDX-License-Identifier: Apache-2.0
#include "dtype.hpp"

#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace gpushm_python {
namespace {

namespace nb = nanobind;

constexpr std::array table = {
    dtype{"bool", dl::code_bool, 8, 1, 1, "?", "|b1", "BOOL"},
    dtype{"int8", dl::code_int, 8, 1, 1, "b", "|i1", "I8"},
    dtype{"int16", dl::code_int, 16, 1, 2, "h", "<i2", "I16"},
    dtype{"int32", dl::code_int, 32, 1, 4, "i", "<i4", "I32"},
    dtype{"int64", dl::code_int, 64, 1, 8, "q", "<i8", "I64"},
    dtype{"uint8", dl::code_uint, 8, 1, 1, "B", "|u1", "U8"},
    dtype{"uint16", dl::code_uint, 16, 1, 2, "H", "<u2", "U16"},
    dtype{"uint32", dl::code_uint, 32, 1, 4, "I", "<u4", "U32"},
    dtype{"uint64", dl::code_uint, 64, 1, 8, "Q", "<u8", "U64"},
    dtype{"float16", dl::code_float, 16, 1, 2, "e", "<f2", "F16"},
    dtype{"float32", dl::code_float, 32, 1, 4, "f", "<f4", "F32"},
    dtype{"float64", dl::code_float, 64, 1, 8, "d", "<f8", "F64"},
    dtype{"bfloat16", dl::code_bfloat, 16, 1, 2, nullptr, nullptr, "BF16"},
    dtype{"complex32", dl::code_complex, 32, 1, 4, nullptr, nullptr, "C32"},
    dtype{"complex64", dl::code_complex, 64, 1, 8, "Zf", "<c8", "C64"},
    dtype{"complex128", dl::code_complex, 128, 1, 16, "Zd", "<c16", "C128"},
    dtype{"float8_e3m4", 7, 8, 1, 1, nullptr, nullptr, nullptr},
    dtype{"float8_e4m3", 8, 8, 1, 1, nullptr, nullptr, nullptr},
    dtype{"float8_e4m3b11fnuz", 9, 8, 1, 1, nullptr, nullptr, nullptr},
    dtype{"float8_e4m3fn", 10, 8, 1, 1, nullptr, nullptr, "F8_E4M3"},
    dtype{"float8_e4m3fnuz", 11, 8, 1, 1, nullptr, nullptr, "F8_E4M3FNUZ"},
    dtype{"float8_e5m2", 12, 8, 1, 1, nullptr, nullptr, "F8_E5M2"},
    dtype{"float8_e5m2fnuz", 13, 8, 1, 1, nullptr, nullptr, "F8_E5M2FNUZ"},
    dtype{"float8_e8m0fnu", 14, 8, 1, 1, nullptr, nullptr, "F8_E8M0"},
    dtype{"float4_e2m1fn_x2", 17, 4, 2, 1, nullptr, nullptr, "F4"},
};

// Python's types as NumPy reads them.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> aliases = {{
    {"float", "float64"},
    {"int", "int64"},
    {"complex", "complex128"},
    {"bool_", "bool"},
    {"half", "float16"},
}};

/// "float32" of "torch.float32", "jax.numpy.float32".
std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

std::string text_of(nb::handle dtype) {
  if (nb::isinstance<nb::str>(dtype)) {
    return nb::cast<std::string>(nb::str(dtype));
  }
  // NumPy's and JAX's dtypes have a name; scalar types have one as all types do; PyTorch's dtypes
  // are printed as their name.
  for (const char* attribute : {"name", "__name__"}) {
    const nb::object value = nb::getattr(dtype, attribute, nb::none());
    if (nb::isinstance<nb::str>(value)) {
      return nb::cast<std::string>(value);
    }
  }
  return nb::cast<std::string>(nb::str(dtype));
}

}  // namespace

const dtype* find_dtype(std::string_view name) noexcept {
  for (const auto& [alias, real] : aliases) {
    if (name == alias) {
      name = real;
    }
  }
  for (const dtype& each : table) {
    // "<f4", "=f4" and "f4" are the same here: the library runs on little-endian machines only.
    const std::string_view typestr = each.typestr == nullptr ? "" : each.typestr;
    if (name == each.name ||
        (!typestr.empty() && (name == typestr || name == typestr.substr(1) ||
                              (name.starts_with('=') && name.substr(1) == typestr.substr(1))))) {
      return &each;
    }
  }
  return nullptr;
}

const dtype& find_dtype(nb::handle object) {
  const std::string name = text_of(object);
  // A big-endian NumPy dtype has the name of the native one.
  const nb::object order = nb::getattr(object, "byteorder", nb::none());
  if (nb::isinstance<nb::str>(order) && nb::cast<std::string>(order) == ">") {
    const auto format = nb::cast<std::string>(nb::str(nb::getattr(object, "str", nb::str(object))));
    throw nb::type_error(("elements of " + format +
                          " are in big-endian order, which gpushm has not (convert them: "
                          ".astype(\"=" +
                          format.substr(format.starts_with('>') ? 1 : 0) + "\"))")
                             .c_str());
  }
  if (const dtype* const found = find_dtype(last_part(name)); found != nullptr) {
    return *found;
  }
  std::string known;
  for (const dtype& each : table) {
    known += known.empty() ? "" : ", ";
    known += each.name;
  }
  throw nb::type_error(
      ("gpushm has no dtype " + name + " (use one of " + known + ", or view the bytes as uint8)")
          .c_str());
}

const dtype* find_dtype(dl::data_type type) noexcept {
  for (const dtype& each : table) {
    if (each.code == type.code && each.bits == type.bits && each.lanes == type.lanes) {
      return &each;
    }
  }
  return nullptr;
}

const dtype* find_dtype(std::string_view format, std::size_t itemsize) noexcept {
  const bool is_swapped = format.starts_with('>') || format.starts_with('!');
  if (is_swapped && itemsize > 1) {
    return nullptr;
  }
  if (is_swapped || format.starts_with('<') || format.starts_with('=') || format.starts_with('@')) {
    format.remove_prefix(1);
  }
  constexpr std::string_view integers = "bhilqn";
  constexpr std::string_view naturals = "BHILQN";
  constexpr std::string_view reals = "efd";
  const bool is_complex = format == "Zf" || format == "Zd";
  if (!is_complex && format.size() != 1) {
    return nullptr;
  }
  std::uint8_t code = 0;
  if (is_complex) {
    code = dl::code_complex;
  } else if (format == "?") {
    code = dl::code_bool;
  } else if (integers.find(format) != integers.npos) {
    code = dl::code_int;
  } else if (naturals.find(format) != naturals.npos) {
    code = dl::code_uint;
  } else if (reals.find(format) != reals.npos) {
    code = dl::code_float;
  } else {
    return nullptr;
  }
  for (const dtype& each : table) {
    if (each.code == code && each.itemsize == itemsize && each.lanes == 1) {
      return &each;
    }
  }
  return nullptr;
}

void register_dtypes(nb::module_& module) {
  module.def(
      "dtype_name",
      [](nb::handle dtype) { return find_dtype(dtype).name; },
      nb::arg("dtype"),
      nb::sig("def dtype_name(dtype: object, /) -> str"),
      "gpushm's name of an element type. Raises TypeError for one that it does not have, such as "
      "a\n"
      "big-endian one.");
  module.def(
      "dtype_size",
      [](nb::handle dtype) { return find_dtype(dtype).itemsize; },
      nb::arg("dtype"),
      nb::sig("def dtype_size(dtype: object, /) -> int"),
      "Bytes of one element of this type. Raises TypeError.");
  module.def(
      "dtypes",
      [] {
        nb::dict result;
        for (const dtype& each : table) {
          result[each.name] = each.in_table;
        }
        return result;
      },
      nb::sig("def dtypes() -> dict[str, str | None]"),
      "All element types, with their names in tables of tensors; None: it has none.");
}

}  // namespace gpushm_python
