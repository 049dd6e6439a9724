// SPDX-License-Identifier: Apache-2.0
// Tensors of a real PyTorch, with each of its allocators, shared with a process without PyTorch.
// Needs PyTorch and a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <string>

#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/share/agent.hpp"
#include "tests/support/container/gpu_access.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Commands on standard input: "share NAME OFFSET BYTES", "fill VALUE", "free".
constexpr const char* script = R"py(
import ctypes, sys, torch
shim = ctypes.CDLL(sys.argv[1])
text = ctypes.create_string_buffer(4096)
small = torch.ones(1000, dtype=torch.uint8, device="cuda")
tensor = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
print("ready", torch.__version__, flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "share":
        result = shim.share_shim_share(
            sys.argv[2].encode(), words[1].encode(),
            ctypes.c_void_p(tensor.data_ptr() + int(words[2])), ctypes.c_uint64(int(words[3])),
            text, ctypes.c_size_t(4096))
        print("ok" if result == 0 else "error", text.value.decode(), flush=True)
    elif words[0] == "fill":
        tensor[int(words[1]):int(words[2])] = int(words[3])
        torch.cuda.synchronize()
        print("ok", flush=True)
    elif words[0] == "free":
        del tensor
        torch.cuda.empty_cache()
        tensor = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        print("ok", flush=True)
)py";

class share_torch : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpushm_testing::nvidia_minors().empty()) {
      GTEST_SKIP() << "no NVIDIA GPU on this machine";
    }
    const auto tried =
        gpushm_testing::run_program({{"python3", "-c", "import torch"}}, seconds(120));
    if (!tried.status.success()) {
      GTEST_SKIP() << "no PyTorch on this machine";
    }
    options_.socket_path = folder_ / "socket";
    broker_.emplace(gpushm::broker::start(options_));
  }

  /// Starts PyTorch with this PYTORCH_CUDA_ALLOC_CONF and 1 GiB of memory.
  [[nodiscard]] child torch(const std::string& configuration) const {
    gpushm_testing::spawn_options options;
    options.argv = {"python3",
                    "-c",
                    script,
                    gpushm_testing::own_library("libgpushm_share_shim.so"),
                    options_.socket_path};
    options.env = {{"PYTORCH_CUDA_ALLOC_CONF", configuration},
                   {"PYTORCH_ALLOC_CONF", configuration}};
    child started = child::start(options);
    started.wait_for_line("^ready ", seconds(120));
    return started;
  }
  static std::string request(child& process, const std::string& order) {
    process.write(order + "\n");
    return process.wait_for_line("^(ok|error)", seconds(60));
  }
  [[nodiscard]] agent importer() const {
    agent started(agent_settings{});
    started.request("connect " + options_.socket_path);
    started.request("device 0");
    return started;
  }

  gpushm_testing::temp_dir folder_;
  gpushm::broker_options options_;
  std::optional<gpushm::broker> broker_;
};

TEST_F(share_torch, default_allocator_uses_legacy_handle) {
  child torch_process = torch("");
  EXPECT_EQ(request(torch_process, "fill 0 1073741824 3"), "ok");
  EXPECT_EQ(request(torch_process, "share whole 0 1073741824"), "ok cuda-ipc");
  EXPECT_EQ(request(torch_process, "share part 524288000 1000000"), "ok cuda-ipc");
  agent opener = importer();
  opener.request("open whole");
  EXPECT_EQ(opener.request("check 0 1073741824 3"), "0");
  opener.request("put 524288000 1000000 4");
  opener.request("open part");
  EXPECT_EQ(opener.request("check 0 1000000 4"), "0");
  // The caching allocator keeps the block, so the buffer is the same; empty_cache frees it.
  EXPECT_EQ(request(torch_process, "free"), "ok");
  EXPECT_EQ(importer().code("open whole"), "gone_or_replaced");
  EXPECT_EQ(opener.request("check 0 1000000 4"), "0");
}

TEST_F(share_torch, expandable_segments_are_shared_as_chunks) {
  child torch_process = torch("expandable_segments:True");
  EXPECT_EQ(request(torch_process, "fill 0 1073741824 3"), "ok");
  EXPECT_EQ(request(torch_process, "share whole 0 1073741824"), "ok cuda-vmm");
  EXPECT_EQ(request(torch_process, "share part 524288000 100000000"), "ok cuda-vmm");
  auto watch = gpushm::client::connect({.socket_path = options_.socket_path});
  EXPECT_GE(watch.stat("whole").chunks, 51U) << "20 MiB each";
  agent opener = importer();
  opener.request("open whole");
  EXPECT_EQ(opener.request("check 0 1073741824 3"), "0");
  opener.request("put 524288000 1000000 4");
  opener.request("open part");
  EXPECT_EQ(opener.request("check 0 1000000 4"), "0");
  EXPECT_EQ(opener.request("check 1000000 99000000 3"), "0");
  // Physical chunks remain after PyTorch frees them.
  EXPECT_EQ(request(torch_process, "free"), "ok");
  torch_process.kill(SIGKILL);
  static_cast<void>(torch_process.wait_exit(seconds(30)));
  EXPECT_EQ(opener.request("check 0 1000000 4"), "0");
}

TEST_F(share_torch, async_allocator_is_refused_with_remedy) {
  child torch_process = torch("backend:cudaMallocAsync");
  const std::string reply = request(torch_process, "share whole 0 1073741824");
  EXPECT_THAT(reply,
              StartsWith("error share \"whole\": it is memory of a pool that cannot be "
                         "exported"));
  EXPECT_THAT(reply,
              HasSubstr("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True instead of "
                        "backend:cudaMallocAsync"));
}

}  // namespace
}  // namespace gpushm_tests
