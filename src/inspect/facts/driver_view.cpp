// SPDX-License-Identifier: Apache-2.0
#include "inspect/facts/driver_view.hpp"

#include <array>
#include <set>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/device_text.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/nvml.hpp"
#include "gpushm/error.hpp"

namespace gpushm::inspect {

namespace {

using driver::cuda_driver;
using driver::nvml_library;

int attribute(const cuda_driver& cu, cuda::CUdevice device, cuda::CUdevice_attribute attribute) {
  int value = -1;
  return cu->cuDeviceGetAttribute(&value, attribute, device) == cuda::CUDA_SUCCESS ? value : -1;
}

std::optional<bool> flag(const cuda_driver& cu,
                         cuda::CUdevice device,
                         cuda::CUdevice_attribute key) {
  const int value = attribute(cu, device, key);
  return value < 0 ? std::nullopt : std::optional(value != 0);
}

cuda_gpu_view query_cuda_gpu(const cuda_driver& cu, const driver::gpu& gpu) {
  const auto number = [&](cuda::CUdevice_attribute key) { return attribute(cu, gpu.handle, key); };
  const auto yes = [&](cuda::CUdevice_attribute attribute) {
    return flag(cu, gpu.handle, attribute);
  };
  cuda_gpu_view view;
  view.ordinal = gpu.ordinal;
  view.uuid = gpu.id.uuid;
  view.name = gpu.name;
  view.pci_address = gpu.id.pci_address;
  view.total_bytes = gpu.total_bytes;
  view.compute_major = number(cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  view.compute_minor = number(cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  view.multiprocessors = number(cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  const int cache_bytes = number(cuda::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  view.l2_bytes = cache_bytes < 0 ? 0 : static_cast<std::uint64_t>(cache_bytes);
  view.copy_engines = number(cuda::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
  view.clock_khz = number(cuda::CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  view.memory_clock_khz = number(cuda::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
  view.memory_bus_bits = number(cuda::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  view.compute_mode = number(cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
  view.ecc = yes(cuda::CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
  view.vmm = yes(cuda::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  view.file_handles = yes(cuda::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  view.fabric_handles = yes(cuda::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
  view.pools = yes(cuda::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  const int kinds = number(cuda::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
  if (kinds >= 0) {
    view.pool_file_handles =
        (static_cast<unsigned int>(kinds) & cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  }
  view.rdma = yes(cuda::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
  view.rdma_vmm = yes(cuda::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  return view;
}

cuda_pair_view query_pair(const cuda_driver& cu,
                          const driver::gpu& source,
                          const driver::gpu& target) {
  cuda_pair_view view;
  view.from = source.ordinal;
  view.to = target.ordinal;
  const auto ask = [&](cuda::CUdevice_P2PAttribute attribute) {
    int value = -1;
    return cu->cuDeviceGetP2PAttribute(&value, attribute, source.handle, target.handle) ==
                   cuda::CUDA_SUCCESS
               ? value
               : -1;
  };
  int can = 0;
  if (cu->cuDeviceCanAccessPeer(&can, source.handle, target.handle) == cuda::CUDA_SUCCESS) {
    view.access = can != 0;
  }
  const int atomics = ask(cuda::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
  if (atomics >= 0) {
    view.native_atomics = atomics != 0;
  }
  view.performance_rank = ask(cuda::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK);
  return view;
}

cuda_view query_cuda() {
  cuda_view view;
  view.library = cuda_driver::outcome().path;
  view.result = cuda_driver::outcome().init_result;
  try {
    const cuda_driver& cu = cuda_driver::instance();
    view.version = cu.version();
    const auto& gpus = driver::visible_gpus();
    for (const driver::gpu& each : gpus) {
      view.gpus.push_back(query_cuda_gpu(cu, each));
      for (const driver::gpu& other : gpus) {
        if (other.ordinal != each.ordinal) {
          view.pairs.push_back(query_pair(cu, each, other));
        }
      }
    }
  } catch (const error& failure) {
    view.problem = failure.cause();
  }
  return view;
}

// Longer than any NVML string.
using text_buffer = std::array<char, 128>;

template <typename Call>
std::string text_of(Call&& call) {
  text_buffer text{};
  return call(text.data(), static_cast<unsigned int>(text.size()) - 1) == nvml::NVML_SUCCESS
             ? text.data()
             : std::string();
}

template <typename Value, typename Call>
std::optional<Value> value_of(Call&& call) {
  Value value{};
  return call(&value) == nvml::NVML_SUCCESS ? std::optional(value) : std::nullopt;
}

std::string compute_mode_text(nvml::nvmlComputeMode_t mode) {
  switch (mode) {
    case nvml::NVML_COMPUTEMODE_DEFAULT:
      return "default";
    case nvml::NVML_COMPUTEMODE_EXCLUSIVE_THREAD:
      return "exclusive thread";
    case nvml::NVML_COMPUTEMODE_PROHIBITED:
      return "prohibited";
    case nvml::NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
      return "exclusive process";
  }
  return "unknown";
}

std::string virtualization_text(nvml::nvmlGpuVirtualizationMode_t mode) {
  switch (mode) {
    case nvml::NVML_GPU_VIRTUALIZATION_MODE_NONE:
      return "none";
    case nvml::NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH:
      return "passthrough";
    case nvml::NVML_GPU_VIRTUALIZATION_MODE_VGPU:
      return "vgpu";
    case nvml::NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU:
      return "host vgpu";
    case nvml::NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA:
      return "host vsga";
  }
  return "unknown";
}

std::string distance_text(nvml::nvmlGpuTopologyLevel_t level) {
  switch (level) {
    case nvml::NVML_TOPOLOGY_INTERNAL:
      return "internal";
    case nvml::NVML_TOPOLOGY_SINGLE:
      return "single switch";
    case nvml::NVML_TOPOLOGY_MULTIPLE:
      return "multiple switches";
    case nvml::NVML_TOPOLOGY_HOSTBRIDGE:
      return "host bridge";
    case nvml::NVML_TOPOLOGY_NODE:
      return "node";
    case nvml::NVML_TOPOLOGY_SYSTEM:
      return "system";
  }
  return {};
}

std::string link_end_text(nvml::nvmlIntNvLinkDeviceType_t type) {
  switch (type) {
    case nvml::NVML_NVLINK_DEVICE_TYPE_GPU:
      return "gpu";
    case nvml::NVML_NVLINK_DEVICE_TYPE_SWITCH:
      return "switch";
    case nvml::NVML_NVLINK_DEVICE_TYPE_IBMNPU:
    case nvml::NVML_NVLINK_DEVICE_TYPE_UNKNOWN:
      break;
  }
  return "other";
}

std::vector<nvlink_view> query_links(const nvml_library& nv, nvml::nvmlDevice_t device) {
  std::vector<nvlink_view> links;
  for (unsigned int link = 0; link < nvml::nvlink_max_links; ++link) {
    const auto state = value_of<nvml::nvmlEnableState_t>(
        [&](auto* value) { return nv->nvmlDeviceGetNvLinkState(device, link, value); });
    if (!state) {
      break;
    }
    nvlink_view view;
    view.link = static_cast<int>(link);
    view.active = *state == nvml::NVML_FEATURE_ENABLED;
    if (view.active) {
      const auto version = value_of<unsigned int>(
          [&](auto* value) { return nv->nvmlDeviceGetNvLinkVersion(device, link, value); });
      view.version = version ? static_cast<int>(*version) : -1;
      if (const auto pci = value_of<nvml::nvmlPciInfo_t>([&](auto* value) {
            return nv->nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, value);
          })) {
        view.remote_pci = driver::normal_pci_address(pci->busId).value_or(std::string());
      }
      if (const auto type = value_of<nvml::nvmlIntNvLinkDeviceType_t>([&](auto* value) {
            return nv->nvmlDeviceGetNvLinkRemoteDeviceType(device, link, value);
          })) {
        view.remote_kind = link_end_text(*type);
      }
    }
    links.push_back(std::move(view));
  }
  return links;
}

std::vector<mig_instance_view> query_instances(const nvml_library& nv, nvml::nvmlDevice_t gpu) {
  std::vector<mig_instance_view> views;
  const auto most = value_of<unsigned int>(
      [&](auto* value) { return nv->nvmlDeviceGetMaxMigDeviceCount(gpu, value); });
  for (unsigned int index = 0; index < most.value_or(0); ++index) {
    const auto instance = value_of<nvml::nvmlDevice_t>(
        [&](auto* value) { return nv->nvmlDeviceGetMigDeviceHandleByIndex(gpu, index, value); });
    if (!instance) {
      continue;
    }
    mig_instance_view view;
    view.uuid = text_of(
        [&](char* text, auto size) { return nv->nvmlDeviceGetUUID(*instance, text, size); });
    view.name = text_of(
        [&](char* text, auto size) { return nv->nvmlDeviceGetName(*instance, text, size); });
    if (const auto id = value_of<unsigned int>(
            [&](auto* value) { return nv->nvmlDeviceGetGpuInstanceId(*instance, value); })) {
      view.gpu_instance = static_cast<int>(*id);
    }
    if (const auto id = value_of<unsigned int>(
            [&](auto* value) { return nv->nvmlDeviceGetComputeInstanceId(*instance, value); })) {
      view.compute_instance = static_cast<int>(*id);
    }
    if (const auto memory = value_of<nvml::nvmlMemory_t>(
            [&](auto* value) { return nv->nvmlDeviceGetMemoryInfo(*instance, value); })) {
      view.total_bytes = memory->total;
    }
    views.push_back(std::move(view));
  }
  return views;
}

nvml_gpu_view query_nvml_gpu(const nvml_library& nv, unsigned int index, nvml::nvmlDevice_t gpu) {
  nvml_gpu_view view;
  view.index = static_cast<int>(index);
  view.uuid =
      text_of([&](char* text, auto size) { return nv->nvmlDeviceGetUUID(gpu, text, size); });
  view.name =
      text_of([&](char* text, auto size) { return nv->nvmlDeviceGetName(gpu, text, size); });
  if (const auto pci = value_of<nvml::nvmlPciInfo_t>(
          [&](auto* value) { return nv->nvmlDeviceGetPciInfo_v3(gpu, value); })) {
    view.pci_address = driver::normal_pci_address(pci->busId).value_or(std::string());
  }
  if (const auto minor = value_of<unsigned int>(
          [&](auto* value) { return nv->nvmlDeviceGetMinorNumber(gpu, value); })) {
    view.minor = static_cast<int>(*minor);
  }
  if (const auto memory = value_of<nvml::nvmlMemory_t>(
          [&](auto* value) { return nv->nvmlDeviceGetMemoryInfo(gpu, value); })) {
    view.total_bytes = memory->total;
    view.free_bytes = memory->free;
  }
  unsigned int current = 0;
  unsigned int pending = 0;
  if (nv->nvmlDeviceGetMigMode(gpu, &current, &pending) == nvml::NVML_SUCCESS) {
    view.mig = current != 0;
    view.mig_pending = pending != 0;
    view.mig_instances = query_instances(nv, gpu);
  }
  if (const auto mode = value_of<nvml::nvmlComputeMode_t>(
          [&](auto* value) { return nv->nvmlDeviceGetComputeMode(gpu, value); })) {
    view.compute_mode = compute_mode_text(*mode);
  }
  if (const auto mode = value_of<nvml::nvmlGpuVirtualizationMode_t>(
          [&](auto* value) { return nv->nvmlDeviceGetVirtualizationMode(gpu, value); })) {
    view.virtualization = virtualization_text(*mode);
  }
  if (const auto mode = value_of<nvml::nvmlEnableState_t>(
          [&](auto* value) { return nv->nvmlDeviceGetPersistenceMode(gpu, value); })) {
    view.persistence = *mode == nvml::NVML_FEATURE_ENABLED;
  }
  nvml::nvmlEnableState_t ecc = nvml::NVML_FEATURE_DISABLED;
  nvml::nvmlEnableState_t ecc_pending = nvml::NVML_FEATURE_DISABLED;
  if (nv->nvmlDeviceGetEccMode(gpu, &ecc, &ecc_pending) == nvml::NVML_SUCCESS) {
    view.ecc = ecc == nvml::NVML_FEATURE_ENABLED;
  }
  const auto clock = [&](nvml::nvmlClockType_t type) {
    const auto mhz = value_of<unsigned int>(
        [&](auto* value) { return nv->nvmlDeviceGetMaxClockInfo(gpu, type, value); });
    return mhz ? static_cast<int>(*mhz) : -1;
  };
  view.max_sm_clock_mhz = clock(nvml::NVML_CLOCK_SM);
  view.max_memory_clock_mhz = clock(nvml::NVML_CLOCK_MEM);
  view.links = query_links(nv, gpu);
  return view;
}

nvml_view query_nvml() {
  nvml_view view;
  view.library = nvml_library::outcome().path;
  view.result = nvml_library::outcome().init_result;
  try {
    const nvml_library& nv = nvml_library::instance();
    view.driver_version = nv.driver_version();
    view.nvml_version = nv.nvml_version();
    unsigned int count = 0;
    if (nv->nvmlDeviceGetCount_v2(&count) != nvml::NVML_SUCCESS) {
      return view;
    }
    std::vector<std::pair<int, nvml::nvmlDevice_t>> gpus;
    for (unsigned int index = 0; index < count; ++index) {
      // NVML counts the GPUs of other containers, but returns no handle for them.
      if (const auto gpu = value_of<nvml::nvmlDevice_t>(
              [&](auto* value) { return nv->nvmlDeviceGetHandleByIndex_v2(index, value); })) {
        view.gpus.push_back(query_nvml_gpu(nv, index, *gpu));
        gpus.emplace_back(static_cast<int>(index), *gpu);
      }
    }
    for (const auto& [from, gpu] : gpus) {
      for (const auto& [to, other] : gpus) {
        if (from >= to) {
          continue;
        }
        nvml::nvmlGpuTopologyLevel_t level{};
        if (nv->nvmlDeviceGetTopologyCommonAncestor(gpu, other, &level) == nvml::NVML_SUCCESS) {
          view.pairs.push_back({from, to, distance_text(level)});
        }
      }
    }
  } catch (const error& failure) {
    view.problem = failure.cause();
  }
  return view;
}

}  // namespace

driver_view query_driver() {
  driver_view view;
  view.cuda = query_cuda();
  view.nvml = query_nvml();
  return view;
}

}  // namespace gpushm::inspect
