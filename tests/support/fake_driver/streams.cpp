// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_driver/streams.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_driver/state.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::as_pointer;
using gpushm::fake::entry;
using gpushm::fake::state;
using gpushm::fake::stream;

namespace {

// Guarded by the state's mutex; never destroyed, like the state.
struct tables {
  std::map<CUstream, std::shared_ptr<stream>> streams;
  std::map<std::size_t, std::shared_ptr<stream>> default_streams;  // by GPU
  std::vector<std::weak_ptr<stream>> all_streams;  // including destroyed ones with pending work
  // Nodes in the order in which they are executed.
  std::map<CUgraph, std::unique_ptr<stream::nodes>> graphs;
  std::map<CUgraphExec, std::unique_ptr<stream::nodes>> executables;
  std::map<CUgraphExec, stream::nodes> sources;  // of the nodes of each executable
};

tables& all() {
  static tables* const instance = new tables();
  return *instance;
}

std::shared_ptr<stream> make_stream(std::size_t gpu, bool blocking) {
  auto created = std::make_shared<stream>(gpu, blocking);
  created->start();
  auto& known = all().all_streams;
  known.erase(std::remove_if(known.begin(),
                             known.end(),
                             [](const std::weak_ptr<stream>& each) { return each.expired(); }),
              known.end());
  known.push_back(created);
  return created;
}

/// The default streams of a thread that uses these.
struct thread_streams {
  thread_streams() = default;
  thread_streams(const thread_streams&) = delete;
  thread_streams& operator=(const thread_streams&) = delete;
  ~thread_streams() {
    for (const auto& [context, each] : by_context) {
      each->finish();
    }
  }

  std::map<std::uint64_t, std::shared_ptr<stream>> by_context;
};
thread_local thread_streams own_streams;

template <typename Predicate>
std::vector<std::shared_ptr<stream>> streams_matching(Predicate&& matches) {
  std::vector<std::shared_ptr<stream>> streams;
  const std::lock_guard lock(state().mutex);
  for (const std::weak_ptr<stream>& each : all().all_streams) {
    if (auto alive = each.lock(); alive != nullptr && matches(*alive)) {
      streams.push_back(std::move(alive));
    }
  }
  return streams;
}

CUresult drain(const std::vector<std::shared_ptr<stream>>& streams) {
  CUresult result = CUDA_SUCCESS;
  for (const auto& each : streams) {
    if (const CUresult one = each->drain(); one != CUDA_SUCCESS) {
      result = one;
    }
  }
  return result;
}

bool satisfied(std::uint64_t current, std::uint64_t expected, unsigned int flags) {
  switch (flags & 3U) {
    case CU_STREAM_WAIT_VALUE_EQ:
      return current == expected;
    case CU_STREAM_WAIT_VALUE_AND:
      return (current & expected) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
      return ~(current | expected) != 0;
    default:
      return static_cast<std::int64_t>(current - expected) >= 0;
  }
}

bool is_word(CUdeviceptr address, bool write) {
  const std::lock_guard lock(state().mutex);
  return address % sizeof(std::uint64_t) == 0 &&
         state().ranges.allows(address, sizeof(std::uint64_t), write);
}

/// Streams of the process that wait for a word.
std::atomic<int>& waiting() {
  static std::atomic<int> count{0};
  return count;
}

/// As many waiting streams stop all others: CUDA_DEVICE_MAX_CONNECTIONS.
int connections() {
  static const int count = [] {
    constexpr int usual = 8;
    constexpr int most = 32;
    const char* const text =
        std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");            // NOLINT(concurrency-mt-unsafe)
    const int wanted = text == nullptr ? 0 : std::atoi(text);  // NOLINT(cert-err34-c): as CUDA
    return wanted == 0 ? usual : std::clamp(wanted, 1, most);
  }();
  return count;
}

constexpr std::chrono::microseconds shortest_pause{1};
constexpr std::chrono::microseconds longest_pause{200};

/// Polled, as on a GPU: the store may come from a process that does not use CUDA.
template <typename Predicate>
void poll(const std::atomic<bool>& ended, Predicate&& is_met) {
  for (auto pause = shortest_pause; !ended && !is_met();
       pause = std::min(pause * 2, longest_pause)) {
    std::this_thread::sleep_for(pause);
  }
}

void write_word(CUdeviceptr address, std::uint64_t value) {
  __atomic_store_n(static_cast<std::uint64_t*>(as_pointer(address)), value, __ATOMIC_SEQ_CST);
}

void wait_for_word(const std::atomic<bool>& ended,
                   CUdeviceptr address,
                   std::uint64_t value,
                   unsigned int flags) {
  const auto* const word = static_cast<const std::uint64_t*>(as_pointer(address));
  const auto is_met = [&] {
    return satisfied(__atomic_load_n(word, __ATOMIC_SEQ_CST), value, flags);
  };
  if (is_met()) {
    return;
  }
  ++waiting();
  poll(ended, is_met);
  --waiting();
}

bool are_valid(std::span<const CUstreamBatchMemOpParams> operations) {
  return std::all_of(operations.begin(), operations.end(), [](const auto& each) {
    const bool writes = each.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    return (writes || each.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64) &&
           is_word(each.address, writes);
  });
}

CUresult enqueue_operations(CUstream handle, std::span<const CUstreamBatchMemOpParams> operations) {
  const auto stream = fake::find_stream(handle);
  if (stream == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!are_valid(operations)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  stream->enqueue({{}, {operations.begin(), operations.end()}});
  return CUDA_SUCCESS;
}

void run_node(const stream::node& node, const std::atomic<bool>& ended) {
  if (node.run) {
    node.run(ended);
  }
  for (const CUstreamBatchMemOpParams& each : node.operations) {
    if (ended) {
      return;
    }
    if (each.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64) {
      write_word(each.address, each.value64);
    } else {
      wait_for_word(ended, each.address, each.value64, each.flags);
    }
  }
}

}  // namespace

void stream::start() {
  std::thread([self = shared_from_this()] { self->run(); }).detach();
}

void stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ended_ || finishing_ || !queue_.empty(); });
    if (ended_ || queue_.empty()) {
      queue_.clear();
      changed_.notify_all();
      return;
    }
    const work next = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    poll(ended_, [] { return waiting() < connections(); });
    next(ended_);
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void stream::enqueue(work item) {
  enqueue(node{std::move(item), {}});
}

