// SPDX-License-Identifier: Apache-2.0
// Executes an agent's orders.
#include "tests/conformance/driver_facts_orders.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "gpushm/error.hpp"

namespace gpushm::conformance {

bool next_order(message& received, base::unique_fd& fd);
void send_answer(const message& sent, int fd);

namespace {

using namespace gpushm::cuda;

constexpr std::size_t page_bytes = 4096;

class worker {
 public:
  // Returns the descriptor to reply with; `io` is the order, and becomes the answer.
  base::unique_fd execute(message& io, base::unique_fd fd);

 private:
  CUmemAllocationProp properties() const;
  void init(message& io);
  void create(std::size_t bytes, std::size_t chunks, bool rdma = false);
  void import_chunk(message& io, int fd);
  void map(CUmemAccess_flags flags, int ordinal);
  void unmap();
  void check(message& io);
  base::unique_fd pool(message& io, int fd);
  void wait_word(std::uint64_t value, int fd);
  void wait_done(std::uint64_t limit_ms);
  static void find_entry_point(message& io);

  CUdevice device_ = 0;
  std::vector<CUmemGenericAllocationHandle> chunks_;
  std::size_t chunk_bytes_ = 0;
  CUdeviceptr pointer_ = 0;
  std::size_t size_bytes_ = 0;
  CUmemoryPool pool_ = nullptr;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  std::uint64_t* page_ = nullptr;
};

CUmemAllocationProp worker::properties() const {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  return prop;
}

void worker::init(message& io) {
  must(cu()->cuDeviceGet(&device_, static_cast<int>(io.number)));
  CUcontext context = nullptr;
  must(cu()->cuDevicePrimaryCtxRetain(&context, device_));
  must(cu()->cuCtxSetCurrent(context));
  int count = 0;
  must(cu()->cuDeviceGetCount(&count));
  io.number = static_cast<std::uint64_t>(::getpid());
  io.number2 = static_cast<std::uint64_t>(count);
  int peers = 0;
  if (count >= 2) {
    must(cu()->cuDeviceCanAccessPeer(&peers, 0, 1));
  }
  io.bytes[0] = static_cast<char>(peers);
}

void worker::create(std::size_t bytes, std::size_t chunks, bool rdma) {
  CUmemAllocationProp prop = properties();
  prop.allocFlags.gpuDirectRDMACapable = rdma ? 1 : 0;
  for (std::size_t i = 0; i < chunks; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    must(cu()->cuMemCreate(&handle, bytes, &prop, 0));
    chunks_.push_back(handle);
  }
  chunk_bytes_ = bytes;
  map(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, device_);
}

void worker::map(CUmemAccess_flags flags, int ordinal) {
  size_bytes_ = chunk_bytes_ * chunks_.size();
  must(cu()->cuMemAddressReserve(&pointer_, size_bytes_, 0, 0, 0));
  CUdeviceptr at = pointer_;
  for (const auto handle : chunks_) {
    must(cu()->cuMemMap(at, chunk_bytes_, 0, handle, 0));
    at += chunk_bytes_;
  }
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, ordinal}, flags};
  must(cu()->cuMemSetAccess(pointer_, size_bytes_, &access, 1));
}

