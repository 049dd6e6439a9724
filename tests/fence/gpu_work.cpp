// SPDX-License-Identifier: Apache-2.0
#include "tests/fence/gpu_work.hpp"

#include <cstddef>

#include "gpu/driver/cuda.hpp"

namespace gpushm::fence_rounds {

using namespace gpushm::cuda;

namespace {

/// Ten seconds at 2 GHz: longer than any round.
constexpr std::uint64_t cycles = 20'000'000'000;
constexpr int copies_ahead = 2'000;

}  // namespace

gpu_work::gpu_work(work does, CUdeviceptr target) : does_(does), target_(target) {
  const driver::cuda_driver& cu = driver::cuda_driver::instance();
  const std::size_t count = does_ == work::streams ? 8 : 1;
  for (std::size_t i = 0; i < count; ++i) {
    CUstream stream = nullptr;
    check(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    streams_.push_back(stream);
  }
  check(cu->cuMemAlloc_v2(&source_, shared_bytes), "cuMemAlloc");
}

void gpu_work::begin() {
  switch (does_) {
    case work::kernel:
    case work::peer_kernel:
      kernel_.emplace().launch(streams_[0], target_, watched_bytes / 8, cycles, 132);
      break;
    case work::copies:
    case work::peer_copies:
      break;
    case work::streams: {
      const write_kernel& kernel = kernel_.emplace();
      for (std::size_t i = 0; i < streams_.size(); i += 2) {
        constexpr std::uint64_t part = watched_bytes / 8;
        kernel.launch(streams_[i], target_ + i * part, part / 8, cycles, 4);
      }
      break;
    }
  }
  feed(copies_ahead);
}

void gpu_work::feed(int count) {
  if (does_ == work::kernel || does_ == work::peer_kernel) {
    return;
  }
  const driver::cuda_driver& cu = driver::cuda_driver::instance();
  const std::size_t first = does_ == work::streams ? 1 : 0;
  for (int i = 0; i < count; ++i) {
    for (std::size_t at = first; at < streams_.size(); at += 2) {
      ++value_;
      check(cu->cuMemsetD8Async(
                source_, static_cast<unsigned char>(value_ | 1U), shared_bytes, streams_[at]),
            "cuMemsetD8Async");
      check(cu->cuMemcpyDtoDAsync_v2(target_, source_, shared_bytes, streams_[at]),
            "cuMemcpyDtoDAsync");
    }
  }
}

}  // namespace gpushm::fence_rounds
