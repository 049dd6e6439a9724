// SPDX-License-Identifier: Apache-2.0
// What calls cost, to be compared with and without the library. Driver API; nothing of gpushm.
//
//   cost calls                  ns of calls that are no IPC, and of records of events; one process
//   cost export DIR             offers memory, an event and a descriptor; exits on DIR/end
//   cost import DIR OPENS       opens and closes each OPENS, OPENS / 10 and OPENS / 50 times;
//                               counts descriptors and mappings
//   cost exports EXPORTS        exports and closes a descriptor so often, records an exported
//                               event; one process
//
// Every time is a median or the best of some batches, in ns.
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <functional>

#include "driver.hpp"
#include "exchange.hpp"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace {

using namespace unmodified;

/// ns of one call, the best of seven batches.
double cost_of(int calls, const std::function<void()>& batch_step) {
  double best = 1e18;
  for (int batch = 0; batch < 7; ++batch) {
    const double begin = now();
    for (int i = 0; i < calls / 16; ++i) {
      // Unrolled: a std::function costs some ns itself, the same with and without a library.
      batch_step();
      batch_step();
      batch_step();
      batch_step();
      batch_step();
      batch_step();
      batch_step();
      batch_step();
      batch_step();
      batch_step();
      batch_step();
      batch_step();
      batch_step();
      batch_step();
      batch_step();
      batch_step();
    }
    best = std::min(best, (now() - begin) / (calls / 16 * 16) * 1e9);
  }
  return best;
}

