// SPDX-License-Identifier: Apache-2.0
// A producer and a consumer that share memory by the CUDA runtime's own IPC, as the published
// experiments do: handles and a "ready" file in a shared volume. They use nothing of gpushm.
//
//   runtime produce DIR [--bytes N] [--device N] [--big MIB]
//   runtime consume DIR [--device N] [--big MIB]
//
// 1. N bytes (1 MiB unless given; 40 is "ten ints"): the consumer opens the handle, checks every
// byte, writes others; the
//    producer checks these.
// 2. An event recorded before the handle was taken: the consumer waits for it.
// 3. The same event recorded again, behind work that is still held up: the consumer's stream must
// stay busy until the
//    producer lets go, and must see the data that the producer wrote before the record.
// 4. The consumer records the imported event; the producer waits for it.
// 5. --big: the bandwidth of a copy out of the consumer's mapping and of one within its own memory.
// The producer also opens its own handle: that must stay the error that it is.
//
// Exit status 0: both directions of memory were right. Everything else is in the RESULT line.
#include <cuda_runtime.h>

#include <atomic>
#include <thread>

#include "exchange.hpp"

namespace {

using namespace unmodified;

struct arguments {
  std::string directory;
  size_t bytes = 1 << 20;
  size_t big = 0;
  int device = 0;
};

// What the producer writes about its memory beside the handles.
struct offer {
  cudaIpcMemHandle_t memory;
  cudaIpcMemHandle_t big;
  cudaIpcEventHandle_t event;
  uint64_t bytes;
  uint64_t big_bytes;
  int event_error;
};

__global__ void fill(unsigned char* bytes, size_t size, unsigned seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < size;
       i += size_t{gridDim.x} * blockDim.x) {
    bytes[i] = static_cast<unsigned char>((i * 2654435761u >> 7) + seed);
  }
}

__global__ void count_wrong(const unsigned char* bytes,
                            size_t size,
                            unsigned seed,
                            unsigned long long* wrong) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < size;
       i += size_t{gridDim.x} * blockDim.x) {
    if (bytes[i] != static_cast<unsigned char>((i * 2654435761u >> 7) + seed)) {
      atomicAdd(wrong, 1ull);
    }
  }
}

void must(cudaError_t error, const char* operation) {
  if (error != cudaSuccess) {
    printf("%s: %s\n", operation, cudaGetErrorString(error));
    exit(2);
  }
}
#define MUST(call) must(call, #call)

std::string name_of(cudaError_t error) {
  return error == cudaSuccess
             ? "ok"
             : std::to_string(static_cast<int>(error)) + " " + cudaGetErrorString(error);
}

/// Bytes that differ from the pattern, checked on `stream`, which is synchronized.
unsigned long long wrong_bytes(const unsigned char* bytes,
                               size_t size,
                               unsigned seed,
                               cudaStream_t stream) {
  unsigned long long* count = nullptr;
  unsigned long long wrong = 0;
  MUST(cudaMalloc(&count, sizeof *count));
  MUST(cudaMemsetAsync(count, 0, sizeof *count, stream));
  count_wrong<<<64, 256, 0, stream>>>(bytes, size, seed, count);
  MUST(cudaMemcpyAsync(&wrong, count, sizeof wrong, cudaMemcpyDeviceToHost, stream));
  MUST(cudaStreamSynchronize(stream));
  MUST(cudaFree(count));
  return wrong;
}

std::atomic<bool> released{false};

void CUDART_CB hold(void* /*nothing*/) {
  for (const double until = now() + patience(); !released && now() < until;) {
    usleep(500);
  }
}

