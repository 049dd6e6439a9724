// SPDX-License-Identifier: Apache-2.0
// Events, and their handles, which need a /dev/shm that both processes share (I7).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/unique_fd.hpp"
#include "testing/fake_driver/state.hpp"
#include "testing/fake_driver/streams.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::entry;
using gpushm::fake::state;

namespace {

// Shared by all processes that have the event open.
struct event_page {
  std::atomic<std::uint64_t> recorded;
  std::atomic<std::uint64_t> completed;
  std::atomic<std::int64_t> completed_at_ns;
};

struct event {
  event() = default;
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  ~event() {
    ::munmap(page, sizeof(event_page));
    if (!path.empty()) {
      ::unlink(path.c_str());
    }
  }
  [[nodiscard]] bool done() const { return page->completed >= page->recorded; }

  event_page* page = nullptr;
  std::string path;  // of an interprocess event created here
  // Of the last record by this process; guarded by the state's mutex.
  std::shared_ptr<std::atomic<bool>> last_done;
  unsigned int flags = 0;
};

struct handle_layout {
  char magic[8];
  std::int32_t pid;
  std::uint32_t unused;
  std::uint64_t number;
  char rest[40];
};
static_assert(sizeof(handle_layout) == ipc_handle_bytes);
constexpr char handle_magic[8] = {'f', 'a', 'k', 'e', 'e', 'v', 't', '1'};

// Guarded by the state's mutex; never destroyed, like the state.
std::map<CUevent, std::shared_ptr<event>>& events() {
  static auto* const created = new std::map<CUevent, std::shared_ptr<event>>();
  return *created;
}

std::shared_ptr<event> find_event(CUevent handle) {
  const std::lock_guard lock(state().mutex);
  const auto found = events().find(handle);
  return found == events().end() ? nullptr : found->second;
}

std::string event_path(std::uint64_t number) {
  char path[64];
  std::snprintf(path,
                sizeof(path),
                "/dev/shm/gpushm-fake-event-%016llx",
                static_cast<unsigned long long>(number));
  return path;
}

event_page* map_page(int fd) {
  void* const page = ::mmap(nullptr,
                            sizeof(event_page),
                            PROT_READ | PROT_WRITE,
                            MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0),
                            fd,
                            0);
  return page == MAP_FAILED ? nullptr : static_cast<event_page*>(page);
}