void record_costs(result& out) {
  CUstream stream;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUevent plain;
  CUevent shared;
  MUST(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
  const CUresult created = cuEventCreate(&shared, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
  out.add("create_ipc_event", static_cast<int>(created));
  const auto record = [&](CUevent event) {
    return cost_of(16000, [&] { cuEventRecord(event, stream); });
  };
  out.add("record_plain_ns", record(plain));
  MUST(cuStreamSynchronize(stream));
  if (created == CUDA_SUCCESS) {
    out.add("record_ipc_not_exported_ns", record(shared));
    MUST(cuStreamSynchronize(stream));
    CUipcEventHandle handle;
    const CUresult taken = cuIpcGetEventHandle(&handle, shared);
    out.add("export_event", static_cast<int>(taken));
    if (taken == CUDA_SUCCESS) {
      out.add("record_ipc_exported_ns", record(shared));
      out.add("take_event_handle_ns", cost_of(1600, [&] { cuIpcGetEventHandle(&handle, shared); }));
    }
    MUST(cuStreamSynchronize(stream));
    MUST(cuEventDestroy(shared));
  }
  CUdeviceptr memory;
  CUipcMemHandle memory_handle;
  MUST(cuMemAlloc(&memory, 2 << 20));
  MUST(cuIpcGetMemHandle(&memory_handle, memory));
  out.add("take_memory_handle_ns",
          cost_of(1600, [&] { cuIpcGetMemHandle(&memory_handle, memory); }));
}

int calls() {
  result out;
  start();
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  out.add("dlsym_default_malloc_ns", cost_of(160000, [] { dlsym(RTLD_DEFAULT, "malloc"); }));
  out.add("dlsym_next_malloc_ns", cost_of(160000, [] { dlsym(RTLD_NEXT, "malloc"); }));
  out.add("dlsym_cuda_other_ns", cost_of(160000, [=] { dlsym(cuda, "cuMemAlloc_v2"); }));
  out.add("dlsym_cuda_ipc_ns", cost_of(160000, [=] { dlsym(cuda, "cuIpcGetMemHandle"); }));
  out.add("dlsym_missing_ns", cost_of(160000, [=] { dlsym(cuda, "cuNoSuchFunction"); }));
  out.add("get_proc_address_other_ns", cost_of(160000, [] {
            void* found = nullptr;
            CUdriverProcAddressQueryResult status;
            cuGetProcAddress("cuMemAlloc", &found, 13000, 0, &status);
          }));
  out.add("close_bad_ns", cost_of(1600000, [] { close(-1); }));
  out.add("dup_close_ns", cost_of(160000, [] { close(dup(0)); }));
  out.add("syscall_getpid_ns", cost_of(1600000, [] { syscall(SYS_getpid); }));
  out.add("shm_open_missing_ns",
          cost_of(16000, [] { shm_open("/unmodified-not-there", O_RDONLY, 0); }));
  out.add("stream_query_ns", cost_of(160000, [] { cuStreamQuery(nullptr); }));
  record_costs(out);
  out.print();
  return 0;
}

struct offer {
  CUipcMemHandle memory;
  CUipcEventHandle event;
  int event_error;
  int pid;
  int descriptor;
  int descriptor_error;
};

CUmemGenericAllocationHandle create_chunk() {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle chunk;
  MUST(cuMemCreate(&chunk, 2 << 20, &wanted, 0));
  return chunk;
}

int export_all(const std::string& d) {
  start();
  offer made{};
  CUdeviceptr memory;
  CUevent event;
  MUST(cuMemAlloc(&memory, 2 << 20));
  MUST(cuMemsetD32(memory, 42, (2 << 20) / 4));
  MUST(cuIpcGetMemHandle(&made.memory, memory));
  made.event_error = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
  if (made.event_error == CUDA_SUCCESS) {
    MUST(cuEventRecord(event, nullptr));
    made.event_error = cuIpcGetEventHandle(&made.event, event);
  }
  made.pid = getpid();
  made.descriptor_error = cuMemExportToShareableHandle(
      &made.descriptor, create_chunk(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  MUST(cuCtxSynchronize());
  write_file(d + "/offer", &made, sizeof made);
  return wait_file(d + "/end") ? 0 : 4;
}

/// Opens and closes; adds counts and times under `prefix`.
void repeat(const std::string& prefix,
            int times,
            result& out,
            const std::function<int(double&)>& round) {
  double first = 0;
  const int error = round(first);
  out.add(prefix + "_error", error);
  out.add(prefix + "_first_ns", first * 1e9);
  if (error != 0) {
    return;
  }
  const int descriptors = count_descriptors();
  const int mappings = count_mappings();
  std::vector<double> opens;
  const double begin = now();
  int errors = 0;
  for (int i = 0; i < times; ++i) {
    double open_time = 0;
    errors += round(open_time) != 0;
    opens.push_back(open_time * 1e9);
  }
  out.add(prefix + "_rounds", times);
  out.add(prefix + "_errors", errors);
  out.add(prefix + "_open_ns", median(opens));
  out.add(prefix + "_round_ns", times == 0 ? 0 : (now() - begin) / times * 1e9);
  out.add(prefix + "_descriptors_left", count_descriptors() - descriptors);
  out.add(prefix + "_mappings_left", count_mappings() - mappings);
}

int import_all(const std::string& d, int times) {
  result out;
  start();
  offer made{};
  read_file(d + "/offer", &made, sizeof made);
  out.add("pid", static_cast<int>(getpid()));
  out.add("exporter_pid", made.pid);
  repeat("memory", times, out, [&](double& open_time) {
    CUdeviceptr memory;
    const double begin = now();
    const CUresult opened =
        cuIpcOpenMemHandle(&memory, made.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    open_time = now() - begin;
    return opened != CUDA_SUCCESS ? static_cast<int>(opened)
                                  : static_cast<int>(cuIpcCloseMemHandle(memory));
  });
  if (made.event_error == CUDA_SUCCESS) {
    repeat("event", times / 10, out, [&](double& open_time) {
      CUevent event;
      const double begin = now();
      const CUresult opened = cuIpcOpenEventHandle(&event, made.event);
      open_time = now() - begin;
      return opened != CUDA_SUCCESS ? static_cast<int>(opened)
                                    : static_cast<int>(cuEventDestroy(event));
    });
  }
  if (made.descriptor_error == CUDA_SUCCESS) {
    // As PyTorch's expandable segments and UCX fetch a descriptor.
    repeat("descriptor", times / 50, out, [&](double& open_time) {
      const double begin = now();
      const int process = static_cast<int>(syscall(SYS_pidfd_open, made.pid, 0));
      if (process < 0) {
        return 1000 + errno;
      }
      const int fd = static_cast<int>(syscall(SYS_pidfd_getfd, process, made.descriptor, 0));
      const int error = errno;
      open_time = now() - begin;
      close(process);
      if (fd < 0) {
        return 2000 + error;
      }
      CUmemGenericAllocationHandle chunk;
      const CUresult imported =
          cuMemImportFromShareableHandle(&chunk,
                                         reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      close(fd);
      return imported != CUDA_SUCCESS ? static_cast<int>(imported)
                                      : static_cast<int>(cuMemRelease(chunk));
    });
  }
  out.print();
  signal_file(d + "/end");
  return 0;
}

int exports(int times) {
  result out;
  start();
  const CUmemGenericAllocationHandle chunk = create_chunk();
  std::vector<double> closes;
  repeat("export", times, out, [&](double& export_time) {
    int fd = -1;
    double begin = now();
    const CUresult exported =
        cuMemExportToShareableHandle(&fd, chunk, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    export_time = now() - begin;
    begin = now();
    if (exported == CUDA_SUCCESS) {
      close(fd);
    }
    closes.push_back((now() - begin) * 1e9);
    return static_cast<int>(exported);
  });
  out.add("export_close_ns", median(closes));
  out.print();
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string role = count > 1 ? words[1] : "";
  if (role == "calls") {
    return calls();
  }
  if (role == "export" && count == 3) {
    return export_all(words[2]);
  }
  if (role == "import" && count == 4) {
    return import_all(words[2], atoi(words[3]));
  }
  if (role == "exports" && count == 3) {
    return exports(atoi(words[2]));
  }
  fprintf(stderr, "usage: cost calls | export DIR | import DIR OPENS | exports EXPORTS\n");
  return 64;
}