void worker::import_chunk(message& io, int fd) {
  CUmemGenericAllocationHandle handle = 0;
  must(cu()->cuMemImportFromShareableHandle(
      &handle, as_shareable(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  chunks_.push_back(handle);
  // The descriptor does not carry the size.
  chunk_bytes_ = io.number;
  CUmemAllocationProp prop{};
  must(cu()->cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  io.number = static_cast<std::uint64_t>(static_cast<std::int64_t>(prop.location.id));
}

void worker::unmap() {
  must(cu()->cuMemUnmap(pointer_, size_bytes_));
  must(cu()->cuMemAddressFree(pointer_, size_bytes_));
  for (const auto handle : chunks_) {
    must(cu()->cuMemRelease(handle));
  }
  chunks_.clear();
  pointer_ = 0;
}

void worker::check(message& io) {
  std::vector<unsigned char> copy(size_bytes_);
  must(cu()->cuMemcpyDtoH_v2(copy.data(), pointer_, copy.size()));
  // Compares blocks, because comparing bytes takes many seconds per GiB in a debug build.
  const std::vector<unsigned char> wanted(64UL << 10U, static_cast<unsigned char>(io.number));
  io.number = 0;
  for (std::size_t at = 0; at < copy.size(); at += wanted.size()) {
    const std::size_t size = std::min(wanted.size(), copy.size() - at);
    if (std::memcmp(copy.data() + at, wanted.data(), size) != 0) {
      for (std::size_t i = 0; i < size; ++i) {
        io.number += copy[at + i] != wanted[i] ? 1U : 0U;
      }
    }
  }
}

base::unique_fd worker::pool(message& io, int fd) {
  CUmemPoolPtrExportData data{};
  static_assert(sizeof(data) == sizeof(io.bytes));
  if (io.what == order::pool_import) {
    must(cu()->cuMemPoolImportFromShareableHandle(
        &pool_, as_shareable(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    std::memcpy(&data, io.bytes, sizeof(data));
    must(cu()->cuMemPoolImportPointer(&pointer_, pool_, &data));
    size_bytes_ = io.number;
    return {};
  }
  int exported = -1;
  if (io.what == order::pool_export) {
    must(cu()->cuMemPoolExportToShareableHandle(
        &exported, pool_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    base::unique_fd owner(exported);
    must(cu()->cuMemPoolExportPointer(&data, pointer_));
    std::memcpy(io.bytes, &data, sizeof(data));
    return owner;
  }
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = io.what == order::pool_create ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                    : CU_MEM_HANDLE_TYPE_NONE;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  must(cu()->cuMemPoolCreate(&pool_, &props));
  if (io.what == order::pool_plain) {
    const CUresult result = cu()->cuMemPoolExportToShareableHandle(
        &exported, pool_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    must(cu()->cuMemPoolDestroy(pool_));
    base::unique_fd owner(exported);
    must(result);
    return owner;
  }
  must(cu()->cuMemAllocFromPoolAsync(&pointer_, io.number, pool_, nullptr));
  must(cu()->cuStreamSynchronize(nullptr));
  size_bytes_ = io.number;
  return {};
}

void worker::wait_word(std::uint64_t value, int fd) {
  void* const page = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    throw failed{CUDA_ERROR_OPERATING_SYSTEM};
  }
  page_ = static_cast<std::uint64_t*>(page);
  must(cu()->cuMemHostRegister_v2(page, page_bytes, 0));
  CUdeviceptr address = 0;
  must(cu()->cuMemHostGetDevicePointer_v2(&address, page, 0));
  must(cu()->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  must(cu()->cuStreamWaitValue64_v2(stream_, address, value, CU_STREAM_WAIT_VALUE_GEQ));
}

void worker::wait_done(std::uint64_t limit_ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  CUresult result = CUDA_ERROR_NOT_READY;
  while ((result = cu()->cuStreamQuery(stream_)) == CUDA_ERROR_NOT_READY &&
         std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  must(result);
}

void worker::find_entry_point(message& io) {
  using get_proc_address = CUresult (*)(const char*, void**, int, std::uint64_t, unsigned int*);
  // Loaded already; not closed, because the address must stay valid.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  const auto get = reinterpret_cast<get_proc_address>(
      library == nullptr ? nullptr : ::dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) {
    throw failed{CUDA_ERROR_NOT_FOUND};
  }
  void* address = nullptr;
  unsigned int status = 0;
  io.bytes[sizeof(io.bytes) - 1] = '\0';
  must(get(io.bytes, &address, static_cast<int>(io.number), io.number2, &status));
  io.number = reinterpret_cast<std::uintptr_t>(address);
  io.number2 = status;
}

base::unique_fd worker::execute(message& io, base::unique_fd fd) {
  base::unique_fd out;
  CUipcMemHandle handle{};
  CUipcEventHandle event_handle{};
  int number = -1;
  switch (io.what) {
    case order::init:
      init(io);
      break;
    case order::create:
      create(io.number, io.number2);
      break;
    case order::create_rdma:
      create(io.number, 1, true);
      break;
    case order::chunk_rdma: {
      CUmemAllocationProp prop{};
      must(cu()->cuMemGetAllocationPropertiesFromHandle(&prop, chunks_.at(0)));
      io.number = prop.allocFlags.gpuDirectRDMACapable;
      break;
    }
    case order::device_attribute: {
      int value = 0;
      must(cu()->cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(io.number), device_));
      io.number = static_cast<std::uint64_t>(value);
      break;
    }
    case order::export_chunk:
      must(cu()->cuMemExportToShareableHandle(
          &number, chunks_.at(io.number), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      out = base::unique_fd(number);
      break;
    case order::import_chunk:
      import_chunk(io, fd.get());
      break;
    case order::map_imported:
      map(static_cast<CUmemAccess_flags>(io.number), static_cast<int>(io.number2));
      break;
    case order::unmap:
      unmap();
      break;
    case order::alloc:
      must(cu()->cuMemAlloc_v2(&pointer_, io.number));
      size_bytes_ = io.number;
      break;
    case order::free:
      must(cu()->cuMemFree_v2(pointer_));
      break;
    case order::get_handle:
      must(cu()->cuIpcGetMemHandle(&handle, pointer_ + io.number));
      std::memcpy(io.bytes, &handle, sizeof(handle));
      break;
    case order::open_handle:
      std::memcpy(&handle, io.bytes, sizeof(handle));
      must(cu()->cuIpcOpenMemHandle_v2(&pointer_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
      size_bytes_ = io.number;
      break;
    case order::close_handle:
      must(cu()->cuIpcCloseMemHandle(pointer_));
      break;
    case order::buffer_id: {
      unsigned long long id = 0;
      must(cu()->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer_));
      io.number = id;
      break;
    }
    case order::fill:
      must(cu()->cuMemsetD8_v2(pointer_, static_cast<unsigned char>(io.number), size_bytes_));
      must(cu()->cuCtxSynchronize());
      break;
    case order::check:
      check(io);
      break;
    case order::write_word: {
      const auto word = static_cast<std::uint32_t>(io.number);
      must(cu()->cuMemcpyHtoD_v2(pointer_, &word, sizeof(word)));
      break;
    }
    case order::free_memory: {
      std::size_t free_bytes = 0;
      std::size_t total_bytes = 0;
      must(cu()->cuMemGetInfo_v2(&free_bytes, &total_bytes));
      io.number = free_bytes;
      io.number2 = total_bytes;
      break;
    }
    case order::pool_create:
    case order::pool_plain:
    case order::pool_export:
    case order::pool_import:
      out = pool(io, fd.get());
      break;
    case order::event_handle:
      must(cu()->cuEventCreate(&event_, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
      must(cu()->cuIpcGetEventHandle(&event_handle, event_));
      std::memcpy(io.bytes, &event_handle, sizeof(event_handle));
      break;
    case order::event_open:
      std::memcpy(&event_handle, io.bytes, sizeof(event_handle));
      must(cu()->cuIpcOpenEventHandle(&event_, event_handle));
      break;
    case order::event_record:
      must(cu()->cuEventRecord(event_, stream_));
      break;
    case order::event_wait:
      must(cu()->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
      must(cu()->cuStreamWaitEvent(stream_, event_, 0));
      break;
    case order::event_query:
      must(cu()->cuEventQuery(event_));
      break;
    case order::entry_point:
      find_entry_point(io);
      break;
    case order::wait_word:
      wait_word(io.number, fd.get());
      break;
    case order::wait_done:
      wait_done(io.number);
      break;
    case order::write_stream: {
      CUdeviceptr address = 0;
      must(cu()->cuMemHostGetDevicePointer_v2(&address, page_, 0));
      must(cu()->cuStreamWriteValue64_v2(
          stream_, address + sizeof(std::uint64_t), io.number, CU_STREAM_WRITE_VALUE_DEFAULT));
      break;
    }
    case order::where:
      io.number = pointer_;
      io.number2 = size_bytes_;
      break;
    case order::select:
      pointer_ = io.number;
      size_bytes_ = io.number2;
      break;
    case order::end:
      break;
    default:
      out = execute_raw(io, fd.get(), device_);
      break;
  }
  return out;
}

}  // namespace

int agent_main() {
  worker agent;
  message io;
  base::unique_fd fd;
  while (next_order(io, fd)) {
    if (io.what == order::end) {
      return 0;
    }
    base::unique_fd out;
    io.result = CUDA_SUCCESS;
    try {
      out = agent.execute(io, std::move(fd));
    } catch (const failed& failure) {
      io.result = failure.result;
    } catch (const error& failure) {
      // No driver: the test skips with this message.
      io.result = CUDA_ERROR_NOT_INITIALIZED;
      failure.cause().copy(io.bytes, sizeof(io.bytes) - 1);
    }
    send_answer(io, out.get());
  }
  return 1;
}

}  // namespace gpushm::conformance
