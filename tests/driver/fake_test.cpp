// SPDX-License-Identifier: Apache-2.0
// src/gpu/driver on the fake driver, and guarantees of the fake beyond the facts of the real one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "base/process/signals.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/nvml.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/shareable_memory.hpp"
#include "gpu/driver/visibility.hpp"
#include "gpushm/client.hpp"
#include "gpushm/error.hpp"
#include "tests/support/fake_driver/fake_gpus.hpp"

namespace gpushm::driver {
namespace {

using namespace gpushm::cuda;

constexpr std::size_t step = 2UL << 20U;
constexpr std::size_t gpu_bytes = 64UL << 20U;

// Each case runs in its own child, forked before any driver is loaded: environment and driver state
// of one do not affect another. The child reports failures by its exit status and output.
class driver_fake : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("GPUSHM_FAKE_GPU_ROOT") == nullptr) {
      GTEST_SKIP() << "requires run-with-fake-gpus";
    }
  }
  static int status_of(const std::function<void()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        body();
      } catch (const std::exception& problem) {
        ADD_FAILURE() << problem.what();
      }
      std::fflush(nullptr);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    return status;
  }
  static void in_child(const std::function<void()>& body) { EXPECT_EQ(status_of(body), 0); }
};

CUmemAllocationProp on_device(int ordinal) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
  return prop;
}

// A context and a chunk mapped in a reservation, without access.
struct mapped_chunk {
  explicit mapped_chunk(std::size_t bytes = step) : size_bytes(bytes) {
    const CUmemAllocationProp prop = on_device(0);
    cuda_driver::check(cu->cuMemCreate(&handle, bytes, &prop, 0), "test", "", "cuMemCreate");
    cuda_driver::check(
        cu->cuMemAddressReserve(&pointer, bytes, 0, 0, 0), "test", "", "cuMemAddressReserve");
    cuda_driver::check(cu->cuMemMap(pointer, bytes, 0, handle, 0), "test", "", "cuMemMap");
  }
  CUresult set_access(CUmemAccess_flags flags, int ordinal = 0) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, ordinal}, flags};
    return cu->cuMemSetAccess(pointer, size_bytes, &access, 1);
  }

  const cuda_driver& cu = cuda_driver::instance();
  unique_primary_context context = retain_primary_context(0, "test", "");
  context_scope current{context.get().context, "test", ""};
  std::size_t size_bytes;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr pointer = 0;
};

TEST_F(driver_fake, lists_gpus_as_nvml_does) {
  in_child([] {
    const std::vector<gpu>& gpus = visible_gpus();
    const std::vector<nvml_gpu> nvml_gpus = nvml_library::instance().gpus();
    ASSERT_EQ(gpus.size(), 2U);
    ASSERT_EQ(nvml_gpus.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(gpus[i].ordinal, static_cast<int>(i));
      EXPECT_EQ(gpus[i].id.kind, device_kind::gpu);
      EXPECT_EQ(gpus[i].id, nvml_gpus[i].id);
      EXPECT_EQ(gpus[i].total_bytes, gpu_bytes);
      EXPECT_EQ(nvml_gpus[i].free_bytes, gpu_bytes);
      EXPECT_EQ(find_device(gpus[i].id.uuid.substr(0, 12)).ordinal, static_cast<int>(i));
      EXPECT_EQ(find_visible(gpus[i].id), &gpus[i]);
      EXPECT_NO_THROW(check_visible(gpus[i].id));
    }
    EXPECT_FALSE(nvml_library::instance().driver_version().empty());
  });
}