CUresult add_event(std::shared_ptr<event> created, CUevent* handle) {
  *handle = reinterpret_cast<CUevent>(created.get());
  const std::lock_guard lock(state().mutex);
  events().emplace(*handle, std::move(created));
  return CUDA_SUCCESS;
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

CUresult cuda::cuEventCreate(CUevent* handle, unsigned int flags) {
  return entry("cuEventCreate", [&] {
    if (fake::current_context() == nullptr) {
      return fake::why_no_context();
    }
    const bool interprocess = (flags & CU_EVENT_INTERPROCESS) != 0;
    if (interprocess && (flags & CU_EVENT_DISABLE_TIMING) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto created = std::make_shared<event>();
    created->flags = flags;
    created->page = map_page(-1);
    return created->page == nullptr ? CUDA_ERROR_OUT_OF_MEMORY
                                    : add_event(std::move(created), handle);
  });
}

CUresult cuda::cuEventDestroy_v2(CUevent handle) {
  return entry("cuEventDestroy_v2", [&] {
    const std::lock_guard lock(state().mutex);
    return events().erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult cuda::cuEventRecord(CUevent handle, CUstream stream) {
  return entry("cuEventRecord", [&] {
    const auto found = find_event(handle);
    const auto where = fake::find_stream(stream);
    if (found == nullptr || where == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::uint64_t ticket = ++found->page->recorded;
    auto done = std::make_shared<std::atomic<bool>>(false);
    {
      const std::lock_guard lock(state().mutex);
      found->last_done = done;
    }
    where->enqueue([found, ticket, done = std::move(done)](const std::atomic<bool>&) {
      found->page->completed_at_ns = now_ns();
      *done = true;
      // The record before may be on a slower stream.
      for (std::uint64_t seen = found->page->completed;
           seen < ticket && !found->page->completed.compare_exchange_weak(seen, ticket);) {
      }
    });
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned int flags) {
  return entry("cuStreamWaitEvent", [&] {
    const auto found = find_event(handle);
    const auto where = fake::find_stream(stream);
    if (found == nullptr || where == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // The last record of now: a later one is another point.
    std::shared_ptr<std::atomic<bool>> done;
    {
      const std::lock_guard lock(state().mutex);
      done = found->last_done;
    }
    const auto is_met = [found, done, ticket = found->page->recorded.load()] {
      return done ? done->load() : found->page->completed >= ticket;
    };
    where->enqueue([is_met](const std::atomic<bool>& ended) {
      while (!ended && !is_met()) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    });
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuEventQuery(CUevent handle) {
  return entry("cuEventQuery", [&] {
    const auto found = find_event(handle);
    if (found == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    return found->done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuda::cuEventSynchronize(CUevent handle) {
  return entry("cuEventSynchronize", [&] {
    const auto found = find_event(handle);
    if (found == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    while (!found->done()) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return entry("cuEventElapsedTime", [&] {
    const auto from = find_event(start);
    const auto to = find_event(end);
    if (from == nullptr || to == nullptr || from->page->recorded == 0 || to->page->recorded == 0 ||
        ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!from->done() || !to->done()) {
      return CUDA_ERROR_NOT_READY;
    }
    const std::int64_t elapsed_ns = to->page->completed_at_ns - from->page->completed_at_ns;
    *milliseconds = static_cast<float>(elapsed_ns) / 1e6F;
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent which) {
  return entry("cuIpcGetEventHandle", [&] {
    const auto found = find_event(which);
    if (found == nullptr || handle == nullptr || (found->flags & CU_EVENT_INTERPROCESS) == 0) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    handle_layout layout{};
    if (!found->path.empty()) {
      layout.number = std::strtoull(
          found->path.c_str() + found->path.size() - 2 * sizeof(layout.number), nullptr, 16);
    } else {
      if (::getrandom(&layout.number, sizeof(layout.number), 0) != ssize_t{sizeof(layout.number)}) {
        return CUDA_ERROR_OPERATING_SYSTEM;
      }
      const std::string path = event_path(layout.number);
      const base::unique_fd fd(
          ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
      if (!fd || ::ftruncate(fd.get(), sizeof(event_page)) != 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
      }
      event_page* const page = map_page(fd.get());
      if (page == nullptr) {
        ::unlink(path.c_str());
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      page->recorded = found->page->recorded.load();
      page->completed = found->page->completed.load();
      ::munmap(std::exchange(found->page, page), sizeof(event_page));
      found->path = path;
    }
    std::memcpy(layout.magic, handle_magic, sizeof(handle_magic));
    layout.pid = ::getpid();
    std::memcpy(handle->reserved, &layout, sizeof(layout));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuIpcOpenEventHandle(CUevent* opened, CUipcEventHandle handle) {
  return entry("cuIpcOpenEventHandle", [&] {
    if (fake::current_context() == nullptr) {
      return fake::why_no_context();
    }
    handle_layout layout{};
    std::memcpy(&layout, handle.reserved, sizeof(layout));
    if (std::memcmp(layout.magic, handle_magic, sizeof(handle_magic)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (layout.pid == ::getpid()) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    const base::unique_fd fd(
        ::open(event_path(layout.number).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    event_page* const page = fd ? map_page(fd.get()) : nullptr;
    if (page == nullptr) {
      return CUDA_ERROR_MAP_FAILED;
    }
    auto created = std::make_shared<event>();
    created->page = page;
    created->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    return add_event(std::move(created), opened);
  });
}
