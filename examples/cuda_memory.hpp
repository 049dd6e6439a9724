// SPDX-License-Identifier: Apache-2.0
// The CUDA calls that the examples need, without a toolkit: memory as cudaMalloc allocates it. In
// your program, use cudaMalloc, cudaMemset and cudaFree, or a tensor of your framework.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

/// Memory of the first GPU, freed by the destructor. Neither copyable nor movable.
class cuda_memory {
 public:
  /// Returns null if there is no driver or no GPU.
  static std::unique_ptr<cuda_memory> try_allocate(std::size_t size_bytes) {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr || call<unsigned>(library, "cuInit", 0U) != 0) {
      return nullptr;
    }
    return std::unique_ptr<cuda_memory>(new cuda_memory(library, size_bytes));
  }
  cuda_memory(const cuda_memory&) = delete;
  cuda_memory& operator=(const cuda_memory&) = delete;
  ~cuda_memory() { call<address>(library_, "cuMemFree_v2", first_); }

  [[nodiscard]] void* data() const noexcept {
    return reinterpret_cast<void*>(first_);  // NOLINT(performance-no-int-to-ptr): a CUdeviceptr
  }

  /// Sets every byte. Blocks until that is done, so that other processes may read.
  void fill(unsigned char value) {
    check("cuMemsetD8_v2",
          call<address, unsigned char, std::size_t>(
              library_, "cuMemsetD8_v2", first_, value, size_bytes_));
    check("cuCtxSynchronize", call<>(library_, "cuCtxSynchronize"));
  }

 private:
  using address = unsigned long long;

  cuda_memory(void* library, std::size_t size_bytes) : library_(library), size_bytes_(size_bytes) {
    int device = 0;
    void* context = nullptr;
    check("cuDeviceGet", call<int*, int>(library, "cuDeviceGet", &device, 0));
    check("cuDevicePrimaryCtxRetain",
          call<void**, int>(library, "cuDevicePrimaryCtxRetain", &context, device));
    check("cuCtxSetCurrent", call<void*>(library, "cuCtxSetCurrent", context));
    check("cuMemAlloc_v2",
          call<address*, std::size_t>(library, "cuMemAlloc_v2", &first_, size_bytes));
  }

  template <typename... Arguments>
  static int call(void* library, const char* name, Arguments... arguments) {
    auto* const function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(library, name));
    if (function == nullptr) {
      throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
    }
    return function(arguments...);
  }
  static void check(const char* name, int result) {
    if (result != 0) {
      throw std::runtime_error(std::string(name) + " failed with " + std::to_string(result));
    }
  }

  void* library_;
  std::size_t size_bytes_;
  address first_ = 0;
};
