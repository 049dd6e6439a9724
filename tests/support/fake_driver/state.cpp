// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_driver/state.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>

namespace gpushm::fake {

namespace {

std::atomic<driver_state*> the_state{nullptr};
std::atomic<bool> forked{false};

struct failure {
  std::string call;
  std::uint64_t count = 0;  // 0: every call
  unsigned int result = 0;
  bool crash = false;
  std::chrono::microseconds delay{0};  ///< before the call proceeds
};

/// "2500": milliseconds; "70us": microseconds.
std::chrono::microseconds delay_in(const char* text) {
  char* unit = nullptr;
  const long count = std::strtol(text, &unit, 10);
  return std::string_view(unit) == "us" ? std::chrono::microseconds(count)
                                        : std::chrono::milliseconds(count);
}

/// Busy-waits for short delays: a sleep would take longer.
void take(std::chrono::microseconds delay) {
  constexpr std::chrono::milliseconds shortest_sleep{1};
  if (delay >= shortest_sleep) {
    std::this_thread::sleep_for(delay);
    return;
  }
  const auto end = std::chrono::steady_clock::now() + delay;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// GPUSHM_FAKE_FAIL="cuMemMap:3=2,cuMemCreate:*=2,cuInit:1=crash": the 3rd cuMemMap of this process
// returns 2, every cuMemCreate returns 2, and the first cuInit crashes the process like a broken
// driver. "cuInit:1=after2500": it takes 2.5 s longer, as when GPUs have to be woken; "after70us":
// 70 microseconds.
std::vector<failure> read_failures() {
  std::vector<failure> failures;
  const char* const text = std::getenv("GPUSHM_FAKE_FAIL");
  constexpr std::string_view after = "after";
  std::istringstream items(text == nullptr ? "" : text);
  for (std::string item; std::getline(items, item, ',');) {
    const auto colon = item.find(':');
    const auto equals = item.find('=');
    if (colon == std::string::npos || equals == std::string::npos || equals < colon) {
      std::fprintf(stderr, "fake libcuda: GPUSHM_FAKE_FAIL: cannot read \"%s\"\n", item.c_str());
      std::abort();
    }
    failures.push_back({item.substr(0, colon),
                        std::strtoull(item.c_str() + colon + 1, nullptr, 10),
                        static_cast<unsigned int>(std::atoi(item.c_str() + equals + 1)),
                        item.compare(equals + 1, std::string::npos, "crash") == 0,
                        item.compare(equals + 1, after.size(), after) == 0
                            ? delay_in(item.c_str() + equals + 1 + after.size())
                            : std::chrono::microseconds(0)});
  }
  return failures;
}

CUresult injected_failure(std::string_view name) {
  static const std::vector<failure> failures = read_failures();
  if (failures.empty()) {
    return cuda::CUDA_SUCCESS;
  }
  static std::mutex mutex;
  static std::map<std::string, std::uint64_t, std::less<>> calls;
  const std::lock_guard lock(mutex);
  const std::uint64_t count = ++calls.try_emplace(std::string(name), 0).first->second;
  for (const failure& each : failures) {
    if (each.call == name && (each.count == 0 || each.count == count)) {
      if (each.crash) {
        std::signal(SIGSEGV, SIG_DFL);  // a sanitizer would turn it into an exit status
        std::raise(SIGSEGV);
      }
      if (each.delay.count() != 0) {
        take(each.delay);
        continue;
      }
      return static_cast<CUresult>(each.result);
    }
  }
  return cuda::CUDA_SUCCESS;
}

bool names_device(const gpu_view& gpu, const std::string& text) {
  return text.size() >= 8 && gpu.properties.uuid.compare(0, text.size(), text) == 0;
}

// The devices that CUDA lists, in its order: GPUs and MIG instances that can be opened, as
// CUDA_VISIBLE_DEVICES selects them. The list ends at the first entry that matches no device.
std::vector<std::size_t> enumerate(const std::vector<gpu_view>& gpus) {
  std::vector<std::size_t> present;
  for (std::size_t index = 0; index < gpus.size(); ++index) {
    const bool split = std::any_of(gpus.begin(), gpus.end(), [&](const gpu_view& other) {
      return other.properties.mig_parent == gpus[index].properties.section;
    });
    if (gpus[index].openable && !split) {
      present.push_back(index);
    }
  }
  const char* const selection = std::getenv("CUDA_VISIBLE_DEVICES");
  if (selection == nullptr) {
    return present;
  }
  std::vector<std::size_t> selected;
  std::istringstream items(selection);
  for (std::string item; std::getline(items, item, ',');) {
    char* end = nullptr;
    const unsigned long ordinal = std::strtoul(item.c_str(), &end, 10);
    std::size_t selected_gpu = gpus.size();
    if (!item.empty() && *end == '\0') {
      selected_gpu = ordinal < present.size() ? present[ordinal] : selected_gpu;
    } else {
      for (const std::size_t index : present) {
        selected_gpu = names_device(gpus[index], item) ? index : selected_gpu;
      }
    }
    if (selected_gpu == gpus.size() ||
        std::find(selected.begin(), selected.end(), selected_gpu) != selected.end()) {
      break;
    }
    selected.push_back(selected_gpu);
  }
  return selected;
}

}  // namespace

driver_state& state() noexcept {
  return *the_state.load(std::memory_order_acquire);
}

CUresult initialise() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (the_state.load(std::memory_order_relaxed) != nullptr) {
    return cuda::CUDA_SUCCESS;
  }
  auto created = std::make_unique<driver_state>();
  created->gpus = read_gpus();
  created->enumerated = enumerate(created->gpus);
  if (created->enumerated.empty()) {
    return cuda::CUDA_ERROR_NO_DEVICE;
  }
  for (std::size_t index = 0; index < created->gpus.size(); ++index) {
    created->contexts.push_back(std::make_unique<context>());
    created->contexts.back()->gpu = index;
  }
  created->own_bytes.resize(created->gpus.size());
  ::pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  the_state.store(created.release(), std::memory_order_release);
  return cuda::CUDA_SUCCESS;
}

std::size_t driver_state::index_of(std::string_view uuid) const {
  std::size_t index = 0;
  while (index < gpus.size() && gpus[index].properties.uuid != uuid) {
    ++index;
  }
  return index;
}

cuda::CUdevice driver_state::device_of(std::size_t gpu) const {
  const auto result = std::find(enumerated.begin(), enumerated.end(), gpu);
  return result == enumerated.end() ? cuda::device_invalid
                                    : static_cast<cuda::CUdevice>(result - enumerated.begin());
}

std::size_t driver_state::gpu_of(cuda::CUdevice device) const {
  return device < 0 || static_cast<std::size_t>(device) >= enumerated.size()
             ? gpus.size()
             : enumerated[static_cast<std::size_t>(device)];
}

std::uint64_t driver_state::free_bytes(std::size_t gpu) const {
  const memory_state memory = read_memory_state(gpus[gpu]);
  return memory.own_file_system ? memory.free_bytes
                                : memory.total_bytes - std::min(memory.total_bytes, own_bytes[gpu]);
}

bool driver_state::peers(std::size_t a, std::size_t b) const {
  return a != b && gpus[a].properties.peer && gpus[b].properties.peer;
}

namespace detail {

CUresult before_call(std::string_view name, bool needs_init) noexcept {
  if (forked.load(std::memory_order_relaxed)) {
    return cuda::CUDA_ERROR_NOT_INITIALIZED;
  }
  try {
    if (const CUresult injected = injected_failure(name); injected != cuda::CUDA_SUCCESS) {
      return injected;
    }
  } catch (...) {
    return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  }
  return needs_init && the_state.load(std::memory_order_acquire) == nullptr
             ? cuda::CUDA_ERROR_NOT_INITIALIZED
             : cuda::CUDA_SUCCESS;
}

void after_call(std::string_view name, CUresult result) noexcept {
  static const char* const path = std::getenv("GPUSHM_FAKE_TRACE");
  if (path == nullptr) {
    return;
  }
  char line[160];
  const int length = std::snprintf(line,
                                   sizeof(line),
                                   "%d %.*s %u\n",
                                   static_cast<int>(::getpid()),
                                   static_cast<int>(name.size()),
                                   name.data(),
                                   static_cast<unsigned int>(result));
  // Opened for each line: programs close descriptors that they did not open.
  const int fd = ::open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd >= 0) {
    // Other processes cannot interleave with one short write to a file opened for appending.
    [[maybe_unused]] const ssize_t written = ::write(fd, line, static_cast<std::size_t>(length));
    ::close(fd);
  }
}

}  // namespace detail

}  // namespace gpushm::fake
