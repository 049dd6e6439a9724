// SPDX-License-Identifier: Apache-2.0
// Files of events, in /dev/shm under the driver's names. As measured on an H200 (driver 580), the
// driver calls shm_open, shm_unlink, getpid and getuid of the C library, so that a preloaded
// library can answer these. What the pages contain is the fake's own.
#include "tests/support/fake_driver/event_file.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"

namespace gpushm::fake {

namespace {

constexpr std::uint32_t events_per_file = 4096;
constexpr std::size_t event_bytes = 20;
constexpr std::size_t file_bytes = event_bytes * events_per_file;
static_assert(file_bytes == 80UL << 10U);
static_assert(sizeof(event_words) <= event_bytes && event_bytes % alignof(event_words) == 0);

using file_name = std::array<char, 64>;

file_name name_of(pid_t pid, std::uint64_t number) {
  file_name name{};
  std::snprintf(name.data(),
                name.size(),
                "/cuda.shm.%x.%x.%llx",
                ::getuid(),
                static_cast<unsigned int>(pid),
                static_cast<unsigned long long>(number));
  return name;
}

}  // namespace

class event_file {
 public:
  event_file(pid_t pid, std::uint64_t number, void* memory, base::unique_fd fd)
      : pid_(pid), number_(number), memory_(memory), fd_(std::move(fd)) {}
  event_file(const event_file&) = delete;
  event_file& operator=(const event_file&) = delete;
  ~event_file() { ::munmap(memory_, file_bytes); }

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  [[nodiscard]] event_words* words(std::uint32_t event) const noexcept {
    return reinterpret_cast<event_words*>(static_cast<char*>(memory_) + event * event_bytes);
  }

  /// Guarded by the mutex of the tables.
  std::vector<std::uint32_t> freed;
  std::uint32_t unused = events_per_file;  ///< those below were never in use

 private:
  const pid_t pid_;
  const std::uint64_t number_;
  void* const memory_;
  const base::unique_fd fd_;  ///< of a created file: the driver keeps it open
};

namespace {

/// Never destroyed, like the state.
struct tables {
  std::mutex mutex;  ///< guards all of it
  std::vector<std::shared_ptr<event_file>> created;
  std::uint64_t last_number = 0;
  std::map<std::pair<pid_t, std::uint64_t>, std::weak_ptr<event_file>> opened;
};

tables& all() {
  static tables* const instance = new tables();
  return *instance;
}

// Not as the driver, which leaves its files: tests must not fill /dev/shm.
void remove_files() {
  for (const auto& each : all().created) {
    if (each->pid() == ::getpid()) {  // else a forked child exits
      ::shm_unlink(name_of(each->pid(), each->number()).data());
    }
  }
}

void* map_file(int fd) {
  void* const memory = ::mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// Called with the mutex of the tables.
CUresult add_file() {
  constexpr int most_leftovers = 1000;
  base::unique_fd fd;
  const pid_t pid = ::getpid();
  for (int tries = 0; !fd && tries < most_leftovers; ++tries) {
    const file_name name = name_of(pid, ++all().last_number);
    fd = base::unique_fd(::shm_open(name.data(), O_RDWR | O_CREAT | O_EXCL, 0600));
    if (!fd) {
      // Of a killed process that had this PID.
      ::shm_unlink(name.data());
    }
  }
  struct statfs system {};
  if (!fd) {
    return cuda::CUDA_ERROR_OPERATING_SYSTEM;
  }
  if (::fstatfs(fd.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(file_bytes)) != 0) {
    return cuda::CUDA_ERROR_OPERATING_SYSTEM;
  }
  void* const memory = map_file(fd.get());
  if (memory == nullptr) {
    return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (all().created.empty()) {
    std::atexit(remove_files);
  }
  all().created.push_back(
      std::make_shared<event_file>(pid, all().last_number, memory, std::move(fd)));
  return cuda::CUDA_SUCCESS;
}

}  // namespace

CUresult create_shared_event(shared_event& created) {
  const std::lock_guard lock(all().mutex);
  for (const auto& each : all().created) {
    if (!each->freed.empty()) {
      created = {each, each->freed.back(), each->words(each->freed.back())};
      each->freed.pop_back();
      return cuda::CUDA_SUCCESS;
    }
  }
  if (all().created.empty() || all().created.back()->unused == 0) {
    if (const CUresult result = add_file(); result != cuda::CUDA_SUCCESS) {
      return result;
    }
  }
  const auto& last = all().created.back();
  const std::uint32_t number = --last->unused;
  created = {last, number, last->words(number)};
  return cuda::CUDA_SUCCESS;
}

void free_shared_event(const shared_event& event) {
  const std::lock_guard lock(all().mutex);
  event.file->freed.push_back(event.number);
}

event_place place_of(const shared_event& event) {
  return {event.file->pid(), event.file->number(), event.number};
}

CUresult open_shared_event(const event_place& place, shared_event& opened) {
  if (place.number >= events_per_file) {
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(all().mutex);
  // Events of one file share one mapping while one of them is open.
  auto& known = all().opened[{place.pid, place.file}];
  auto file = known.lock();
  if (file == nullptr) {
    const base::unique_fd fd(::shm_open(name_of(place.pid, place.file).data(), O_RDWR, 0));
    struct stat status {};
    void* const memory =
        fd && ::fstat(fd.get(), &status) == 0 && status.st_size >= static_cast<off_t>(file_bytes)
            ? map_file(fd.get())
            : nullptr;
    if (memory == nullptr) {
      all().opened.erase({place.pid, place.file});
      return cuda::CUDA_ERROR_MAP_FAILED;
    }
    file = std::make_shared<event_file>(place.pid, place.file, memory, base::unique_fd());
    known = file;
  }
  opened = {file, place.number, file->words(place.number)};
  return cuda::CUDA_SUCCESS;
}

}  // namespace gpushm::fake
