// SPDX-License-Identifier: Apache-2.0
// What an agent does when it is asked to.
#include "tests/conformance/driver_facts_orders.hpp"

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
void give_answer(const message& sent, int fd);

namespace {

using namespace gpushm::cuda;

constexpr std::size_t page_bytes = 4096;

class worker {
 public:
  // Returns the descriptor to answer with; `said` is order and answer.
  base::unique_fd obey(message& said, base::unique_fd fd);

 private:
  CUmemAllocationProp properties() const;
  void init(message& said);
  void create(std::size_t bytes, std::size_t chunks, bool rdma = false);
  void import_chunk(message& said, int fd);
  void map(CUmemAccess_flags flags, int ordinal);
  void unmap();
  void check(message& said);
  base::unique_fd pool(message& said, int fd);
  void wait_word(std::uint64_t value, int fd);
  void wait_done(std::uint64_t limit_ms);

  CUdevice device_ = 0;
  std::vector<CUmemGenericAllocationHandle> chunks_;
  std::size_t chunk_bytes_ = 0;
  CUdeviceptr pointer_ = 0;
  std::size_t size_bytes_ = 0;
  CUmemoryPool pool_ = nullptr;
  CUstream stream_ = nullptr;
  std::uint64_t* page_ = nullptr;
};

CUmemAllocationProp worker::properties() const {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  return prop;
}

void worker::init(message& said) {
  must(cu()->cuDeviceGet(&device_, static_cast<int>(said.number)));
  CUcontext context = nullptr;
  must(cu()->cuDevicePrimaryCtxRetain(&context, device_));
  must(cu()->cuCtxSetCurrent(context));
  int count = 0;
  must(cu()->cuDeviceGetCount(&count));
  said.number = static_cast<std::uint64_t>(::getpid());
  said.number2 = static_cast<std::uint64_t>(count);
  int peers = 0;
  if (count >= 2) {
    must(cu()->cuDeviceCanAccessPeer(&peers, 0, 1));
  }
  said.bytes[0] = static_cast<char>(peers);
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

void worker::import_chunk(message& said, int fd) {
  CUmemGenericAllocationHandle handle = 0;
  must(cu()->cuMemImportFromShareableHandle(
      &handle, as_shareable(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  chunks_.push_back(handle);
  // The size does not travel with the descriptor.
  chunk_bytes_ = said.number;
  CUmemAllocationProp prop{};
  must(cu()->cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  said.number = static_cast<std::uint64_t>(static_cast<std::int64_t>(prop.location.id));
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

void worker::check(message& said) {
  std::vector<unsigned char> copy(size_bytes_);
  must(cu()->cuMemcpyDtoH_v2(copy.data(), pointer_, copy.size()));
  // Block by block, because a byte at a time takes many seconds a GiB in a debug build.
  const std::vector<unsigned char> wanted(64UL << 10U, static_cast<unsigned char>(said.number));
  said.number = 0;
  for (std::size_t at = 0; at < copy.size(); at += wanted.size()) {
    const std::size_t size = std::min(wanted.size(), copy.size() - at);
    if (std::memcmp(copy.data() + at, wanted.data(), size) != 0) {
      for (std::size_t i = 0; i < size; ++i) {
        said.number += copy[at + i] != wanted[i] ? 1U : 0U;
      }
    }
  }
}

base::unique_fd worker::pool(message& said, int fd) {
  CUmemPoolPtrExportData data{};
  static_assert(sizeof(data) == sizeof(said.bytes));
  if (said.what == order::pool_import) {
    must(cu()->cuMemPoolImportFromShareableHandle(
        &pool_, as_shareable(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    std::memcpy(&data, said.bytes, sizeof(data));
    must(cu()->cuMemPoolImportPointer(&pointer_, pool_, &data));
    size_bytes_ = said.number;
    return {};
  }
  int exported = -1;
  if (said.what == order::pool_export) {
    must(cu()->cuMemPoolExportToShareableHandle(
        &exported, pool_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    base::unique_fd owner(exported);
    must(cu()->cuMemPoolExportPointer(&data, pointer_));
    std::memcpy(said.bytes, &data, sizeof(data));
    return owner;
  }
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = said.what == order::pool_create ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                      : CU_MEM_HANDLE_TYPE_NONE;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  must(cu()->cuMemPoolCreate(&pool_, &props));
  if (said.what == order::pool_plain) {
    const CUresult result = cu()->cuMemPoolExportToShareableHandle(
        &exported, pool_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    must(cu()->cuMemPoolDestroy(pool_));
    base::unique_fd owner(exported);
    must(result);
    return owner;
  }
  must(cu()->cuMemAllocFromPoolAsync(&pointer_, said.number, pool_, nullptr));
  must(cu()->cuStreamSynchronize(nullptr));
  size_bytes_ = said.number;
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

base::unique_fd worker::obey(message& said, base::unique_fd fd) {
  base::unique_fd out;
  CUipcMemHandle handle{};
  CUipcEventHandle event_handle{};
  CUevent event = nullptr;
  int number = -1;
  switch (said.what) {
    case order::init:
      init(said);
      break;
    case order::create:
      create(said.number, said.number2);
      break;
    case order::create_rdma:
      create(said.number, 1, true);
      break;
    case order::chunk_rdma: {
      CUmemAllocationProp prop{};
      must(cu()->cuMemGetAllocationPropertiesFromHandle(&prop, chunks_.at(0)));
      said.number = prop.allocFlags.gpuDirectRDMACapable;
      break;
    }
    case order::device_attribute: {
      int value = 0;
      must(cu()->cuDeviceGetAttribute(
          &value, static_cast<CUdevice_attribute>(said.number), device_));
      said.number = static_cast<std::uint64_t>(value);
      break;
    }
    case order::export_chunk:
      must(cu()->cuMemExportToShareableHandle(
          &number, chunks_.at(said.number), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
      out = base::unique_fd(number);
      break;
    case order::import_chunk:
      import_chunk(said, fd.get());
      break;
    case order::map_imported:
      map(static_cast<CUmemAccess_flags>(said.number), static_cast<int>(said.number2));
      break;
    case order::unmap:
      unmap();
      break;
    case order::alloc:
      must(cu()->cuMemAlloc_v2(&pointer_, said.number));
      size_bytes_ = said.number;
      break;
    case order::free:
      must(cu()->cuMemFree_v2(pointer_));
      break;
    case order::get_handle:
      must(cu()->cuIpcGetMemHandle(&handle, pointer_ + said.number));
      std::memcpy(said.bytes, &handle, sizeof(handle));
      break;
    case order::open_handle:
      std::memcpy(&handle, said.bytes, sizeof(handle));
      must(cu()->cuIpcOpenMemHandle_v2(&pointer_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
      size_bytes_ = said.number;
      break;
    case order::close_handle:
      must(cu()->cuIpcCloseMemHandle(pointer_));
      break;
    case order::buffer_id: {
      unsigned long long id = 0;
      must(cu()->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer_));
      said.number = id;
      break;
    }
    case order::fill:
      must(cu()->cuMemsetD8_v2(pointer_, static_cast<unsigned char>(said.number), size_bytes_));
      must(cu()->cuCtxSynchronize());
      break;
    case order::check:
      check(said);
      break;
    case order::write_word: {
      const auto word = static_cast<std::uint32_t>(said.number);
      must(cu()->cuMemcpyHtoD_v2(pointer_, &word, sizeof(word)));
      break;
    }
    case order::free_memory: {
      std::size_t free_bytes = 0;
      std::size_t total_bytes = 0;
      must(cu()->cuMemGetInfo_v2(&free_bytes, &total_bytes));
      said.number = free_bytes;
      said.number2 = total_bytes;
      break;
    }
    case order::pool_create:
    case order::pool_plain:
    case order::pool_export:
    case order::pool_import:
      out = pool(said, fd.get());
      break;
    case order::event_handle:
      must(cu()->cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
      must(cu()->cuIpcGetEventHandle(&event_handle, event));
      std::memcpy(said.bytes, &event_handle, sizeof(event_handle));
      break;
    case order::event_open:
      std::memcpy(&event_handle, said.bytes, sizeof(event_handle));
      must(cu()->cuIpcOpenEventHandle(&event, event_handle));
      break;
    case order::wait_word:
      wait_word(said.number, fd.get());
      break;
    case order::wait_done:
      wait_done(said.number);
      break;
    case order::write_stream: {
      CUdeviceptr address = 0;
      must(cu()->cuMemHostGetDevicePointer_v2(&address, page_, 0));
      must(cu()->cuStreamWriteValue64_v2(
          stream_, address + sizeof(std::uint64_t), said.number, CU_STREAM_WRITE_VALUE_DEFAULT));
      break;
    }
    case order::where:
      said.number = pointer_;
      said.number2 = size_bytes_;
      break;
    case order::select:
      pointer_ = said.number;
      size_bytes_ = said.number2;
      break;
    case order::end:
      break;
    default:
      out = obey_raw(said, fd.get(), device_);
      break;
  }
  return out;
}

}  // namespace

int agent_main() {
  worker agent;
  message said;
  base::unique_fd fd;
  while (next_order(said, fd)) {
    if (said.what == order::end) {
      return 0;
    }
    base::unique_fd out;
    said.result = CUDA_SUCCESS;
    try {
      out = agent.obey(said, std::move(fd));
    } catch (const failed& failure) {
      said.result = failure.result;
    } catch (const error& failure) {
      // No driver: the test skips with this text.
      said.result = CUDA_ERROR_NOT_INITIALIZED;
      failure.cause().copy(said.bytes, sizeof(said.bytes) - 1);
    }
    give_answer(said, out.get());
  }
  return 1;
}

}  // namespace gpushm::conformance
