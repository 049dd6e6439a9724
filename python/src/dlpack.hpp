// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

/// The binary interface of DLPack 1.3: our own declarations.
namespace gpushm_python::dl {

struct version {
  std::uint32_t major;
  std::uint32_t minor;
};
constexpr version current{1, 3};

constexpr std::int32_t device_cpu = 1;
constexpr std::int32_t device_cuda = 2;
constexpr std::int32_t device_cuda_host = 3;
constexpr std::int32_t device_cuda_managed = 13;

struct device {
  std::int32_t type;
  std::int32_t id;
  friend bool operator==(device, device) = default;
};

constexpr std::uint8_t code_int = 0;
constexpr std::uint8_t code_uint = 1;
constexpr std::uint8_t code_float = 2;
constexpr std::uint8_t code_bfloat = 4;
constexpr std::uint8_t code_complex = 5;
constexpr std::uint8_t code_bool = 6;

struct data_type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct tensor {
  void* data;
  dl::device device;
  std::int32_t ndim;
  data_type dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null before 1.2: contiguous
  std::uint64_t byte_offset;
};

struct managed_tensor {
  dl::tensor tensor;
  void* context;
  void (*deleter)(managed_tensor* self);
};

constexpr std::uint64_t flag_read_only = 1;
constexpr std::uint64_t flag_is_copied = 2;

struct managed_tensor_versioned {
  dl::version version;
  void* context;
  void (*deleter)(managed_tensor_versioned* self);
  std::uint64_t flags;
  dl::tensor tensor;
};

constexpr const char* capsule_name = "dltensor";
constexpr const char* used_capsule_name = "used_dltensor";
constexpr const char* versioned_capsule_name = "dltensor_versioned";
constexpr const char* used_versioned_capsule_name = "used_dltensor_versioned";
constexpr const char* exchange_capsule_name = "dlpack_exchange_api";

struct exchange_header {
  dl::version version;
  exchange_header* previous;
};

/// The table of `__dlpack_c_exchange_api__`. Functions return 0, or -1 with a Python exception set.
struct exchange_table {
  exchange_header header;
  int (*allocate)(tensor* prototype,
                  managed_tensor_versioned** result,
                  void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*from_object)(void* object, managed_tensor_versioned** result);
  int (*to_object)(managed_tensor_versioned* tensor, void** object);
  int (*describe)(void* object, tensor* result);
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

static_assert(sizeof(tensor) == 48 && sizeof(managed_tensor) == 64);
static_assert(sizeof(managed_tensor_versioned) == 80 && sizeof(exchange_table) == 56);
static_assert(std::is_trivial_v<managed_tensor_versioned>);

}  // namespace gpushm_python::dl
