// SPDX-License-Identifier: Apache-2.0
#include "tensors/loads/copy_lane.hpp"

#include <sys/mman.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/files/file.hpp"
#include "base/files/page_size.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpu/streams/registered_page.hpp"
#include "gpu/streams/retired_pages.hpp"
#include "gpushm/error.hpp"
#include "tensors/loads/block_buffer.hpp"

namespace gpushm::tensors {

namespace {

using driver::cuda_driver;
constexpr const char* operation = "load";
/// The buffers of each lane to a GPU: while one is filled, the others are copied.
constexpr std::size_t buffers = 2;

error no_memory(const std::string& name, std::size_t bytes) {
  return {errc::out_of_memory,
          operation,
          name,
          "no memory for " + std::to_string(bytes) + " bytes of a file",
          "use fewer threads, or free memory"};
}

class host_lane : public copy_lane {
 public:
  /// Until it is bound, nothing is copied.
  host_lane(const std::string& name, done report) : report_(std::move(report)) {
    if (!buffer_) {
      throw no_memory(name, buffer_bytes);
    }
  }
  void bind(segment& into, done report) override {
    first_ = static_cast<std::byte*>(into.mutable_data());
    report_ = std::move(report);
  }
  [[nodiscard]] int ordinal() const noexcept override { return -1; }
  std::byte* buffer() override { return buffer_.get(); }
  void add(const std::byte* first, std::span<const part> parts) override {
    if (first_ == nullptr) {
      return;
    }
    for (const part& each : parts) {
      std::memcpy(first_ + each.segment_offset, first, each.bytes);
      first += each.bytes;
    }
  }
  void end_piece(std::size_t piece) override { report_(piece); }
  void finish() override {}

 private:
  std::byte* first_ = nullptr;
  done report_;
  block_buffer buffer_ = make_block_buffer(buffer_bytes);
};

struct staging {
  base::unique_mapping memory;
  std::byte* first = nullptr;
};

/// Memory of huge pages, because each page is registered: measured for 16 lanes, 29 ms until the
/// first copy instead of 66 ms with cuMemHostAlloc. A forked child does not get it.
staging make_staging(std::size_t bytes, const std::string& name) {
  constexpr std::size_t huge_page = 2U << 20U;
  const std::size_t whole = bytes + huge_page;
  void* const mapped =
      ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw no_memory(name, bytes);
  }
  staging result{base::unique_mapping({mapped, whole}), static_cast<std::byte*>(mapped)};
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  result.first += (huge_page - address % huge_page) % huge_page;
  // Without huge pages it is slower, and no less right.
  static_cast<void>(::madvise(result.first, bytes, MADV_HUGEPAGE));
  static_cast<void>(::madvise(mapped, whole, MADV_DONTFORK));
  // Its pages are made here, because the driver does it under its lock.
  for (std::size_t at = 0; at < bytes; at += base::host_page_bytes()) {
    result.first[at] = std::byte{};
  }
  return result;
}

/// Pinned buffers: few and small ones, because pinning costs a second for 2 GiB.
class gpu_lane : public copy_lane {
 public:
  gpu_lane(int ordinal, const std::string& name)
      : name_(name), ordinal_(ordinal), context_(context_of(ordinal, name)) {
    const driver::context_scope scope(context_, operation, name_);
    const cuda_driver& cu = cuda_driver::instance();
    try {
      check(cu->cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING), "cuStreamCreate");
      constexpr std::size_t bytes = buffers * buffer_bytes;
      staging_ = make_staging(bytes, name_);
      pinned_ = std::make_unique<streams::registered_page>(staging_.first, true, bytes);
      static_cast<void>(pinned_->address_for(stream_, 0, operation, name_));
      std::byte* next = staging_.first;
      for (one& each : buffers_) {
        each.memory = std::exchange(next, next + buffer_bytes);
        check(cu->cuEventCreate(&each.copied, cuda::CU_EVENT_DISABLE_TIMING), "cuEventCreate");
      }
    } catch (...) {
      free_all();
      throw;
    }
  }
  gpu_lane(const gpu_lane&) = delete;
  gpu_lane& operator=(const gpu_lane&) = delete;
  ~gpu_lane() override {
    const cuda_driver* const cu = cuda_driver::try_instance();
    if (cu == nullptr) {
      return;
    }
    cuda::CUcontext popped = nullptr;
    if ((*cu)->cuCtxPushCurrent_v2(context_) == cuda::CUDA_SUCCESS) {
      free_all();
      cuda_driver::note((*cu)->cuCtxPopCurrent_v2(&popped), "cuCtxPopCurrent");
    }
  }

  void bind(segment& into, done report) override {
    first_ = reinterpret_cast<cuda::CUdeviceptr>(into.mutable_data());
    report_ = std::move(report);
  }
  [[nodiscard]] int ordinal() const noexcept override { return ordinal_; }

