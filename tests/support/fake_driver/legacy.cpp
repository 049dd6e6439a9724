// SPDX-License-Identifier: Apache-2.0
// Legacy handles (cuIpc*MemHandle): a name in the GPU's directory through which the importer finds
// the file.
#include "tests/support/fake_driver/legacy.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tests/support/fake_driver/gpu_file.hpp"
#include "tests/support/fake_driver/state.hpp"

using namespace gpushm;
using namespace gpushm::cuda;
using gpushm::fake::as_address;
using gpushm::fake::entry;
using gpushm::fake::legacy_memory;
using gpushm::fake::range_kind;
using gpushm::fake::state;

namespace {

constexpr char name_prefix[] = ".exported-";

// The 64 bytes. Only the position of the PID, and that the bytes from 56 on are zero and ignored,
// are as in the real driver.
struct handle_layout {
  char magic[8];
  std::int32_t pid;
  std::uint32_t slot;
  char uuid[16];
  std::uint64_t size_bytes;
  std::uint64_t exporter;  // distinguishes processes that had the same PID
  char unused[16];
};
static_assert(sizeof(handle_layout) == ipc_handle_bytes);
static_assert(offsetof(handle_layout, pid) == ipc_handle_pid_offset);

constexpr char handle_magic[8] = {'f', 'a', 'k', 'e', 'i', 'p', 'c', '1'};

// The memory of an opened handle; opens of the same memory share it.
struct opened_memory {
  opened_memory() = default;
  opened_memory(const opened_memory&) = delete;
  opened_memory& operator=(const opened_memory&) = delete;
  ~opened_memory() { ::munmap(memory, size_bytes); }

