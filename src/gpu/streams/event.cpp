// SPDX-License-Identifier: Apache-2.0
#include "gpu/streams/event.hpp"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/syscall.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpu/streams/stream_operations.hpp"
#include "gpushm/error.hpp"

namespace gpushm::streams {

namespace {

using driver::cuda_driver;

/// The events that are not in use, by the life of their context: an event belongs to one context,
/// and does not exist after its end.
class event_pool {
 public:
  /// Never destroyed: points may exist until the process ends.
  static event_pool& of_process() {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed
    static auto* const instance = new event_pool();
    return *instance;
  }

  [[nodiscard]] cuda::CUevent take(cuda::CUcontext context,
                                   std::uint64_t life,
                                   std::string_view operation,
                                   std::string_view object) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = free_.find(life); found != free_.end() && !found->second.empty()) {
        const cuda::CUevent result = found->second.back();
        found->second.pop_back();
        return result;
      }
    }
    const driver::context_scope scope(context, operation, object);
    cuda::CUevent created = nullptr;
    cuda_driver::check(
        cuda_driver::instance()->cuEventCreate(&created, cuda::CU_EVENT_DISABLE_TIMING),
        operation,
        object,
        "cuEventCreate");
    return created;
  }
  void give_back(cuda::CUevent event, std::uint64_t life) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      free_[life].push_back(event);
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it is not used again
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::vector<cuda::CUevent>> free_;
};

}  // namespace

std::uint64_t stream_id(cuda::CUstream stream,
                        std::string_view operation,
                        std::string_view object) {
  const cuda_driver& cu = cuda_driver::instance();
  unsigned long long id = 0;
  const cuda::CUresult result = cu->cuStreamGetId(stream, &id);
  if (result == cuda::CUDA_SUCCESS) {
    return id;
  }
  if (result != cuda::CUDA_ERROR_NOT_FOUND) {
    cuda_driver::check(result, operation, object, "cuStreamGetId");
  }
  // A driver before CUDA 12. The per-thread stream, 2, is another one in each thread.
  cuda::CUcontext context = nullptr;
  cuda_driver::check(cu->cuStreamGetCtx(stream, &context), operation, object, "cuStreamGetCtx");
  constexpr std::uintptr_t per_thread_stream = 2;
  const auto handle = reinterpret_cast<std::uintptr_t>(stream);
  const std::size_t thread = handle == per_thread_stream
                                 ? std::hash<std::thread::id>()(std::this_thread::get_id())
                                 : std::size_t{0};
  const std::uint64_t in_context = reinterpret_cast<std::uintptr_t>(context) * 0x9E3779B97F4A7C15U;
  return handle ^ in_context ^ thread;
}

void check_not_captured(cuda::CUstream stream,
                        std::string_view operation,
                        std::string_view object) {
  if (is_capturing(stream)) {
    throw error(errc::invalid_argument,
                operation,
                object,
                "this stream is captured, and each launch of the graph would do the same again",
                "call it between the launches, or use a timeline in the graph");
  }
}

struct stream_point::event {
  event() = default;
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  ~event() {
    if (handle != nullptr) {
      event_pool::of_process().give_back(handle, life);
    }
  }
  [[nodiscard]] bool exists() const noexcept { return driver::context_life(context) == life; }

  cuda::CUevent handle = nullptr;
  cuda::CUcontext context = nullptr;
  std::uint64_t life = 0;
};

stream_point stream_point::record(cuda::CUstream stream,
                                  std::string_view operation,
                                  std::string_view object) {
  const cuda_driver& cu = cuda_driver::instance();
  auto point = std::make_shared<event>();
  cuda_driver::check(
      cu->cuStreamGetCtx(stream, &point->context), operation, object, "cuStreamGetCtx");
  point->life = driver::context_life(point->context);
  point->handle = event_pool::of_process().take(point->context, point->life, operation, object);
  cuda_driver::check(cu->cuEventRecord(point->handle, stream), operation, object, "cuEventRecord");
  return stream_point(std::move(point));
}

bool stream_point::is_reached() const noexcept {
  const cuda_driver* const cu = cuda_driver::try_instance();
  return cu == nullptr || !recorded_->exists() ||
         (*cu)->cuEventQuery(recorded_->handle) != cuda::CUDA_ERROR_NOT_READY;
}

void stream_point::enqueue_wait(cuda::CUstream stream,
                                std::string_view operation,
                                std::string_view object) const {
  const cuda_driver& cu = cuda_driver::instance();
  if (recorded_->exists()) {
    cuda_driver::check(cu->cuStreamWaitEvent(stream, recorded_->handle, 0),
                       operation,
                       object,
                       "cuStreamWaitEvent");
  }
}

bool stream_point::wait(std::chrono::steady_clock::time_point deadline) const noexcept {
  while (!is_reached()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    base::pause_before_retry(std::chrono::milliseconds(1));
  }
  return true;
}

bool stream_point::is_lost() const noexcept {
  return !recorded_->exists();
}

cuda::CUcontext stream_point::context() const noexcept {
  return recorded_->context;
}

}  // namespace gpushm::streams
