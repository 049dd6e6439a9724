// SPDX-License-Identifier: Apache-2.0
#include "torch_pool.hpp"

#include <dlfcn.h>
#include <nanobind/stl/string.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "client.hpp"
#include "gil.hpp"
#include "handle.hpp"
#include "process_state.hpp"
#include "segment.hpp"

namespace gpushm_python {
namespace {

namespace nb = nanobind;

/// PyTorch calls an allocator with a size, a device and a stream: nothing that says which pool it
/// is. So each pool that exists has a function of its own, of this many.
constexpr std::size_t max_pools = 32;

struct pool {
  std::shared_ptr<gpushm_client> client;
  std::string name;
  std::uint64_t next = 0;  ///< number of the next segment
  std::uint64_t live = 0;  ///< segments that exist
  failure last;            ///< why the last allocation failed
};

/// Memory is released by its address, on any thread, also after the pool's Python object.
struct pools {
  std::mutex mutex;
  std::array<std::shared_ptr<pool>, max_pools> slots;
  struct allocation {
    std::shared_ptr<pool> of;
    std::shared_ptr<gpushm_segment> segment;
  };
  std::unordered_map<void*, allocation> allocations;
};
pools& all() {
  return process_state<pools>();
}

/// Without the GIL, or with it; calls nothing of Python. Null: no memory.
void* allocate(std::size_t slot, ssize_t size, int device) noexcept {
  try {
    std::shared_ptr<pool> pool;
    std::string name;
    {
      const std::lock_guard lock(all().mutex);
      pool = all().slots.at(slot);
      if (pool == nullptr || size <= 0) {
        return nullptr;
      }
      name = pool->name + "/" + std::to_string(pool->next++);
    }
    auto options = with_size<gpushm_create_options>();
    const std::string ordinal = std::to_string(device);
    options.size_bytes = static_cast<std::uint64_t>(size);
    options.device = text(ordinal);
    gpushm_segment* made = nullptr;
    failure failed =
        failure::of(gpushm_client_create(pool->client.get(), text(name), &options, &made));
    std::shared_ptr<gpushm_segment> segment;
    if (failed.code() == GPUSHM_OK) {
      segment = own_segment(made);
      failed = failure::of(gpushm_segment_publish(made, nullptr, 0));
    }
    const std::lock_guard lock(all().mutex);
    if (failed.code() != GPUSHM_OK) {
      pool->last = std::move(failed);
      return nullptr;
    }
    void* const memory = gpushm_segment_mutable_data(made);
    all().allocations[memory] = {pool, std::move(segment)};
    ++pool->live;
    return memory;
  } catch (...) {
    return nullptr;  // of memory of the host; no exception may reach PyTorch
  }
}

/// Functions of the driver that is loaded already: the memory is its.
class driver {
 public:
  driver() : library_(::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)) {}
  driver(const driver&) = delete;
  driver& operator=(const driver&) = delete;
  ~driver() {
    if (library_ != nullptr) {
      ::dlclose(library_);
    }
  }
  template <typename... Arguments>
  [[nodiscard]] bool call(const char* name, Arguments... arguments) const {
    void* const found = library_ == nullptr ? nullptr : ::dlsym(library_, name);
    return found != nullptr && reinterpret_cast<int (*)(Arguments...)>(found)(arguments...) == 0;
  }

 private:
  void* library_;
};

/// Waits until the GPU has done what all its streams were given: memory of a pool may be in use on
/// any of them when PyTorch returns it, and unmapping does not wait as cudaFree does. A failure (no
/// context left, a lost GPU) has nothing to wait for.
void synchronize(int ordinal) {
  const driver cuda;
  int device = 0;
  void* context = nullptr;
  if (!cuda.call("cuDeviceGet", &device, ordinal) ||
      !cuda.call("cuDevicePrimaryCtxRetain", &context, device)) {
    return;
  }
  if (cuda.call("cuCtxPushCurrent_v2", context)) {
    static_cast<void>(cuda.call("cuCtxSynchronize"));
    static_cast<void>(cuda.call("cuCtxPopCurrent_v2", &context));
  }
  static_cast<void>(cuda.call("cuDevicePrimaryCtxRelease_v2", device));
}

void release(void* memory) noexcept {
  pools::allocation last;  // closed without the mutex
  {
    const std::lock_guard lock(all().mutex);
    const auto allocation = all().allocations.find(memory);
    if (allocation == all().allocations.end()) {
      return;
    }
    last = std::move(allocation->second);
    all().allocations.erase(allocation);
  }
  without_gil([&] {
    synchronize(gpushm_segment_ordinal(last.segment.get()));
    last.segment.reset();
  });
  const std::lock_guard lock(all().mutex);
  --last.of->live;
}

/// gpushm._core.TorchPool.
class torch_pool {
 public:
  torch_pool(const client_object& client, std::string name) : pool_(std::make_shared<pool>()) {
    pool_->client = client.handle.get("MemPool");
    pool_->name = std::move(name);
    const std::lock_guard lock(all().mutex);
    while (slot_ != max_pools && all().slots.at(slot_) != nullptr) {
      ++slot_;
    }
    if (slot_ == max_pools) {
      throw nb::value_error("this process has 32 pools already (close one)");
    }
    all().slots.at(slot_) = pool_;
  }
  torch_pool(const torch_pool&) = delete;
  torch_pool& operator=(const torch_pool&) = delete;
  ~torch_pool() { close(); }