TEST_F(driver_fake, cuda_visible_devices_orders_and_hides) {
  std::string second;
  for (const auto& gpu : fake::read_config(std::getenv("GPUSHM_FAKE_GPU_ROOT"))) {
    second = gpu.uuid;
  }
  in_child([&] {
    ::setenv("CUDA_VISIBLE_DEVICES", second.substr(0, 14).c_str(), 1);
    ASSERT_EQ(visible_gpus().size(), 1U);
    EXPECT_EQ(visible_gpus()[0].id.uuid, second);
    EXPECT_EQ(visible_gpus()[0].id.minor, 1);
  });
  in_child([] {
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    try {
      static_cast<void>(cuda_driver::instance());
      ADD_FAILURE() << "initialised without a device";
    } catch (const error& failure) {
      EXPECT_EQ(failure.code(), errc::driver_unavailable);
      EXPECT_EQ(failure.cause(), "cuInit: no device: CUDA_ERROR_NO_DEVICE (100)");
    }
    EXPECT_EQ(cuda_driver::try_instance(), nullptr);
  });
}

TEST_F(driver_fake, does_not_survive_a_fork) {
  in_child([] {
    const cuda_driver& cu = cuda_driver::instance();
    EXPECT_EQ(status_of([&] {
                int count = 0;
                EXPECT_EQ(cu->cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
                EXPECT_EQ(cuda_driver::try_instance(), nullptr);
                try {
                  static_cast<void>(visible_gpus());
                  ADD_FAILURE() << "listed in a forked child";
                } catch (const error& failure) {
                  EXPECT_EQ(failure.code(), errc::forked);
                }
              }),
              0);
  });
}

TEST_F(driver_fake, does_not_survive_a_clone_without_fork_handlers) {
  in_child([] {
    static_cast<void>(cuda_driver::instance());
    const auto child =
        static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
    if (child == 0) {
      ::_exit(cuda_driver::try_instance() == nullptr ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_NE(cuda_driver::try_instance(), nullptr);
  });
}

TEST_F(driver_fake, hidden_gpu_is_reported_before_driver_call) {
  in_child([] {
    const std::vector<gpu> gpus = visible_gpus();
    ::setenv("GPUSHM_DEV_ROOT", "/nonexistent", 1);
    try {
      check_visible(gpus[1].id);
      ADD_FAILURE() << "visible";
    } catch (const error& failure) {
      EXPECT_EQ(failure.code(), errc::device_not_visible);
      EXPECT_NE(failure.cause().find("open(/nonexistent/nvidia1)"), std::string::npos)
          << failure.what();
    }
  });
}

// Runs `importer` in a process that may use only GPU 1, with the descriptor that `exporter` created
// on GPU 0.
template <typename Exporter, typename Importer>
int import_where_hidden(Exporter&& exporter, Importer&& importer) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  char dev[] = "/tmp/gpushm-dev-XXXXXX";
  EXPECT_NE(::mkdtemp(dev), nullptr);
  const std::string node = std::string(dev) + "/nvidia1";
  EXPECT_EQ(::symlink("/dev/null", node.c_str()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("GPUSHM_DEV_ROOT", dev, 1);
    // The descriptor comes through /proc: this process was forked before the exporter opened it.
    int numbers[2] = {-1, -1};
    if (::read(ends[0], numbers, sizeof(numbers)) != ssize_t{sizeof(numbers)}) {
      ::_exit(2);
    }
    const std::string path =
        "/proc/" + std::to_string(numbers[0]) + "/fd/" + std::to_string(numbers[1]);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    importer(fd);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  const int numbers[2] = {::getpid(), exporter()};
  EXPECT_EQ(::write(ends[1], numbers, sizeof(numbers)), ssize_t{sizeof(numbers)});
  int status = -1;
  ::waitpid(child, &status, 0);
  ::unlink(node.c_str());
  ::rmdir(dev);
  return status;
}

TEST_F(driver_fake, hidden_gpus_chunk_is_an_invalid_device) {
  in_child([] {
    const int status = import_where_hidden(
        [] {
          static mapped_chunk chunk;
          int fd = -1;
          EXPECT_EQ(chunk.cu->cuMemExportToShareableHandle(
                        &fd, chunk.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                    CUDA_SUCCESS);
          return fd;
        },
        [](int fd) {
          const cuda_driver& cu = cuda_driver::instance();
          CUmemGenericAllocationHandle handle = 0;
          EXPECT_EQ(cu->cuMemImportFromShareableHandle(
                        &handle,
                        reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                    CUDA_ERROR_INVALID_DEVICE);
        });
    EXPECT_EQ(status, 0);
  });
}

TEST_F(driver_fake, hidden_gpus_pool_crashes_its_importer) {
  in_child([] {
    const int status = import_where_hidden(
        [] {
          CUmemPoolProps props{};
          props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
          props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
          props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
          const cuda_driver& cu = cuda_driver::instance();
          CUmemoryPool pool = nullptr;
          EXPECT_EQ(cu->cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
          int fd = -1;
          EXPECT_EQ(cu->cuMemPoolExportToShareableHandle(
                        &fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                    CUDA_SUCCESS);
          return fd;
        },
        [](int fd) {
          ::signal(SIGSEGV, SIG_DFL);  // a sanitizer would turn it into an exit status
          const cuda_driver& cu = cuda_driver::instance();
          CUmemoryPool pool = nullptr;
          static_cast<void>(cu->cuMemPoolImportFromShareableHandle(
              &pool,
              reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
              0));
        });
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), SIGSEGV);
  });
}

TEST_F(driver_fake, access_is_none_until_set) {
  in_child([] {
    mapped_chunk chunk;
    char byte = 1;
    EXPECT_EQ(chunk.cu->cuMemcpyHtoD_v2(chunk.pointer, &byte, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(chunk.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
    EXPECT_EQ(chunk.cu->cuMemcpyHtoD_v2(chunk.pointer, &byte, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(chunk.cu->cuMemcpyDtoH_v2(&byte, chunk.pointer, 1), CUDA_SUCCESS);
    EXPECT_EQ(chunk.set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
    EXPECT_EQ(chunk.cu->cuMemcpyHtoD_v2(chunk.pointer, &byte, 1), CUDA_SUCCESS);
    EXPECT_EQ(chunk.cu->cuMemcpyHtoD_v2(chunk.pointer + step - 1, "ab", 2),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(chunk.cu->cuMemUnmap(chunk.pointer, step), CUDA_SUCCESS);
    EXPECT_EQ(chunk.cu->cuMemcpyDtoH_v2(&byte, chunk.pointer, 1), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(driver_fake, invalid_maps_are_rejected) {
  in_child([] {
    mapped_chunk chunk;
    const cuda_driver& cu = chunk.cu;
    EXPECT_EQ(cu->cuMemMap(chunk.pointer, step, 0, chunk.handle, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu->cuMemAddressFree(chunk.pointer, step), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu->cuMemUnmap(chunk.pointer, 2 * step), CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr room = 0;
    ASSERT_EQ(cu->cuMemAddressReserve(&room, 2 * step, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu->cuMemMap(room + 4096, step, 0, chunk.handle, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu->cuMemMap(room, 2 * step, 0, chunk.handle, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu->cuMemMap(room + 2 * step, step, 0, chunk.handle, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu->cuMemMap(room, step, 0, chunk.handle + 99, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(chunk.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ, 7), CUDA_ERROR_INVALID_DEVICE);
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cu->cuMemCreate(&handle, step + 4096, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu->cuMemAddressFree(room, 2 * step), CUDA_SUCCESS);
  });
}

TEST_F(driver_fake, memory_is_limited_and_freed) {
  in_child([] {
    const cuda_driver& cu = cuda_driver::instance();
    const unique_primary_context context = retain_primary_context(0, "test", "");
    const context_scope current(context.get().context, "test", "");
    const CUmemAllocationProp prop = on_device(0);
    {
      CUmemGenericAllocationHandle handle = 0;
      ASSERT_EQ(cu->cuMemCreate(&handle, gpu_bytes, &prop, 0), CUDA_SUCCESS);
      const unique_allocation all(handle);
      EXPECT_EQ(cu->cuMemCreate(&handle, step, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    }
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    ASSERT_EQ(cu->cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes, gpu_bytes);
    EXPECT_EQ(total_bytes, gpu_bytes);
  });
}

/// Changes one GPU in gpus.conf; restores the file at the end.
class changed_gpu {
 public:
  changed_gpu(std::size_t which, const std::function<void(fake::gpu_properties&)>& change)
      : root_(std::getenv("GPUSHM_FAKE_GPU_ROOT")), before_(fake::read_config(root_)) {
    auto changed = before_;
    change(changed.at(which));
    write(changed);
  }
  changed_gpu(const changed_gpu&) = delete;
  changed_gpu& operator=(const changed_gpu&) = delete;
  ~changed_gpu() { write(before_); }

 private:
  void write(const std::vector<fake::gpu_properties>& gpus) const {
    std::ofstream(root_ + "/gpus.conf") << fake::format_config(gpus);
  }
  std::string root_;
  std::vector<fake::gpu_properties> before_;
};

/// Creates a chunk on GPU `ordinal` twice, as segments do. `capable`: the expected property.
void expect_chunks(int ordinal, bool capable) {
  const gpu& on = visible_gpus().at(static_cast<std::size_t>(ordinal));
  for (int round = 0; round < 2; ++round) {
    CUmemAllocationProp properties = shareable_properties(on.handle);
    std::size_t granularity = 0;
    ASSERT_EQ(shareable_granularity(on, properties, &granularity), CUDA_SUCCESS);
    EXPECT_EQ(granularity, step);
    unique_allocation memory;
    ASSERT_EQ(create_shareable(on, properties, step, memory), CUDA_SUCCESS);
    CUmemAllocationProp created{};
    ASSERT_EQ(
        cuda_driver::instance()->cuMemGetAllocationPropertiesFromHandle(&created, memory.get()),
        CUDA_SUCCESS);
    EXPECT_EQ(created.allocFlags.gpuDirectRDMACapable, capable ? 1 : 0) << ordinal;
  }
}

std::vector<std::string>& log_lines() {
  static std::vector<std::string> lines;
  set_log_sink([](log_level, std::string_view text) { lines.emplace_back(text); });
  return lines;
}

TEST_F(driver_fake, chunks_are_rdma_capable_if_supported) {
  const changed_gpu second(1, [](fake::gpu_properties& gpu) { gpu.rdma_vmm = false; });
  in_child([] {
    const auto& lines = log_lines();
    expect_chunks(0, true);
    expect_chunks(1, false);
    EXPECT_TRUE(lines.empty()) << lines.front();
    CUmemAllocationProp prop = on_device(1);
    prop.allocFlags.gpuDirectRDMACapable = 1;
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuda_driver::instance()->cuMemCreate(&handle, step, &prop, 0),
              CUDA_ERROR_INVALID_DEVICE);
  });
}

TEST_F(driver_fake, chunks_without_rdma_if_driver_rejects_it) {
  in_child([] {
    ::setenv("GPUSHM_FAKE_FAIL", "cuMemCreate:1=1,cuMemCreate:3=801", 1);
    const auto& lines = log_lines();
    expect_chunks(0, false);
    const gpu& on = visible_gpus().front();
    ASSERT_EQ(lines.size(), 1U) << "once per process";
    EXPECT_EQ(lines.front(),
              on.id.uuid +
                  ": memory is allocated without GPUDirect RDMA although the GPU supports it: "
                  "cuMemCreate: CUDA_ERROR_INVALID_VALUE (1)");
    CUmemAllocationProp properties = shareable_properties(on.handle);
    unique_allocation memory;
    EXPECT_EQ(create_shareable(on, properties, gpu_bytes + step, memory), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(memory.get(), 0U);
  });
}

TEST_F(driver_fake, granularity_without_rdma_if_driver_rejects_it) {
  in_child([] {
    ::setenv("GPUSHM_FAKE_FAIL", "cuMemGetAllocationGranularity:1=1", 1);
    const auto& lines = log_lines();
    const gpu& on = visible_gpus().front();
    CUmemAllocationProp properties = shareable_properties(on.handle);
    EXPECT_EQ(properties.allocFlags.gpuDirectRDMACapable, 1);
    std::size_t granularity = 0;
    EXPECT_EQ(shareable_granularity(on, properties, &granularity), CUDA_SUCCESS);
    EXPECT_EQ(granularity, step);
    EXPECT_EQ(properties.allocFlags.gpuDirectRDMACapable, 0);
    EXPECT_EQ(lines.size(), 1U);
  });
}

TEST_F(driver_fake, ignored_rdma_flag_is_logged_once) {
  const changed_gpu first(0, [](fake::gpu_properties& gpu) { gpu.rdma_ignored = true; });
  in_child([] {
    const auto& lines = log_lines();
    expect_chunks(0, false);
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_EQ(lines.front(),
              visible_gpus().front().id.uuid +
                  ": memory is allocated without GPUDirect RDMA although the GPU supports it: "
                  "cuMemCreate ignored gpuDirectRDMACapable");
  });
}

TEST_F(driver_fake, killed_exporter_leaks_nothing) {
  in_child([] {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const cuda_driver& cu = cuda_driver::instance();
      const unique_primary_context context = retain_primary_context(0, "test", "");
      const context_scope current(context.get().context, "test", "");
      CUdeviceptr pointer = 0;
      CUipcMemHandle handle{};
      const bool created = cu->cuMemAlloc_v2(&pointer, gpu_bytes / 2) == CUDA_SUCCESS &&
                           cu->cuIpcGetMemHandle(&handle, pointer) == CUDA_SUCCESS;
      if (::write(ends[1], created ? "y" : "n", 1) == 1) {
        ::pause();
      }
      ::_exit(1);
    }
    char created = 0;
    ASSERT_EQ(::read(ends[0], &created, 1), 1);
    EXPECT_EQ(created, 'y');
    gpushm::base::signal_process(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const cuda_driver& cu = cuda_driver::instance();
    const unique_primary_context context = retain_primary_context(0, "test", "");
    const context_scope current(context.get().context, "test", "");
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    ASSERT_EQ(cu->cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes, gpu_bytes);
  });
}

TEST_F(driver_fake, fails_on_request_and_records_calls) {
  char path[] = "/tmp/gpushm-trace-XXXXXX";
  ::close(::mkstemp(path));
  in_child([&] {
    ::setenv("GPUSHM_FAKE_FAIL", "cuMemCreate:2=2,cuMemGetInfo_v2:*=999", 1);
    ::setenv("GPUSHM_FAKE_TRACE", path, 1);
    const cuda_driver& cu = cuda_driver::instance();
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cu->cuMemCreate(&handle, step, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu->cuMemCreate(&handle, step, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cu->cuMemCreate(&handle, step, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu->cuMemGetInfo_v2(nullptr, nullptr), CUDA_ERROR_UNKNOWN);
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    const std::string pid = std::to_string(::getpid());
    EXPECT_EQ(text.str(),
              pid + " cuInit 0\n" + pid + " cuDriverGetVersion 0\n" + pid + " cuMemCreate 0\n" +
                  pid + " cuMemCreate 2\n" + pid + " cuMemCreate 0\n" + pid +
                  " cuMemGetInfo_v2 999\n");
  });
  ::unlink(path);
}

TEST_F(driver_fake, destroyed_context_ends_waiting_streams) {
  in_child([] {
    const cuda_driver& cu = cuda_driver::instance();
    alignas(8) static std::uint64_t word = 0;
    CUcontext context = nullptr;
    ASSERT_EQ(cu->cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu->cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(cu->cuMemHostRegister_v2(&word, sizeof(word), 0), CUDA_SUCCESS);
    CUstream stream = nullptr;
    ASSERT_EQ(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    const auto address = reinterpret_cast<CUdeviceptr>(&word);
    ASSERT_EQ(cu->cuStreamWaitValue64_v2(stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ),
              CUDA_SUCCESS);
    EXPECT_EQ(cu->cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cu->cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(cu->cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
  });
}

}  // namespace
}  // namespace gpushm::driver