  void* memory = nullptr;
  std::size_t size_bytes = 0;
  dev_t device = 0;
  ino_t inode = 0;
  unsigned int slot = 0;
  int opens = 1;
};

struct flock whole_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

// Whether a live process has the file open as its exporter. The exporter's lock belongs to its open
// file description, so it is released with it.
bool exporter_is_alive(int fd) {
  struct flock lock = whole_file(F_WRLCK);
  return ::fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

std::string slot_path(const std::string& directory, unsigned int slot) {
  return directory + "/" + name_prefix + std::to_string(slot);
}

// Uses the lowest free name, so that memory that is freed and allocated again gets the same handle
// (L4).
CUresult add_name(legacy_memory& memory) {
  const std::string& directory = state().gpus[memory.gpu].directory;
  struct flock lock = whole_file(F_WRLCK);
  if (::fcntl(memory.fd.get(), F_OFD_SETLK, &lock) != 0) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  fake::sweep_dead_exports(directory);
  const std::string self = "/proc/self/fd/" + std::to_string(memory.fd.get());
  for (unsigned int slot = 0;; ++slot) {
    const std::string path = slot_path(directory, slot);
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      memory.path = path;
      memory.slot = slot;
      return CUDA_SUCCESS;
    }
    if (errno != EEXIST) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
  }
}

// Adds an open to the opened memory for which `matches` is true; false when there is none.
template <typename Predicate>
bool open_again(CUdeviceptr* pointer, Predicate&& matches) {
  for (auto& [base, each] : state().ranges.all()) {
    auto* const known = static_cast<opened_memory*>(each.owner.get());
    if (each.kind == range_kind::opened && matches(each, *known)) {
      ++known->opens;
      *pointer = base;
      return true;
    }
  }
  return false;
}

// Of a dead exporter's memory, only what this process has open can be opened again.
CUresult open_without_exporter(const handle_layout& handle, std::size_t gpu, CUdeviceptr* pointer) {
  const bool again = open_again(pointer, [&](const fake::range& each, const opened_memory& known) {
    return each.gpu == gpu && known.slot == handle.slot && each.size_bytes == handle.size_bytes;
  });
  return again ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult open_exported(const handle_layout& handle, CUdeviceptr* pointer) {
  fake::driver_state& now = state();
  std::size_t gpu = now.gpus.size();
  for (std::size_t index = 0; index < now.gpus.size(); ++index) {
    char bytes[16];
    fake::uuid_bytes(now.gpus[index].properties.uuid, bytes);
    if (std::memcmp(bytes, handle.uuid, sizeof(bytes)) == 0) {
      gpu = index;
    }
  }
  if (gpu == now.gpus.size() || !now.gpus[gpu].openable) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::string path = slot_path(now.gpus[gpu].directory, handle.slot);
  const base::unique_fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) {
    return open_without_exporter(handle, gpu, pointer);
  }
  if (!exporter_is_alive(fd.get())) {
    fake::sweep_dead_exports(now.gpus[gpu].directory);
    return open_without_exporter(handle, gpu, pointer);
  }
  const auto header = fake::read_header(fd.get());
  struct stat status {};
  if (!header || header->kind != fake::file_kind::legacy || ::fstat(fd.get(), &status) != 0 ||
      header->size_bytes < handle.size_bytes || header->exporter != handle.exporter) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (open_again(pointer, [&](const fake::range&, const opened_memory& known) {
        return known.device == status.st_dev && known.inode == status.st_ino;
      })) {
    return CUDA_SUCCESS;
  }
  void* const memory =
      fake::map_gpu_file(fd.get(), 0, header->size_bytes, PROT_READ | PROT_WRITE, nullptr);
  if (memory == nullptr) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto opened = std::make_shared<opened_memory>();
  opened->memory = memory;
  opened->size_bytes = header->size_bytes;
  opened->device = status.st_dev;
  opened->inode = status.st_ino;
  opened->slot = handle.slot;
  fake::range added;
  added.base = as_address(memory);
  added.size_bytes = handle.size_bytes;
  added.kind = range_kind::opened;
  added.gpu = gpu;
  added.context = fake::current_context()->gpu;
  added.readable = true;
  added.writable = true;
  added.buffer_id = now.ranges.next_buffer_id();
  added.owner = std::move(opened);
  *pointer = added.base;
  now.ranges.add(std::move(added));
  return CUDA_SUCCESS;
}

CUresult open_handle(const CUipcMemHandle& handle, CUdeviceptr* pointer) {
  const std::lock_guard lock(state().mutex);
  if (fake::current_context() == nullptr) {
    return fake::why_no_context();
  }
  handle_layout layout{};
  std::memcpy(&layout, handle.reserved, sizeof(layout));
  if (pointer == nullptr || std::memcmp(layout.magic, handle_magic, sizeof(handle_magic)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // I2: any handle with this process's PID is refused, whichever process exported it.
  if (layout.pid == ::getpid()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return open_exported(layout, pointer);
}

}  // namespace

legacy_memory::~legacy_memory() {
  if (!path.empty()) {
    ::unlink(path.c_str());
  }
  if (memory != nullptr) {
    ::munmap(memory, size_bytes);
    state().own_bytes[gpu] -= size_bytes;
  }
}

void fake::sweep_dead_exports(const std::string& directory) {
  DIR* const listing = ::opendir(directory.c_str());
  if (listing == nullptr) {
    return;
  }
  while (const dirent* const item = ::readdir(listing)) {
    if (std::strncmp(item->d_name, name_prefix, sizeof(name_prefix) - 1) != 0) {
      continue;
    }
    const base::unique_fd fd(
        ::openat(::dirfd(listing), item->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    // Fails without harm for files of other users in this sticky directory: they sweep their own
    // files.
    if (fd && !exporter_is_alive(fd.get())) {
      ::unlinkat(::dirfd(listing), item->d_name, 0);
    }
  }
  ::closedir(listing);
}

CUresult cuda::cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  return entry("cuIpcGetMemHandle", [&] {
    const std::lock_guard lock(state().mutex);
    if (fake::current_context() == nullptr) {
      return fake::why_no_context();
    }
    const fake::range* const range = state().ranges.find(pointer);
    if (handle == nullptr || range == nullptr || range->kind != range_kind::legacy) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto& memory = *static_cast<legacy_memory*>(range->owner.get());
    if (memory.path.empty()) {
      if (const CUresult result = add_name(memory); result != CUDA_SUCCESS) {
        return result;
      }
    }
    handle_layout layout{};
    std::memcpy(layout.magic, handle_magic, sizeof(handle_magic));
    layout.pid = ::getpid();
    layout.slot = memory.slot;
    fake::uuid_bytes(state().gpus[memory.gpu].properties.uuid, layout.uuid);
    layout.size_bytes = range->size_bytes;
    const auto header = fake::read_header(memory.fd.get());
    layout.exporter = header ? header->exporter : 0;
    std::memcpy(handle->reserved, &layout, sizeof(layout));
    return CUDA_SUCCESS;
  });
}

CUresult cuda::cuIpcOpenMemHandle_v2(CUdeviceptr* pointer,
                                     CUipcMemHandle handle,
                                     unsigned int /*flags*/) {
  return entry("cuIpcOpenMemHandle_v2", [&] { return open_handle(handle, pointer); });
}

CUresult cuda::cuIpcOpenMemHandle(CUdeviceptr* pointer,
                                  CUipcMemHandle handle,
                                  unsigned int /*flags*/) {
  return entry("cuIpcOpenMemHandle", [&] { return open_handle(handle, pointer); });
}

CUresult cuda::cuIpcCloseMemHandle(CUdeviceptr pointer) {
  return entry("cuIpcCloseMemHandle", [&] {
    const std::lock_guard lock(state().mutex);
    const fake::range* const range = state().ranges.find(pointer);
    if (range == nullptr || range->kind != range_kind::opened || range->base != pointer) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (--static_cast<opened_memory*>(range->owner.get())->opens == 0) {
      state().ranges.remove(pointer);
    }
    return CUDA_SUCCESS;
  });
}
