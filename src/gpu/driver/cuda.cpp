// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver/cuda.hpp"

#include <dlfcn.h>

#include <atomic>
#include <optional>

#include "base/files/fork_guard.hpp"
#include "base/report/log.hpp"
#include "gpu/driver/library_path.hpp"
#include "gpushm/error.hpp"

namespace gpushm::driver {

namespace {

constexpr std::string_view library_name = "libcuda.so.1";

// The process that called cuInit, as `base::fork_generation`; 0: none. Set before the call:
// otherwise a child forked meanwhile would wait for a thread that it does not have.
std::atomic<std::uint64_t> initialised_in{0};

bool is_forked() noexcept {
  const std::uint64_t created_in = initialised_in.load(std::memory_order_relaxed);
  return created_in != 0 && base::is_forked_child_of(created_in);
}

// Replaces a function that an older driver lacks, with its exact signature.
template <typename Pointer>
struct missing;
template <typename... Parameters>
struct missing<cuda::CUresult (*)(Parameters...)> {
  static cuda::CUresult call(Parameters... /*unused*/) { return cuda::CUDA_ERROR_NOT_SUPPORTED; }
};

template <typename Pointer>
bool look_up(void* library, const char* symbol, Pointer& target) {
  // POSIX allows dlsym's result to be used as a function pointer.
  target = reinterpret_cast<Pointer>(::dlsym(library, symbol));
  if (target == nullptr) {
    target = &missing<Pointer>::call;
    return false;
  }
  return true;
}

std::string_view result_name(cuda::CUresult result) noexcept {
  switch (result) {
#define GPUSHM_CUDA_NAME(name, value) \
  case cuda::name:                    \
    return #name;
    GPUSHM_CUDA_RESULTS(GPUSHM_CUDA_NAME)
#undef GPUSHM_CUDA_NAME
    default:
      return "unlisted CUDA result";
  }
}

std::string_view next_step_for(cuda::CUresult result) noexcept {
  switch (result) {
    case cuda::CUDA_ERROR_OUT_OF_MEMORY:
      return "request less, or free memory on this GPU; nvidia-smi lists the processes that use it";
    case cuda::CUDA_ERROR_INVALID_DEVICE:
      return "check that this process may open the GPU's device node";
    case cuda::CUDA_ERROR_NOT_SUPPORTED:
    case cuda::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER:
      return "use a newer NVIDIA driver, or a GPU that supports this";
    case cuda::CUDA_ERROR_NOT_INITIALIZED:
    case cuda::CUDA_ERROR_DEINITIALIZED:
      return "do not use the driver after fork or while the process exits";
    default:
      return "see nvidia-smi and the kernel log";
  }
}

[[noreturn]] void throw_unavailable(std::string_view cause, std::string_view next_step) {
  throw error(errc::driver_unavailable, "load CUDA driver", library_name, cause, next_step);
}

}  // namespace

std::string result_text(cuda::CUresult result) {
  return std::string(result_name(result)) + " (" +
         std::to_string(static_cast<unsigned int>(result)) + ")";
}

cuda_driver cuda_driver::load(library_outcome& details) {
  void* library = ::dlopen(library_name.data(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();  // NOLINT(concurrency-mt-unsafe): per thread in glibc
    throw_unavailable(
        std::string("library not found: ") + (reason == nullptr ? "?" : reason),
        "install the NVIDIA driver, start the container with a GPU, or use device host");
  }
  details.path = path_of_library(library);
  cuda_driver driver;
  std::string lacking;
#define GPUSHM_CUDA_LOOK_UP(symbol, parameters)                         \
  if (!look_up(library, #symbol, driver.functions_.symbol)) {           \
    lacking += lacking.empty() ? #symbol : std::string(", ") + #symbol; \
  }
  GPUSHM_CUDA_FUNCTIONS(GPUSHM_CUDA_LOOK_UP)
#undef GPUSHM_CUDA_LOOK_UP
  if (!lacking.empty()) {
    base::log(log_level::warning, "this " + std::string(library_name) + " lacks " + lacking);
  }
  initialised_in.store(base::fork_generation(), std::memory_order_relaxed);
  const cuda::CUresult result = driver->cuInit(0);
  if (result != cuda::CUDA_SUCCESS) {
    initialised_in.store(0, std::memory_order_relaxed);
  }
  details.init_result = static_cast<int>(result);
  if (result == cuda::CUDA_ERROR_NO_DEVICE) {
    throw_unavailable("cuInit: no device: CUDA_ERROR_NO_DEVICE (100)",
                      "check nvidia-smi, CUDA_VISIBLE_DEVICES and the container's device nodes");
  }
  if (result != cuda::CUDA_SUCCESS) {
    throw_unavailable("cuInit: " + result_text(result),
                      "check that nvidia-smi works here and that library and kernel module match");
  }
  if (driver->cuDriverGetVersion(&driver.version_) != cuda::CUDA_SUCCESS) {
    driver.version_ = 0;
  }
  return driver;
}

// The result of loading, created once. Intentionally leaked: destructors of other static objects
// may still use it.
struct loaded_cuda {
  library_outcome details;
  std::optional<error> failure;
  cuda_driver driver;

  static const loaded_cuda& get() {
    static const loaded_cuda* const outcome = new loaded_cuda(make());
    return *outcome;
  }
  static loaded_cuda make() {
    library_outcome details;
    try {
      cuda_driver driver = cuda_driver::load(details);
      return {details, std::nullopt, std::move(driver)};
    } catch (const error& failure) {
      return {details, failure, cuda_driver()};
    }
  }
};

const cuda_driver& cuda_driver::instance() {
  if (is_forked()) {
    throw error(
        errc::forked,
        "use CUDA driver",
        {},
        "this process was forked after CUDA was initialised, and CUDA does not survive a fork",
        "start a new program (exec) in the child, or fork before the first use of a GPU");
  }
  const loaded_cuda& outcome = loaded_cuda::get();
  if (outcome.failure) {
    throw error(*outcome.failure);
  }
  return outcome.driver;
}

const cuda_driver* cuda_driver::try_instance() noexcept {
  try {
    return &instance();
  } catch (...) {
    return nullptr;
  }
}

const library_outcome& cuda_driver::outcome() noexcept {
  return loaded_cuda::get().details;
}

void cuda_driver::check(cuda::CUresult result,
                        std::string_view operation,
                        std::string_view object,
                        std::string_view call) {
  if (result == cuda::CUDA_SUCCESS) {
    return;
  }
  throw error(result == cuda::CUDA_ERROR_OUT_OF_MEMORY ? errc::out_of_memory : errc::driver_error,
              operation,
              object,
              std::string(call) + ": " + result_text(result),
              next_step_for(result));
}

void cuda_driver::note(cuda::CUresult result, std::string_view call) noexcept {
  if (result == cuda::CUDA_SUCCESS || result == cuda::CUDA_ERROR_DEINITIALIZED || is_forked()) {
    return;
  }
  try {
    base::log(log_level::warning, std::string(call) + ": " + result_text(result));
  } catch (...) {
    // No memory for the line: a destructor can do nothing better.
    return;
  }
}

}  // namespace gpushm::driver