int produce(const arguments& given) {
  result out;
  const std::string& d = given.directory;
  MUST(cudaSetDevice(given.device));
  cudaStream_t stream;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  unsigned char* memory = nullptr;
  MUST(cudaMalloc(&memory, given.bytes));
  offer made{};
  made.bytes = given.bytes;
  made.big_bytes = given.big;
  fill<<<64, 256, 0, stream>>>(memory, given.bytes, 1);
  MUST(cudaIpcGetMemHandle(&made.memory, memory));
  unsigned char* big = nullptr;
  if (given.big != 0) {
    MUST(cudaMalloc(&big, given.big));
    fill<<<1024, 256, 0, stream>>>(big, given.big, 9);
    MUST(cudaIpcGetMemHandle(&made.big, big));
  }
  cudaEvent_t event;
  const cudaError_t created =
      cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess);
  cudaError_t taken = created;
  if (created == cudaSuccess) {
    MUST(cudaEventRecord(event, stream));
    taken = cudaIpcGetEventHandle(&made.event, event);
  }
  made.event_error = taken;
  MUST(cudaStreamSynchronize(stream));
  out.add("pid", static_cast<int>(getpid()));
  out.add("uid", static_cast<int>(getuid()));
  out.add("bytes", static_cast<double>(given.bytes));
  out.add("event_export", name_of(taken));
  void* own = nullptr;
  const cudaError_t own_error =
      cudaIpcOpenMemHandle(&own, made.memory, cudaIpcMemLazyEnablePeerAccess);
  cudaGetLastError();
  out.add("own_handle", name_of(own_error));
  write_file(d + "/handle", &made, sizeof made);
  signal_file(d + "/ready");

  // 3. the event again, behind held work
  wait_file(d + "/opened");
  const bool exchange_events = exists(d + "/event_opened");
  if (exchange_events) {
    MUST(cudaLaunchHostFunc(stream, hold, nullptr));
    fill<<<64, 256, 0, stream>>>(memory, given.bytes, 3);
    // A record that waits for its work cannot return before the work is let go: that needs another
    // thread.
    std::thread release([&] {
      for (const double until = now() + 3; !exists(d + "/waits") && now() < until;) {
        usleep(1000);
      }
      signal_file(d + "/released");
      released = true;
    });
    const double start = now();
    MUST(cudaEventRecord(event, stream));
    out.add("record_us", (now() - start) * 1e6);
    signal_file(d + "/recorded");
    release.join();
    MUST(cudaStreamSynchronize(stream));
    // 4. the consumer's record
    if (wait_file(d + "/consumer_recorded")) {
      MUST(cudaStreamWaitEvent(stream, event, 0));
      out.add("wrong_after_consumers_record",
              static_cast<double>(wrong_bytes(memory, given.bytes, 5, stream)));
      signal_file(d + "/checked");
    }
  }
  const bool done = wait_file(d + "/done");
  const bool written = exists(d + "/written");
  const unsigned long long wrong =
      written ? wrong_bytes(memory, given.bytes, 7, stream) : given.bytes;
  out.add("wrong_bytes_back", static_cast<double>(wrong));
  out.print();
  return done && wrong == 0 ? 0 : 1;
}

/// Bytes a second of the fastest of five copies.
double copy_rate(unsigned char* to, const unsigned char* from, size_t size, cudaStream_t stream) {
  cudaEvent_t start;
  cudaEvent_t end;
  MUST(cudaEventCreate(&start));
  MUST(cudaEventCreate(&end));
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    float ms = 0;
    MUST(cudaEventRecord(start, stream));
    MUST(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream));
    MUST(cudaEventRecord(end, stream));
    MUST(cudaEventSynchronize(end));
    MUST(cudaEventElapsedTime(&ms, start, end));
    best = std::max(best, static_cast<double>(size) / (ms * 1e-3));
  }
  MUST(cudaEventDestroy(start));
  MUST(cudaEventDestroy(end));
  return best;
}

void measure_big(const offer& made, cudaStream_t stream, result& out) {
  unsigned char* mapped = nullptr;
  const double start = now();
  MUST(cudaIpcOpenMemHandle(
      reinterpret_cast<void**>(&mapped), made.big, cudaIpcMemLazyEnablePeerAccess));
  out.add("big_open_us", (now() - start) * 1e6);
  unsigned char* local[2];
  MUST(cudaMalloc(&local[0], made.big_bytes));
  MUST(cudaMalloc(&local[1], made.big_bytes));
  out.add("big_wrong_bytes", static_cast<double>(wrong_bytes(mapped, made.big_bytes, 9, stream)));
  out.add("copy_from_mapping_gb_s", copy_rate(local[0], mapped, made.big_bytes, stream) * 1e-9);
  out.add("copy_to_mapping_gb_s", copy_rate(mapped, local[0], made.big_bytes, stream) * 1e-9);
  out.add("copy_own_memory_gb_s", copy_rate(local[0], local[1], made.big_bytes, stream) * 1e-9);
  MUST(cudaIpcCloseMemHandle(mapped));
}