void stream::enqueue(node item) {
  const std::lock_guard lock(mutex_);
  auto shared = std::make_shared<const node>(std::move(item));
  if (captured_) {
    captured_->push_back(std::move(shared));
    return;
  }
  queue_.emplace_back([what = std::move(shared)](const auto& ended) { run_node(*what, ended); });
  changed_.notify_all();
}

bool stream::begin_capture() {
  const std::lock_guard lock(mutex_);
  if (captured_) {
    return false;
  }
  captured_.emplace();
  return true;
}

std::optional<stream::nodes> stream::end_capture() {
  const std::lock_guard lock(mutex_);
  return std::exchange(captured_, std::nullopt);
}

std::optional<stream::nodes> stream::captured() {
  const std::lock_guard lock(mutex_);
  return captured_;
}

CUresult stream::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || (queue_.empty() && !busy_); });
  return ended_ ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

bool stream::idle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !busy_;
}

void stream::finish() {
  const std::lock_guard lock(mutex_);
  finishing_ = true;
  changed_.notify_all();
}

void stream::end() {
  std::unique_lock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
  // The caller may free the memory that running work uses.
  changed_.wait(lock, [&] { return !busy_; });
}

std::shared_ptr<stream> fake::find_stream(CUstream handle) {
  const std::lock_guard lock(state().mutex);
  if (handle != nullptr && handle != stream_legacy && handle != stream_per_thread) {
    const auto found = all().streams.find(handle);
    return found == all().streams.end() ? nullptr : found->second;
  }
  const fake::context* const current = fake::current_context();
  if (current == nullptr) {
    return nullptr;
  }
  if (handle == stream_per_thread) {
    auto& of_thread = own_streams.by_context[current->id];
    if (of_thread == nullptr) {
      of_thread = make_stream(current->gpu, true);
    }
    return of_thread;
  }
  auto& own = all().default_streams[current->gpu];
  if (own == nullptr) {
    own = make_stream(current->gpu, true);
  }
  return own;
}

CUresult fake::drain_all_streams() {
  return drain(streams_matching([](const stream&) { return true; }));
}

CUresult fake::drain_streams_of(std::size_t gpu) {
  return drain(streams_matching([&](const stream& each) { return each.gpu() == gpu; }));
}

bool fake::captures_blocking_stream(std::size_t gpu) {
  const auto streams =
      streams_matching([gpu](const stream& each) { return each.gpu() == gpu && each.blocking(); });
  return std::any_of(streams.begin(), streams.end(), [](const auto& each) {
    return each->captured().has_value();
  });
}

CUresult fake::drain_blocking_streams() {
  const fake::context* const current = fake::current_context();
  if (current == nullptr) {
    return fake::why_no_context();
  }
  return drain(streams_matching(
      [&](const stream& each) { return each.gpu() == current->gpu && each.blocking(); }));
}

