// SPDX-License-Identifier: Apache-2.0
// One process offers device memory by UCP, as UCX is released; another gets it into its own.
// Nothing of gpushm.
//
//   ucx_get serve DIR malloc|vmm GPU MIB      offers; answers until DIR/end is there
//   ucx_get pull DIR malloc|vmm GPU MIB       gets it by RMA, and by a tagged message (rendezvous)
//
// Worker addresses and the remote key are exchanged as files in DIR. Which transport UCX takes is
// in its own output if UCX_PROTO_INFO=y. RMA needs a remote key: whether there was one, and each
// status, is in the RESULT line.
//
// Exit status 0: all bytes were right by one of the two.
#include <cuda.h>
#include <ucp/api/ucp.h>

#include "exchange.hpp"

namespace {

using namespace unmodified;

constexpr ucp_tag_t tag = 7;

void must(CUresult error, const char* operation) {
  if (error != CUDA_SUCCESS) {
    const char* name = nullptr;
    cuGetErrorName(error, &name);
    printf("%s: %d %s\n", operation, static_cast<int>(error), name == nullptr ? "" : name);
    exit(2);
  }
}

void must(ucs_status_t status, const char* operation) {
  if (status != UCS_OK) {
    printf("%s: %s\n", operation, ucs_status_string(status));
    exit(2);
  }
}
#define MUST(call) must(call, #call)

void start_gpu(int gpu) {
  CUdevice device;
  CUcontext context;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, gpu));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
}

CUdeviceptr allocate(const std::string& kind, int gpu, size_t size) {
  CUdeviceptr memory = 0;
  if (kind == "malloc") {
    MUST(cuMemAlloc(&memory, size));
    return memory;
  }
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = gpu;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle chunk;
  MUST(cuMemCreate(&chunk, size, &wanted, 0));
  MUST(cuMemAddressReserve(&memory, size, 0, 0, 0));
  MUST(cuMemMap(memory, size, 0, chunk, 0));
  CUmemAccessDesc access{};
  access.location = wanted.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MUST(cuMemSetAccess(memory, size, &access, 1));
  return memory;
}

void fill(CUdeviceptr memory, size_t size, unsigned value) {
  MUST(cuMemsetD32(memory, value, size / 4));
  MUST(cuCtxSynchronize());
}

size_t wrong_words(CUdeviceptr memory, size_t size, unsigned value) {
  std::vector<unsigned> words(size / 4);
  MUST(cuMemcpyDtoH(words.data(), memory, size));
  return static_cast<size_t>(
      std::count_if(words.begin(), words.end(), [=](unsigned w) { return w != value; }));
}

void write_blob(const std::string& path, const void* bytes, size_t size) {
  std::string blob(static_cast<const char*>(bytes), size);
  write_file(path, blob.data(), blob.size());
}

