// SPDX-License-Identifier: Apache-2.0
#include "tests/fence/launcher.hpp"

#include <dlfcn.h>

#include <array>
#include <stdexcept>
#include <string>

#include "gpu/driver/cuda.hpp"

namespace gpushm::fence_rounds {

namespace {

// PTX ISA 8.0, special register %clock64.
constexpr const char* source = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry write_clock(.param .u64 where, .param .u32 words, .param .u64 cycles)
{
  .reg .pred %p<3>;
  .reg .b32 %r<6>;
  .reg .b64 %d<9>;
  ld.param.u64 %d1, [where];
  cvta.to.global.u64 %d1, %d1;
  ld.param.u32 %r5, [words];
  ld.param.u64 %d6, [cycles];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  mov.u64 %d2, %clock64;
  setp.lt.u32 %p1, %r4, %r5;
  mul.wide.u32 %d3, %r4, 8;
  add.u64 %d4, %d1, %d3;
again:
  mov.u64 %d5, %clock64;
  @%p1 st.volatile.global.u64 [%d4], %d5;
  sub.u64 %d7, %d5, %d2;
  setp.lt.u64 %p2, %d7, %d6;
  @%p2 bra again;
  ret;
}
)";

// Driver functions that gpushm itself does not use (cuda.h of CUDA 12).
using load_data = cuda::CUresult (*)(void** module, const void* image);
using get_function = cuda::CUresult (*)(void** function, void* module, const char* name);
using launch_kernel = cuda::CUresult (*)(void* function,
                                         unsigned grid_x,
                                         unsigned grid_y,
                                         unsigned grid_z,
                                         unsigned block_x,
                                         unsigned block_y,
                                         unsigned block_z,
                                         unsigned shared_bytes,
                                         cuda::CUstream stream,
                                         void** parameters,
                                         void** extra);

template <typename Function>
Function symbol(const char* name) {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const found = library == nullptr ? nullptr : ::dlsym(library, name);
  if (found == nullptr) {
    throw std::runtime_error(std::string("the driver has no ") + name);
  }
  return reinterpret_cast<Function>(found);
}

}  // namespace

void check(cuda::CUresult result, const char* call) {
  if (result != cuda::CUDA_SUCCESS) {
    throw std::runtime_error(std::string(call) + ": " + driver::result_text(result));
  }
}

write_kernel::write_kernel() {
  void* module = nullptr;
  check(symbol<load_data>("cuModuleLoadData")(&module, source), "cuModuleLoadData");
  check(symbol<get_function>("cuModuleGetFunction")(&function_, module, "write_clock"),
        "cuModuleGetFunction");
}

void write_kernel::launch(cuda::CUstream stream,
                          cuda::CUdeviceptr where,
                          std::uint32_t words,
                          std::uint64_t limit_cycles,
                          unsigned blocks) const {
  static const auto launch = symbol<launch_kernel>("cuLaunchKernel");
  std::array<void*, 3> parameters{&where, &words, &limit_cycles};
  constexpr unsigned threads_a_block = 256;
  check(
      launch(function_, blocks, 1, 1, threads_a_block, 1, 1, 0, stream, parameters.data(), nullptr),
      "cuLaunchKernel");
}

}  // namespace gpushm::fence_rounds