/// Steps 2 to 4.
void exchange_events(
    const std::string& d, cudaEvent_t event, unsigned char* memory, size_t size, result& out) {
  cudaStream_t stream;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  // The event was recorded before its handle was taken, and that work has ended.
  MUST(cudaStreamWaitEvent(stream, event, 0));
  out.add("event_first_wait", name_of(cudaStreamSynchronize(stream)));
  signal_file(d + "/event_opened");
  signal_file(d + "/opened");
  if (!wait_file(d + "/recorded")) {
    return;
  }
  const bool before = !exists(d + "/released");
  out.add("event_query_while_held", name_of(cudaEventQuery(event)));
  cudaGetLastError();
  MUST(cudaStreamWaitEvent(stream, event, 0));
  // Everything below happens on the stream after the wait.
  const bool busy = cudaStreamQuery(stream) == cudaErrorNotReady;
  cudaGetLastError();
  const bool still_held = !exists(d + "/released");
  // True: the stream waited for work that was recorded after the handle was taken. False without
  // `before`: the record itself waited for its work, as it does without a domain.
  out.add("recorded_while_held", before);
  out.add("waited_for_held_work", before && busy && still_held);
  signal_file(d + "/waits");
  out.add("wrong_after_wait", static_cast<double>(wrong_bytes(memory, size, 3, stream)));
  fill<<<64, 256, 0, stream>>>(memory, size, 5);
  const cudaError_t recorded = cudaEventRecord(event, stream);
  out.add("record_imported", name_of(recorded));
  cudaGetLastError();
  if (recorded != cudaSuccess) {  // the producer's wait does not cover the work then
    MUST(cudaStreamSynchronize(stream));
  }
  signal_file(d + "/consumer_recorded");
  wait_file(d + "/checked");  // before the memory changes again
  MUST(cudaStreamSynchronize(stream));
}

int consume(const arguments& given) {
  result out;
  const std::string& d = given.directory;
  MUST(cudaSetDevice(given.device));
  cudaStream_t stream;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaFree(nullptr));
  offer made{};
  if (!wait_file(d + "/ready")) {
    return 4;
  }
  read_file(d + "/handle", &made, sizeof made);
  out.add("pid", static_cast<int>(getpid()));
  out.add("uid", static_cast<int>(getuid()));
  unsigned char* memory = nullptr;
  const double start = now();
  const cudaError_t opened = cudaIpcOpenMemHandle(
      reinterpret_cast<void**>(&memory), made.memory, cudaIpcMemLazyEnablePeerAccess);
  out.add("first_open_us", (now() - start) * 1e6);
  out.add("memory_open", name_of(opened));
  cudaGetLastError();
  cudaEvent_t event = nullptr;
  if (made.event_error == cudaSuccess) {
    const double event_start = now();
    const cudaError_t event_opened = cudaIpcOpenEventHandle(&event, made.event);
    out.add("event_open_us", (now() - event_start) * 1e6);
    out.add("event_open", name_of(event_opened));
    cudaGetLastError();
    if (event_opened != cudaSuccess) {
      event = nullptr;
    }
  }
  unsigned long long wrong = made.bytes;
  if (opened == cudaSuccess) {
    wrong = wrong_bytes(memory, made.bytes, 1, stream);
    out.add("wrong_bytes", static_cast<double>(wrong));
    if (event != nullptr) {
      exchange_events(d, event, memory, made.bytes, out);
      MUST(cudaEventDestroy(event));
    } else {
      signal_file(d + "/opened");
    }
    fill<<<64, 256, 0, stream>>>(memory, made.bytes, 7);
    MUST(cudaStreamSynchronize(stream));
    std::vector<double> times;
    for (int i = 0; i < 50; ++i) {
      MUST(cudaIpcCloseMemHandle(memory));
      const double again = now();
      MUST(cudaIpcOpenMemHandle(
          reinterpret_cast<void**>(&memory), made.memory, cudaIpcMemLazyEnablePeerAccess));
      times.push_back((now() - again) * 1e6);
    }
    out.add("open_us", median(times));
    if (made.big_bytes != 0) {
      measure_big(made, stream, out);
    }
    MUST(cudaIpcCloseMemHandle(memory));
    signal_file(d + "/written");
  } else {
    signal_file(d + "/opened");
  }
  signal_file(d + "/done");
  out.print();
  return opened == cudaSuccess && wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  arguments given;
  if (count < 3) {
    fprintf(stderr, "usage: runtime produce|consume DIR [--bytes N] [--device N] [--big MIB]\n");
    return 64;
  }
  given.directory = words[2];
  for (int i = 3; i + 1 < count; i += 2) {
    const std::string option = words[i];
    const long long value = atoll(words[i + 1]);
    if (option == "--bytes") {
      given.bytes = static_cast<size_t>(value);
    } else if (option == "--big") {
      given.big = static_cast<size_t>(value) << 20;
    } else if (option == "--device") {
      given.device = static_cast<int>(value);
    } else {
      fprintf(stderr, "runtime: unknown option %s\n", words[i]);
      return 64;
    }
  }
  return std::string(words[1]) == "produce" ? produce(given) : consume(given);
}