void fake::end_streams_of(std::size_t gpu) {
  for (const auto& each :
       streams_matching([&](const stream& stream) { return stream.gpu() == gpu; })) {
    each->end();
  }
  const std::lock_guard lock(state().mutex);
  all().default_streams.erase(gpu);
  auto& streams = all().streams;
  for (auto at = streams.begin(); at != streams.end();) {
    at = at->second->gpu() == gpu ? streams.erase(at) : std::next(at);
  }
  // A later context gets new streams: waits must no longer include these.
  auto& known = all().all_streams;
  known.erase(std::remove_if(known.begin(),
                             known.end(),
                             [&](const std::weak_ptr<stream>& each) {
                               const auto alive = each.lock();
                               return alive == nullptr || alive->gpu() == gpu;
                             }),
              known.end());
}

CUresult cuda::cuStreamCreate(CUstream* handle, unsigned int flags) {
  return entry("cuStreamCreate", [&] {
    const std::lock_guard lock(state().mutex);
    const fake::context* const current = fake::current_context();
    if (current == nullptr) {
      return fake::why_no_context();
    }
    if (flags > CU_STREAM_NON_BLOCKING) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto created = make_stream(current->gpu, flags == CU_STREAM_DEFAULT);
    *handle = reinterpret_cast<CUstream>(created.get());
    all().streams.emplace(*handle, std::move(created));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuStreamDestroy_v2(CUstream handle) {
  return entry("cuStreamDestroy_v2", [&] {
    const std::lock_guard lock(state().mutex);
    const auto stream = all().streams.find(handle);
    if (stream == all().streams.end()) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    stream->second->finish();
    all().streams.erase(stream);
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuStreamSynchronize(CUstream handle) {
  return entry("cuStreamSynchronize", [&] {
    const auto found = fake::find_stream(handle);
    return found == nullptr    ? CUDA_ERROR_INVALID_HANDLE
           : found->captured() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                               : found->drain();
  });
}

CUresult cuda::cuStreamSynchronize_ptsz(CUstream handle) {
  return cuStreamSynchronize(fake::per_thread(handle));
}

CUresult cuda::cuStreamQuery(CUstream handle) {
  return entry("cuStreamQuery", [&] {
    const auto found = fake::find_stream(handle);
    if (found == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    return found->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuda::cuStreamQuery_ptsz(CUstream handle) {
  return cuStreamQuery(fake::per_thread(handle));
}

CUresult cuda::cuStreamWriteValue64_v2(CUstream handle,
                                       CUdeviceptr address,
                                       std::uint64_t value,
                                       unsigned int flags) {
  return entry("cuStreamWriteValue64_v2", [&] {
    const CUstreamBatchMemOpParams work{
        CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags, 0, 0};
    return enqueue_operations(handle, {&work, 1});
  });
}

CUresult cuda::cuStreamWaitValue64_v2(CUstream handle,
                                      CUdeviceptr address,
                                      std::uint64_t value,
                                      unsigned int flags) {
  return entry("cuStreamWaitValue64_v2", [&] {
    const CUstreamBatchMemOpParams work{
        CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags, 0, 0};
    return enqueue_operations(handle, {&work, 1});
  });
}

CUresult cuda::cuStreamBatchMemOp_v2(CUstream handle,
                                     unsigned int count,
                                     CUstreamBatchMemOpParams* operations,
                                     unsigned int flags) {
  return entry("cuStreamBatchMemOp_v2", [&] {
    constexpr unsigned int most = 256;
    if (flags != 0 || count == 0 || count > most || operations == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return enqueue_operations(handle, {operations, count});
  });
}

CUresult cuda::cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return entry("cuStreamGetCtx", [&] {
    const auto stream = fake::find_stream(handle);
    if (stream == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::lock_guard lock(state().mutex);
    *context = reinterpret_cast<CUcontext>(state().contexts.at(stream->gpu()).get());
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuStreamGetId(CUstream handle, unsigned long long* id) {
  return entry("cuStreamGetId", [&] {
    const auto stream = fake::find_stream(handle);
    if (stream == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    *id = stream->id();
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return entry("cuStreamIsCapturing", [&] {
    const auto found = fake::find_stream(handle);
    if (handle == nullptr && found != nullptr && fake::captures_blocking_stream(found->gpu())) {
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    const bool captures = found != nullptr && found->captured();
    *status = captures ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return found == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  });
}

CUresult cuda::cuStreamIsCapturing_ptsz(CUstream handle, CUstreamCaptureStatus* status) {
  return cuStreamIsCapturing(fake::per_thread(handle), status);
}

// ---- graphs: of one stream, so that each node depends on the one before ----

CUresult cuda::cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  return entry("cuStreamBeginCapture_v2", [&] {
    const auto stream = fake::find_stream(handle);
    if (stream == nullptr || handle == nullptr) {  // the default stream cannot be captured
      return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return stream->begin_capture() ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
  });
}

CUresult cuda::cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return entry("cuStreamEndCapture", [&] {
    const auto stream = fake::find_stream(handle);
    if (stream == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    auto captured = stream->end_capture();
    if (!captured) {
      return CUDA_ERROR_ILLEGAL_STATE;
    }
    auto made = std::make_unique<stream::nodes>(std::move(*captured));
    *graph = reinterpret_cast<CUgraph>(made.get());
    const std::lock_guard lock(state().mutex);
    all().graphs.emplace(*graph, std::move(made));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuStreamGetCaptureInfo_v3(CUstream handle,
                                         CUstreamCaptureStatus* status,
                                         std::uint64_t* id,
                                         CUgraph* graph,
                                         const CUgraphNode** dependencies,
                                         const CUgraphEdgeData** edges,
                                         std::size_t* count) {
  return entry("cuStreamGetCaptureInfo_v3", [&] {
    const auto stream = fake::find_stream(handle);
    if (stream == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (id != nullptr || graph != nullptr || edges != nullptr) {
      return CUDA_ERROR_NOT_SUPPORTED;  // this project does not ask
    }
    const auto captured = stream->captured();
    *status = captured ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    // Valid until the next call that captures something, by this thread.
    thread_local CUgraphNode last = nullptr;
    last = captured && !captured->empty()
               ? reinterpret_cast<CUgraphNode>(const_cast<stream::node*>(captured->back().get()))
               : nullptr;
    if (dependencies != nullptr) {
      *dependencies = &last;
    }
    if (count != nullptr) {
      *count = last == nullptr ? 0 : 1;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuGraphInstantiateWithFlags(CUgraphExec* executable,
                                           CUgraph graph,
                                           unsigned long long flags) {
  return entry("cuGraphInstantiateWithFlags", [&] {
    const std::lock_guard lock(state().mutex);
    const auto entry = all().graphs.find(graph);
    if (entry == all().graphs.end() || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto made = std::make_unique<stream::nodes>(*entry->second);
    *executable = reinterpret_cast<CUgraphExec>(made.get());
    all().sources.emplace(*executable, *made);
    all().executables.emplace(*executable, std::move(made));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuGraphExecBatchMemOpNodeSetParams(CUgraphExec executable,
                                                  CUgraphNode node,
                                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS* values) {
  return entry("cuGraphExecBatchMemOpNodeSetParams", [&] {
    const std::span wanted(values->paramArray, values->count);
    if (values->flags != 0 || !are_valid(wanted)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(state().mutex);
    const auto entry = all().executables.find(executable);
    if (entry == all().executables.end()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const stream::nodes& from = all().sources.at(executable);
    const auto at = std::find_if(from.begin(), from.end(), [&](const auto& each) {
      return static_cast<const void*>(each.get()) == static_cast<const void*>(node);
    });
    if (at == from.end() || (*at)->operations.size() != wanted.size()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // Launches that are enqueued already keep their node.
    (*entry->second)[static_cast<std::size_t>(at - from.begin())] =
        std::make_shared<const stream::node>(stream::node{{}, {wanted.begin(), wanted.end()}});
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  return entry("cuGraphLaunch", [&] {
    const auto on = fake::find_stream(handle);
    if (on == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    stream::nodes work;
    {
      const std::lock_guard lock(state().mutex);
      const auto found = all().executables.find(executable);
      if (found == all().executables.end()) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      work = *found->second;
    }
    on->enqueue([work = std::move(work)](const std::atomic<bool>& ended) {
      for (const auto& each : work) {
        if (ended) {
          return;
        }
        run_node(*each, ended);
      }
    });
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuGraphExecDestroy(CUgraphExec executable) {
  return entry("cuGraphExecDestroy", [&] {
    const std::lock_guard lock(state().mutex);
    all().sources.erase(executable);
    return all().executables.erase(executable) == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CUresult cuda::cuGraphDestroy(CUgraph graph) {
  return entry("cuGraphDestroy", [&] {
    const std::lock_guard lock(state().mutex);
    return all().graphs.erase(graph) == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}
