// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver/nvml.hpp"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>

#include "gpu/driver/device_text.hpp"
#include "gpu/driver/library_path.hpp"
#include "gpushm/error.hpp"

namespace gpushm::driver {

namespace {

constexpr std::string_view library_name = "libnvidia-ml.so.1";

[[noreturn]] void throw_unavailable(std::string_view cause) {
  throw error(errc::driver_unavailable,
              "load NVML",
              library_name,
              cause,
              "install the NVIDIA driver, or enable the container's driver utility capability");
}

std::string text_of(nvml::nvmlReturn_t result) {
  switch (result) {
#define GPUSHM_NVML_NAME(name, value) \
  case nvml::name:                    \
    return #name " (" #value ")";
    GPUSHM_NVML_RESULTS(GPUSHM_NVML_NAME)
#undef GPUSHM_NVML_NAME
    default:
      return "unlisted NVML result (" + std::to_string(static_cast<unsigned int>(result)) + ")";
  }
}

// An alternative path of the library; empty: none.
std::string& alternative_path() {
  static std::string path;
  return path;
}

using text_buffer = std::array<char, 128>;

// Replaces a function that an older library lacks, with its exact signature.
template <typename Pointer>
struct missing;
template <typename... Parameters>
struct missing<nvml::nvmlReturn_t (*)(Parameters...)> {
  static nvml::nvmlReturn_t call(Parameters... /*unused*/) {
    return nvml::NVML_ERROR_FUNCTION_NOT_FOUND;
  }
};
template <typename... Parameters>
struct missing<const char* (*)(Parameters...)> {
  static const char* call(Parameters... /*unused*/) { return "unknown"; }
};

}  // namespace

void nvml_library::set_alternative_path(const std::string& path) {
  alternative_path() = path;
}

void nvml_library::check(nvml::nvmlReturn_t result,
                         std::string_view object,
                         std::string_view call) {
  if (result != nvml::NVML_SUCCESS) {
    throw error(errc::driver_error,
                "query NVML",
                object,
                std::string(call) + ": " + text_of(result),
                "check that nvidia-smi works here");
  }
}

nvml_library nvml_library::load(library_outcome& details, const char* name) {
  void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();  // NOLINT(concurrency-mt-unsafe): per thread in glibc
    throw_unavailable(std::string("library not found: ") + (reason == nullptr ? "?" : reason));
  }
  details.path = path_of_library(library);
  nvml_library loaded;
  // POSIX allows dlsym's result to be used as a function pointer.
#define GPUSHM_NVML_LOOK_UP(result, symbol, parameters)                                           \
  loaded.functions_.symbol = reinterpret_cast<nvml::symbol##_pointer>(::dlsym(library, #symbol)); \
  if (loaded.functions_.symbol == nullptr) {                                                      \
    loaded.functions_.symbol = &missing<nvml::symbol##_pointer>::call;                            \
  }
  GPUSHM_NVML_FUNCTIONS(GPUSHM_NVML_LOOK_UP)
#undef GPUSHM_NVML_LOOK_UP
  const nvml::nvmlReturn_t result = loaded->nvmlInit_v2();
  details.init_result = static_cast<int>(result);
  if (result != nvml::NVML_SUCCESS) {
    throw_unavailable("nvmlInit: " + text_of(result));
  }
  return loaded;
}

// The result of loading. Intentionally leaked, including failures before a retry: destructors of
// other static objects, and other threads, may still use it.
struct loaded_nvml {
  library_outcome details;
  std::optional<error> failure;
  nvml_library library;
  const loaded_nvml* earlier = nullptr;

