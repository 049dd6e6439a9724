// SPDX-License-Identifier: Apache-2.0
#include "driver/nvml.hpp"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>

#include "driver/device_text.hpp"
#include "driver/library_path.hpp"
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

// Where else to look; empty: nowhere.
std::string& other_path() {
  static std::string path;
  return path;
}

using text_buffer = std::array<char, 128>;

// Stands in for a function that an older library lacks, with its exact signature.
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

void nvml_library::look_also_at(const std::string& path) {
  other_path() = path;
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

nvml_library nvml_library::load(library_outcome& told, const char* name) {
  void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();  // NOLINT(concurrency-mt-unsafe): per thread in glibc
    throw_unavailable(std::string("library not found: ") + (reason == nullptr ? "?" : reason));
  }
  told.path = path_of_library(library);
  nvml_library loaded;
  // POSIX says that dlsym's result may be used as a function pointer.
#define GPUSHM_NVML_LOOK_UP(result, symbol, parameters)                                           \
  loaded.functions_.symbol = reinterpret_cast<nvml::symbol##_pointer>(::dlsym(library, #symbol)); \
  if (loaded.functions_.symbol == nullptr) {                                                      \
    loaded.functions_.symbol = &missing<nvml::symbol##_pointer>::call;                            \
  }
  GPUSHM_NVML_FUNCTIONS(GPUSHM_NVML_LOOK_UP)
#undef GPUSHM_NVML_LOOK_UP
  const nvml::nvmlReturn_t result = loaded->nvmlInit_v2();
  told.init_result = static_cast<int>(result);
  if (result != nvml::NVML_SUCCESS) {
    throw_unavailable("nvmlInit: " + text_of(result));
  }
  return loaded;
}

// The outcome of loading. Leaked on purpose, failures that were tried again too: destructors of
// other static objects, and other threads, may still use it.
struct loaded_nvml {
  library_outcome told;
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
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    if (!get().failure) {
      return;
    }
    loaded_nvml next = make();
    // The same failure again and again must not cost memory each time.
    if (!next.failure || std::string_view(next.failure->what()) != get().failure->what()) {
      next.earlier = kept();
      // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): see above
      kept() = new loaded_nvml(std::move(next));
    }
  }
  static loaded_nvml make() {
    loaded_nvml first = make(library_name.data());
    if (!first.failure || other_path().empty()) {
      return first;
    }
    loaded_nvml second = make(other_path().c_str());
    return second.failure ? std::move(first) : std::move(second);
  }
  static loaded_nvml make(const char* name) {
    library_outcome told;
    try {
      nvml_library library = nvml_library::load(told, name);
      return {told, std::nullopt, std::move(library), nullptr};
    } catch (const error& failure) {
      return {told, failure, nvml_library(), nullptr};
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
  } catch (...) {  // NOLINT(bugprone-empty-catch): then the last outcome stays
  }
}

const library_outcome& nvml_library::outcome() noexcept {
  return loaded_nvml::get().told;
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
  std::vector<nvml_gpu> found;
  for (unsigned int index = 0; index < count; ++index) {
    nvml::nvmlDevice_t device = nullptr;
    const nvml::nvmlReturn_t result = functions_.nvmlDeviceGetHandleByIndex_v2(index, &device);
    // Counted, but not allowed to this process (another container's GPU).
    if (result == nvml::NVML_ERROR_NO_PERMISSION) {
      continue;
    }
    const std::string object = "GPU " + std::to_string(index);
    check(result, object, "nvmlDeviceGetHandleByIndex");
    nvml_gpu board;
    board.id.kind = device_kind::gpu;
    text_buffer text{};
    check(functions_.nvmlDeviceGetUUID(
              device, text.data(), static_cast<unsigned int>(text.size()) - 1),
          object,
          "nvmlDeviceGetUUID");
    board.id.uuid = text.data();
    text.fill('\0');
    check(functions_.nvmlDeviceGetName(
              device, text.data(), static_cast<unsigned int>(text.size()) - 1),
          object,
          "nvmlDeviceGetName");
    board.name = text.data();
    nvml::nvmlPciInfo_t pci{};
    check(functions_.nvmlDeviceGetPciInfo_v3(device, &pci), object, "nvmlDeviceGetPciInfo");
    board.id.pci_address = normal_pci_address(pci.busId).value_or(std::string());
    unsigned int minor = 0;
    check(functions_.nvmlDeviceGetMinorNumber(device, &minor), object, "nvmlDeviceGetMinorNumber");
    board.id.minor = static_cast<std::int32_t>(minor);
    nvml::nvmlMemory_t memory{};
    check(functions_.nvmlDeviceGetMemoryInfo(device, &memory), object, "nvmlDeviceGetMemoryInfo");
    board.total_bytes = memory.total;
    board.free_bytes = memory.free;
    found.push_back(std::move(board));
  }
  return found;
}

}  // namespace gpushm::driver
