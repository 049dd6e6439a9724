// SPDX-License-Identifier: Apache-2.0
// Initialisation, names of results, and properties of devices.
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/support/fake_driver/state.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::entry;
using gpushm::fake::state;

namespace {

// The version of CUDA with which the behaviour was measured.
constexpr int driver_version = 13000;

CUresult name_of(CUresult result, const char** text) {
  switch (result) {
#define GPUSHM_FAKE_NAME(name, value) \
  case name:                          \
    *text = #name;                    \
    return CUDA_SUCCESS;
    GPUSHM_CUDA_RESULTS(GPUSHM_FAKE_NAME)
#undef GPUSHM_FAKE_NAME
    default:
      *text = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Runs `body` with the properties of `device`, under the lock.
template <typename Body>
CUresult with_gpu(CUdevice device, Body&& body) {
  fake::driver_state& now = state();
  const std::lock_guard lock(now.mutex);
  const std::size_t gpu = now.gpu_of(device);
  return gpu == now.gpus.size() ? CUDA_ERROR_INVALID_DEVICE : body(now.gpus[gpu], gpu);
}

CUresult put_text(const std::string& value, char* text, int size) {
  if (text == nullptr || size <= 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::snprintf(text, static_cast<std::size_t>(size), "%s", value.c_str());
  return CUDA_SUCCESS;
}

unsigned int pci_part(const std::string& pci, int part) {
  unsigned int numbers[3] = {};
  std::sscanf(pci.c_str(), "%x:%x:%x", &numbers[0], &numbers[1], &numbers[2]);
  return numbers[part];
}

int attribute_of(CUdevice_attribute attribute, const fake::gpu_properties& gpu) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return 1'000'000;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 1;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return 2'000'000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return 4096;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return 1 << 20;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 2;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
      return static_cast<int>(pci_part(gpu.pci, 0));
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return static_cast<int>(pci_part(gpu.pci, 1));
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
      return static_cast<int>(pci_part(gpu.pci, 2));
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
      return gpu.rdma ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      return gpu.rdma_vmm ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
      return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    default:
      return 0;
  }
}

}  // namespace

CUresult cuda::cuInit(unsigned int flags) {
  return entry(
      "cuInit", [&] { return flags == 0 ? fake::initialise() : CUDA_ERROR_INVALID_VALUE; }, false);
}

CUresult cuda::cuDriverGetVersion(int* version) {
  return entry(
      "cuDriverGetVersion",
      [&] {
        *version = driver_version;
        return CUDA_SUCCESS;
      },
      false);
}

CUresult cuda::cuGetErrorName(CUresult error, const char** text) {
  return entry(
      "cuGetErrorName", [&] { return name_of(error, text); }, false);
}

CUresult cuda::cuGetErrorString(CUresult error, const char** text) {
  return entry(
      "cuGetErrorString", [&] { return name_of(error, text); }, false);
}

CUresult cuda::cuDeviceGetCount(int* count) {
  return entry("cuDeviceGetCount", [&] {
    const std::lock_guard lock(state().mutex);
    *count = static_cast<int>(state().enumerated.size());
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuDeviceGet(CUdevice* device, int ordinal) {
  return entry("cuDeviceGet", [&] {
    return with_gpu(ordinal, [&](const fake::gpu_view&, std::size_t) {
      *device = ordinal;
      return CUDA_SUCCESS;
    });
  });
}

CUresult cuda::cuDeviceGetName(char* name, int size, CUdevice device) {
  return entry("cuDeviceGetName", [&] {
    return with_gpu(device, [&](const fake::gpu_view& gpu, std::size_t) {
      return put_text(gpu.properties.name, name, size);
    });
  });
}

CUresult cuda::cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return entry("cuDeviceGetUuid_v2", [&] {
    return with_gpu(device, [&](const fake::gpu_view& gpu, std::size_t) {
      fake::uuid_bytes(gpu.properties.uuid, uuid->bytes);
      return CUDA_SUCCESS;
    });
  });
}

CUresult cuda::cuDeviceGetPCIBusId(char* text, int size, CUdevice device) {
  return entry("cuDeviceGetPCIBusId", [&] {
    return with_gpu(device, [&](const fake::gpu_view& gpu, std::size_t) {
      return put_text(gpu.properties.pci, text, size);
    });
  });
}

CUresult cuda::cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return entry("cuDeviceGetAttribute", [&] {
    return with_gpu(device, [&](const fake::gpu_view& gpu, std::size_t) {
      *value = attribute_of(attribute, gpu.properties);
      return CUDA_SUCCESS;
    });
  });
}

CUresult cuda::cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  return entry("cuDeviceTotalMem_v2", [&] {
    return with_gpu(device, [&](const fake::gpu_view& gpu, std::size_t) {
      *bytes = fake::read_memory_state(gpu).total_bytes;
      return CUDA_SUCCESS;
    });
  });
}

CUresult cuda::cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return entry("cuDeviceCanAccessPeer", [&] {
    return with_gpu(device, [&](const fake::gpu_view&, std::size_t gpu) {
      const std::size_t other = state().gpu_of(peer);
      if (other == state().gpus.size()) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      *can = state().peers(gpu, other) ? 1 : 0;
      return CUDA_SUCCESS;
    });
  });
}

CUresult cuda::cuDeviceGetP2PAttribute(int* value,
                                       CUdevice_P2PAttribute attribute,
                                       CUdevice source,
                                       CUdevice target) {
  return entry("cuDeviceGetP2PAttribute", [&] {
    return with_gpu(source, [&](const fake::gpu_view&, std::size_t gpu) {
      const std::size_t other = state().gpu_of(target);
      if (other == state().gpus.size() || other == gpu) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      *value = attribute != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK && state().peers(gpu, other);
      return CUDA_SUCCESS;
    });
  });
}