  static std::atomic<const loaded_nvml*>& kept() {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): see above
    static std::atomic<const loaded_nvml*> outcome = new loaded_nvml(make());
    return outcome;
  }
  static const loaded_nvml& get() { return *kept().load(); }
  static void make_again() {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (!get().failure) {
      return;
    }
    loaded_nvml next = make();
    // The same failure, repeated, must not use memory each time.
    if (!next.failure || std::string_view(next.failure->what()) != get().failure->what()) {
      next.earlier = kept();
      // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): see above
      kept() = new loaded_nvml(std::move(next));
    }
  }
  static loaded_nvml make() {
    loaded_nvml first = make(library_name.data());
    if (!first.failure || alternative_path().empty()) {
      return first;
    }
    loaded_nvml second = make(alternative_path().c_str());
    return second.failure ? std::move(first) : std::move(second);
  }
  static loaded_nvml make(const char* name) {
    library_outcome details;
    try {
      nvml_library library = nvml_library::load(details, name);
      return {details, std::nullopt, std::move(library), nullptr};
    } catch (const error& failure) {
      return {details, failure, nvml_library(), nullptr};
    }
  }
};

const nvml_library& nvml_library::instance() {
  const loaded_nvml& outcome = loaded_nvml::get();
  if (outcome.failure) {
    throw error(*outcome.failure);
  }
  return outcome.library;
}

const nvml_library* nvml_library::try_instance() noexcept {
  try {
    return &instance();
  } catch (...) {
    return nullptr;
  }
}

void nvml_library::try_again() noexcept {
  try {
    loaded_nvml::make_again();
  } catch (...) {  // NOLINT(bugprone-empty-catch): keeps the last outcome
  }
}

const library_outcome& nvml_library::outcome() noexcept {
  return loaded_nvml::get().details;
}

std::string nvml_library::driver_version() const {
  text_buffer text{};
  functions_.nvmlSystemGetDriverVersion(text.data(), static_cast<unsigned int>(text.size()) - 1);
  return text.data();
}

std::string nvml_library::nvml_version() const {
  text_buffer text{};
  functions_.nvmlSystemGetNVMLVersion(text.data(), static_cast<unsigned int>(text.size()) - 1);
  return text.data();
}

std::vector<nvml_gpu> nvml_library::gpus() const {
  unsigned int count = 0;
  check(functions_.nvmlDeviceGetCount_v2(&count), {}, "nvmlDeviceGetCount");
  std::vector<nvml_gpu> gpus;
  for (unsigned int index = 0; index < count; ++index) {
    nvml::nvmlDevice_t device = nullptr;
    const nvml::nvmlReturn_t result = functions_.nvmlDeviceGetHandleByIndex_v2(index, &device);
    // Counted, but this process has no permission (another container's GPU).
    if (result == nvml::NVML_ERROR_NO_PERMISSION) {
      continue;
    }
    const std::string object = "GPU " + std::to_string(index);
    check(result, object, "nvmlDeviceGetHandleByIndex");
    nvml_gpu entry;
    entry.id.kind = device_kind::gpu;
    text_buffer text{};
    check(functions_.nvmlDeviceGetUUID(
              device, text.data(), static_cast<unsigned int>(text.size()) - 1),
          object,
          "nvmlDeviceGetUUID");
    entry.id.uuid = text.data();
    text.fill('\0');
    check(functions_.nvmlDeviceGetName(
              device, text.data(), static_cast<unsigned int>(text.size()) - 1),
          object,
          "nvmlDeviceGetName");
    entry.name = text.data();
    nvml::nvmlPciInfo_t pci{};
    check(functions_.nvmlDeviceGetPciInfo_v3(device, &pci), object, "nvmlDeviceGetPciInfo");
    entry.id.pci_address = normal_pci_address(pci.busId).value_or(std::string());
    unsigned int minor = 0;
    check(functions_.nvmlDeviceGetMinorNumber(device, &minor), object, "nvmlDeviceGetMinorNumber");
    entry.id.minor = static_cast<std::int32_t>(minor);
    nvml::nvmlMemory_t memory{};
    check(functions_.nvmlDeviceGetMemoryInfo(device, &memory), object, "nvmlDeviceGetMemoryInfo");
    entry.total_bytes = memory.total;
    entry.free_bytes = memory.free;
    gpus.push_back(std::move(entry));
  }
  return gpus;
}

}  // namespace gpushm::driver