std::string read_blob(const std::string& path) {
  if (!wait_file(path)) {
    exit(4);
  }
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct peer {
  CUdeviceptr data = 0;
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  ucp_mem_h memory = nullptr;
  ucs_status_t mapped = UCS_OK;
};

/// The memory is allocated after `ucp_init`, since UCX takes what its cache of memory types has not
/// seen for host memory.
peer start(
    const std::string& d, const std::string& me, const std::string& kind, int gpu, size_t size) {
  peer started;
  start_gpu(gpu);
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
  parameters.features = UCP_FEATURE_RMA | UCP_FEATURE_TAG;
  MUST(ucp_init(&parameters, nullptr, &started.context));
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SINGLE;
  MUST(ucp_worker_create(started.context, &worker, &started.worker));
  started.data = allocate(kind, gpu, size);
  fill(started.data, size, 0x1234567);
  ucp_mem_map_params_t map{};
  map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                   UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  map.address = reinterpret_cast<void*>(started.data);
  map.length = size;
  map.memory_type = UCS_MEMORY_TYPE_CUDA;
  started.mapped = ucp_mem_map(started.context, &map, &started.memory);
  ucp_address_t* address = nullptr;
  size_t length = 0;
  MUST(ucp_worker_get_address(started.worker, &address, &length));
  write_blob(d + "/" + me + ".address", address, length);
  return started;
}

ucp_ep_h connect(const peer& here, const std::string& address) {
  ucp_ep_h endpoint = nullptr;
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_NONE;
  MUST(ucp_ep_create(here.worker, &parameters, &endpoint));
  return endpoint;
}

/// Progresses until the request is done, at most `patience()` seconds.
std::string finish(const peer& here, ucs_status_ptr_t request) {
  if (request == nullptr) {
    return "ok";
  }
  if (UCS_PTR_IS_ERR(request)) {
    return ucs_status_string(UCS_PTR_STATUS(request));
  }
  ucs_status_t status = UCS_INPROGRESS;
  for (const double until = now() + patience(); status == UCS_INPROGRESS && now() < until;) {
    ucp_worker_progress(here.worker);
    status = ucp_request_check_status(request);
  }
  if (status == UCS_INPROGRESS) {
    return "not done in time";
  }
  ucp_request_free(request);
  return status == UCS_OK ? "ok" : ucs_status_string(status);
}

ucp_request_param_t device_memory() {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  parameters.memory_type = UCS_MEMORY_TYPE_CUDA;
  return parameters;
}

int serve(const std::string& d, const std::string& kind, int gpu, size_t size) {
  const peer here = start(d, "serve", kind, gpu, size);
  const CUdeviceptr memory = here.data;
  std::string key;
  if (here.mapped == UCS_OK) {
    void* packed = nullptr;
    size_t length = 0;
    const ucs_status_t status = ucp_rkey_pack(here.context, here.memory, &packed, &length);
    if (status == UCS_OK) {
      key.assign(static_cast<const char*>(packed), length);
    } else {
      printf("ucp_rkey_pack: %s\n", ucs_status_string(status));
    }
  }
  write_file(d + "/address_of_memory", &memory, sizeof memory);
  write_blob(d + "/key", key.data(), key.size());
  const ucp_ep_h endpoint = connect(here, read_blob(d + "/pull.address"));
  result out;
  out.add("pid", static_cast<int>(getpid()));
  out.add("mem_map", here.mapped == UCS_OK ? "ok" : ucs_status_string(here.mapped));
  out.add("key_bytes", static_cast<int>(key.size()));
  // The puller says when it wants the message, so that RMA is measured alone.
  const auto progress_until = [&](const std::string& file) {
    for (const double until = now() + 3 * patience(); !exists(d + "/" + file) && now() < until;) {
      for (int i = 0; i < 1000; ++i) {
        ucp_worker_progress(here.worker);
      }
    }
  };
  progress_until("want_message");
  const ucp_request_param_t parameters = device_memory();
  std::string sent = "ok";
  for (int i = 0; i < 3 && sent == "ok" && !exists(d + "/end"); ++i) {
    sent = finish(
        here, ucp_tag_send_nbx(endpoint, reinterpret_cast<void*>(memory), size, tag, &parameters));
  }
  out.add("send", sent);
  out.print();
  progress_until("end");
  return 0;
}

/// Three transfers into `memory`; adds the status, the best GB/s and the wrong words under `name`.
template <typename Start>
bool transfer(const std::string& name,
              const peer& here,
              CUdeviceptr memory,
              size_t size,
              result& out,
              Start start) {
  std::string status = "ok";
  double best = 0;
  size_t wrong = size / 4;
  for (int i = 0; i < 3 && status == "ok"; ++i) {
    fill(memory, size, 0);
    const double begin = now();
    status = finish(here, start());
    MUST(cuCtxSynchronize());
    if (status == "ok") {
      best = std::max(best, static_cast<double>(size) / (now() - begin) * 1e-9);
      wrong = wrong_words(memory, size, 0x1234567);
    }
  }
  out.add(name, status);
  out.add(name + "_gb_s", best);
  out.add(name + "_wrong_words", static_cast<double>(wrong));
  return status == "ok" && wrong == 0;
}

int pull(const std::string& d, const std::string& kind, int gpu, size_t size) {
  result out;
  const peer here = start(d, "pull", kind, gpu, size);
  const CUdeviceptr memory = here.data;
  const ucp_ep_h endpoint = connect(here, read_blob(d + "/serve.address"));
  const std::string key = read_blob(d + "/key");
  CUdeviceptr remote = 0;
  read_file(d + "/address_of_memory", &remote, sizeof remote);
  out.add("pid", static_cast<int>(getpid()));
  out.add("mem_map", here.mapped == UCS_OK ? "ok" : ucs_status_string(here.mapped));
  const ucp_request_param_t parameters = device_memory();
  bool good = false;
  if (!key.empty()) {
    ucp_rkey_h remote_key = nullptr;
    const ucs_status_t unpacked = ucp_ep_rkey_unpack(endpoint, key.data(), &remote_key);
    out.add("key_unpack", unpacked == UCS_OK ? "ok" : ucs_status_string(unpacked));
    if (unpacked == UCS_OK) {
      good = transfer("get", here, memory, size, out, [&] {
        return ucp_get_nbx(
            endpoint, reinterpret_cast<void*>(memory), size, remote, remote_key, &parameters);
      });
    }
  }
  out.print();  // whatever happens to the message
  signal_file(d + "/want_message");
  result message;
  good |= transfer("message", here, memory, size, message, [&] {
    return ucp_tag_recv_nbx(
        here.worker, reinterpret_cast<void*>(memory), size, tag, ~ucp_tag_t{0}, &parameters);
  });
  message.print();
  signal_file(d + "/end");
  return good ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  if (count != 6) {
    fprintf(stderr, "usage: ucx_get serve|pull DIR malloc|vmm GPU MIB\n");
    return 64;
  }
  const size_t size = static_cast<size_t>(atoll(words[5])) << 20;
  const bool serving = std::string(words[1]) == "serve";
  return serving ? serve(words[2], words[3], atoi(words[4]), size)
                 : pull(words[2], words[3], atoi(words[4]), size);
}