  std::byte* buffer() override {
    current_ = (current_ + 1) % buffers_.size();
    wait_for(buffers_.at(current_));
    return buffers_.at(current_).memory;
  }
  /// Tensors that follow each other also in the segment are copied at once: each copy costs the
  /// GPU 2.5 us (measured: copies of 1 MiB reach 48 GB/s, of 4 MiB 53, of 16 MiB 55).
  void add(const std::byte* first, std::span<const part> parts) override {
    for (const part& each : parts) {
      if (next_copy_.bytes == 0 || next_copy_.to + next_copy_.bytes != each.segment_offset ||
          next_copy_.from + next_copy_.bytes != first) {
        start_copy();
        next_copy_ = {first, each.segment_offset, 0};
      }
      next_copy_.bytes += each.bytes;
      first += each.bytes;
    }
  }
  void end_piece(std::size_t piece) override {
    start_copy();
    const driver::context_scope scope(context_, operation, name_);
    one& from = buffers_.at(current_);
    check(cuda_driver::instance()->cuEventRecord(from.copied, stream_), "cuEventRecord");
    from.piece = piece;
  }
  void finish() override {
    for (std::size_t i = 0; i != buffers_.size(); ++i) {
      static_cast<void>(buffer());  // from the oldest one to the newest one
    }
  }

 private:
  struct one {
    std::byte* memory = nullptr;
    cuda::CUevent copied = nullptr;
    std::optional<std::size_t> piece;  ///< a copy may still read it
  };
  struct copy {
    const std::byte* from = nullptr;
    std::uint64_t to = 0;
    std::uint64_t bytes = 0;
  };

  static cuda::CUcontext context_of(int ordinal, const std::string& name) {
    const cuda_driver& cu = cuda_driver::instance();
    cuda::CUdevice device = 0;
    cuda_driver::check(cu->cuDeviceGet(&device, ordinal), operation, name, "cuDeviceGet");
    return driver::primary_context(device, operation, name);
  }
  void check(cuda::CUresult result, const char* call) const {
    cuda_driver::check(result, operation, name_, call);
  }
  void wait_for(one& entry) {
    if (const auto piece = std::exchange(entry.piece, std::nullopt)) {
      const driver::context_scope scope(context_, operation, name_);
      check(cuda_driver::instance()->cuEventSynchronize(entry.copied), "cuEventSynchronize");
      report_(*piece);
    }
  }
  void start_copy() {
    const copy now = std::exchange(next_copy_, {});
    if (now.bytes != 0) {
      const driver::context_scope scope(context_, operation, name_);
      check(cuda_driver::instance()->cuMemcpyHtoDAsync_v2(
                first_ + now.to, now.from, now.bytes, stream_),
            "cuMemcpyHtoDAsync");
    }
  }
  /// With the context current.
  void free_all() noexcept {
    const cuda_driver& cu = cuda_driver::instance();
    if (stream_ != nullptr) {
      // After a failure, a copy may still read the buffers.
      cuda_driver::note(cu->cuStreamSynchronize(stream_), "cuStreamSynchronize");
      cuda_driver::note(cu->cuStreamDestroy_v2(stream_), "cuStreamDestroy");
    }
    for (one& each : buffers_) {
      if (each.copied != nullptr) {
        cuda_driver::note(cu->cuEventDestroy_v2(each.copied), "cuEventDestroy");
      }
    }
    // A stream of the process may wait for what the caller of this load is to signal, and the end
    // of a registration would wait for that stream.
    if (pinned_ != nullptr) {
      streams::retired_pages::of_process().add(std::move(staging_.memory), std::move(pinned_));
    }
  }

  const std::string name_;
  const int ordinal_;
  const cuda::CUcontext context_;
  cuda::CUdeviceptr first_ = 0;
  done report_;
  cuda::CUstream stream_ = nullptr;
  staging staging_;
  std::unique_ptr<streams::registered_page> pinned_;
  std::array<one, buffers> buffers_;
  std::size_t current_ = 0;
  copy next_copy_;  ///< what was added last
};

}  // namespace

std::unique_ptr<copy_lane> copy_lane::open(segment& into, done report) {
  if (into.ordinal() < 0) {
    auto lane = std::make_unique<host_lane>(into.name(), done());
    lane->bind(into, std::move(report));
    return lane;
  }
  auto lane = prepare(into.ordinal(), into.name());
  lane->bind(into, std::move(report));
  return lane;
}

std::unique_ptr<copy_lane> copy_lane::prepare(int ordinal, const std::string& name) {
  return std::make_unique<gpu_lane>(ordinal, name);
}

std::unique_ptr<copy_lane> copy_lane::to_nowhere(const std::string& name, done report) {
  return std::make_unique<host_lane>(name, std::move(report));
}

}  // namespace gpushm::tensors
