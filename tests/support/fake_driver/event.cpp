// SPDX-License-Identifier: Apache-2.0
// Events, and their handles, which need a /dev/shm that both processes share (I7).
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/support/fake_driver/event_file.hpp"
#include "tests/support/fake_driver/state.hpp"
#include "tests/support/fake_driver/streams.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::entry;
using gpushm::fake::event_words;
using gpushm::fake::shared_event;
using gpushm::fake::state;

namespace {

constexpr unsigned int record_external = 1;

struct event {
  event() = default;
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  ~event() {
    if (created_shared) {
      fake::free_shared_event(shared);
    }
  }
  [[nodiscard]] event_words& words() { return shared.words == nullptr ? own_words : *shared.words; }
  [[nodiscard]] bool done() { return words().reached(words().recorded); }

  event_words own_words{};
  shared_event shared;  // without words: of this process only
  bool created_shared = false;
  // Of the last record by this process; guarded by the state's mutex.
  std::shared_ptr<std::atomic<bool>> last_done;
  std::uint32_t last_ticket = 0;
  std::atomic<std::int64_t> completed_at_ns{0};
  unsigned int flags = 0;
};

// As measured on an H200, driver 580.
struct handle_layout {
  std::int32_t pid;
  char zeros[4];
  std::uint64_t file;
  std::uint32_t number;
  char ignored[44];
};
static_assert(sizeof(handle_layout) == ipc_handle_bytes);

// Guarded by the state's mutex; never destroyed, like the state.
std::map<CUevent, std::shared_ptr<event>>& events() {
  static auto* const created = new std::map<CUevent, std::shared_ptr<event>>();
  return *created;
}

std::shared_ptr<event> find_event(CUevent handle) {
  const std::lock_guard lock(state().mutex);
  const auto entry = events().find(handle);
  return entry == events().end() ? nullptr : entry->second;
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

CUresult record(CUevent handle, CUstream stream, unsigned int flags) {
  const auto entry = find_event(handle);
  const auto where = fake::find_stream(stream);
  if (entry == nullptr || where == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (flags > record_external || (flags == record_external && !where->captured())) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto done = std::make_shared<std::atomic<bool>>(false);
  std::uint32_t ticket = 0;
  {
    const std::lock_guard lock(state().mutex);
    ticket = ++entry->words().recorded;
    entry->last_done = done;
    entry->last_ticket = ticket;
  }
  where->enqueue([entry, ticket, done = std::move(done)](const std::atomic<bool>&) {
    entry->completed_at_ns = now_ns();
    *done = true;
    // The record before may be on a slower stream.
    event_words& words = entry->words();
    for (std::uint32_t seen = words.completed;
         !words.reached(ticket) && !words.completed.compare_exchange_weak(seen, ticket);) {
    }
  });
  return CUDA_SUCCESS;
}

CUresult wait_for(CUstream stream, CUevent handle, unsigned int flags) {
  const auto entry = find_event(handle);
  const auto where = fake::find_stream(stream);
  if (entry == nullptr || where == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The last record of now: a later one is another point.
  std::shared_ptr<std::atomic<bool>> done;
  const std::uint32_t ticket = entry->words().recorded;
  {
    const std::lock_guard lock(state().mutex);
    if (entry->last_ticket == ticket) {  // else another process recorded after this one
      done = entry->last_done;
    }
  }
  const auto is_met = [entry, done, ticket] {
    return done ? done->load() : entry->words().reached(ticket);
  };
  where->enqueue([is_met](const std::atomic<bool>& ended) {
    while (!ended && !is_met()) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  return CUDA_SUCCESS;
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
    if (interprocess) {
      if (const CUresult result = fake::create_shared_event(created->shared);
          result != CUDA_SUCCESS) {
        return result;
      }
      created->created_shared = true;
    }
    return add_event(std::move(created), handle);
  });
}

CUresult cuda::cuEventDestroy_v2(CUevent handle) {
  return entry("cuEventDestroy_v2", [&] {
    const std::lock_guard lock(state().mutex);
    return events().erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult cuda::cuEventRecord(CUevent handle, CUstream stream) {
  return entry("cuEventRecord", [&] { return record(handle, stream, 0); });
}

CUresult cuda::cuEventRecord_ptsz(CUevent handle, CUstream stream) {
  return entry("cuEventRecord_ptsz", [&] { return record(handle, fake::per_thread(stream), 0); });
}

CUresult cuda::cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned int flags) {
  return entry("cuEventRecordWithFlags", [&] { return record(handle, stream, flags); });
}

CUresult cuda::cuEventRecordWithFlags_ptsz(CUevent handle, CUstream stream, unsigned int flags) {
  return entry("cuEventRecordWithFlags_ptsz",
               [&] { return record(handle, fake::per_thread(stream), flags); });
}

CUresult cuda::cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned int flags) {
  return entry("cuStreamWaitEvent", [&] { return wait_for(stream, handle, flags); });
}

CUresult cuda::cuStreamWaitEvent_ptsz(CUstream stream, CUevent handle, unsigned int flags) {
  return entry("cuStreamWaitEvent_ptsz",
               [&] { return wait_for(fake::per_thread(stream), handle, flags); });
}

CUresult cuda::cuEventQuery(CUevent handle) {
  return entry("cuEventQuery", [&] {
    const auto entry = find_event(handle);
    if (entry == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    return entry->done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuda::cuEventSynchronize(CUevent handle) {
  return entry("cuEventSynchronize", [&] {
    const auto entry = find_event(handle);
    if (entry == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    while (!entry->done()) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return entry("cuEventElapsedTime", [&] {
    const auto from = find_event(start);
    const auto to = find_event(end);
    if (from == nullptr || to == nullptr || from->words().recorded == 0 ||
        to->words().recorded == 0 || ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!from->done() || !to->done()) {
      return CUDA_ERROR_NOT_READY;
    }
    const std::int64_t elapsed_ns = to->completed_at_ns - from->completed_at_ns;
    *milliseconds = static_cast<float>(elapsed_ns) / 1e6F;
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  return entry("cuIpcGetEventHandle", [&] {
    const auto entry = find_event(event);
    if (entry == nullptr || handle == nullptr || !entry->created_shared) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    const fake::event_place place = fake::place_of(entry->shared);
    handle_layout layout{};
    layout.pid = place.pid;
    layout.file = place.file;
    layout.number = place.number;
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
    if (layout.pid == ::getpid()) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    auto created = std::make_shared<event>();
    if (const CUresult result =
            fake::open_shared_event({layout.pid, layout.file, layout.number}, created->shared);
        result != CUDA_SUCCESS) {
      return result;
    }
    created->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    return add_event(std::move(created), opened);
  });
}