  /// Again: no effect. Memory that is allocated stays.
  void close() noexcept {
    const std::lock_guard lock(all().mutex);
    if (slot_ != max_pools) {
      all().slots.at(slot_) = nullptr;
      slot_ = max_pools;
    }
  }
  [[nodiscard]] std::string malloc_symbol() const {
    return "gpushm_torch_malloc_" + std::to_string(slot_);
  }
  [[nodiscard]] std::uint64_t live() const {
    const std::lock_guard lock(all().mutex);
    return pool_->live;
  }
  [[nodiscard]] nb::object last_error() const {
    failure last;
    {
      const std::lock_guard lock(all().mutex);
      last = pool_->last;
    }
    return last.code() == GPUSHM_OK ? nb::object(nb::none()) : last.exception();
  }

 private:
  std::shared_ptr<pool> pool_;
  std::size_t slot_ = 0;
};

}  // namespace

void register_torch_pool(nb::module_& module) {
  nb::class_<torch_pool>(module,
                         "TorchPool",
                         nb::is_final(),
                         "Allocates memory of GPUs as segments ``name/0``, ``name/1``, …, by C "
                         "functions that PyTorch calls. Use gpushm.MemPool.")
      .def(nb::init<const client_object&, std::string>(),
           nb::arg("client"),
           nb::arg("name"),
           nb::sig("def __init__(self, client: Client, name: str) -> None"))
      .def("close",
           &torch_pool::close,
           nb::sig("def close(self) -> None"),
           "No more allocations. Memory that is allocated stays.")
      .def_prop_ro("malloc_symbol",
                   &torch_pool::malloc_symbol,
                   nb::sig("def malloc_symbol(self) -> str"),
                   "Of this module: ``void* f(ssize_t size, int device, cudaStream_t stream)``.")
      .def_prop_ro("live",
                   &torch_pool::live,
                   nb::sig("def live(self) -> int"),
                   "Number of segments that exist.")
      .def_prop_ro("last_error",
                   &torch_pool::last_error,
                   nb::sig("def last_error(self) -> Exception | None"),
                   "Why the last allocation failed that did.");
}

}  // namespace gpushm_python

// PyTorch's CUDAPluggableAllocator. The stream is not used: memory is new when it is allocated, and
// other streams may use it, too, when it is freed.
#define GPUSHM_EXPORT extern "C" __attribute__((visibility("default")))
#define GPUSHM_MALLOC(slot)                                  \
  GPUSHM_EXPORT void* gpushm_torch_malloc_##slot(            \
      ssize_t size, int device, void* /*stream*/) noexcept { \
    static_assert((slot) < gpushm_python::max_pools);        \
    return gpushm_python::allocate(slot, size, device);      \
  }
GPUSHM_MALLOC(0)
GPUSHM_MALLOC(1)
GPUSHM_MALLOC(2)
GPUSHM_MALLOC(3)
GPUSHM_MALLOC(4)
GPUSHM_MALLOC(5)
GPUSHM_MALLOC(6)
GPUSHM_MALLOC(7)
GPUSHM_MALLOC(8)
GPUSHM_MALLOC(9)
GPUSHM_MALLOC(10)
GPUSHM_MALLOC(11)
GPUSHM_MALLOC(12)
GPUSHM_MALLOC(13)
GPUSHM_MALLOC(14)
GPUSHM_MALLOC(15)
GPUSHM_MALLOC(16)
GPUSHM_MALLOC(17)
GPUSHM_MALLOC(18)
GPUSHM_MALLOC(19)
GPUSHM_MALLOC(20)
GPUSHM_MALLOC(21)
GPUSHM_MALLOC(22)
GPUSHM_MALLOC(23)
GPUSHM_MALLOC(24)
GPUSHM_MALLOC(25)
GPUSHM_MALLOC(26)
GPUSHM_MALLOC(27)
GPUSHM_MALLOC(28)
GPUSHM_MALLOC(29)
GPUSHM_MALLOC(30)
GPUSHM_MALLOC(31)

GPUSHM_EXPORT void gpushm_torch_free(void* memory,
                                     std::size_t /*size*/,
                                     int /*device*/,
                                     void* /*stream*/) noexcept {
  gpushm_python::release(memory);
}
