// SPDX-License-Identifier: Apache-2.0
// The parts of src/gpu/driver that need no driver: parsing, verdicts, selection.
#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/device_text.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/visibility.hpp"
#include "gpushm/error.hpp"

namespace gpushm::driver {
namespace {

TEST(driver_information, reads_minor_and_uuid) {
  const gpu_information information = parse_gpu_information(
      "Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\n"
      "GPU UUID: \t GPU-01020304-0506-0708-090a-0b0c0d0e0f10\n"
      "Bus Location: \t 0000:18:00.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n");
  EXPECT_EQ(information.minor, 3);
  EXPECT_EQ(information.uuid, "GPU-01020304-0506-0708-090a-0b0c0d0e0f10");
}

TEST(driver_information, omits_hidden_or_malformed) {
  const gpu_information information = parse_gpu_information(
      "GPU UUID: \t GPU-\?\?\?\?\?\?\?\?-\?\?\?\?\nDevice Minor: \t x\nno colon");
  EXPECT_EQ(information.minor, -1);
  EXPECT_EQ(information.uuid, "");
  EXPECT_EQ(parse_gpu_information("Device Minor: -5").minor, -1);
  EXPECT_EQ(parse_gpu_information("").minor, -1);
}

TEST(driver_pci_address, is_normalised) {
  EXPECT_EQ(normal_pci_address("0000:18:00.0"), "0000:18:00.0");
  EXPECT_EQ(normal_pci_address("00000000:AB:1F.7"), "0000:ab:1f.7");
  EXPECT_EQ(normal_pci_address("00010000:01:00.0"), "10000:01:00.0");
  for (const char* wrong :
       {"", "18:00.0", "0000:18:00", "0000:18:20.0", "0000:18:00.8", "0000:100:00.0", "g:1:1.0"}) {
    EXPECT_EQ(normal_pci_address(wrong), std::nullopt) << wrong;
  }
}

TEST(driver_node, name_contains_minor) {
  EXPECT_EQ(minor_of_node("nvidia0"), 0);
  EXPECT_EQ(minor_of_node("nvidia127"), 127);
  for (const char* other : {"nvidia",
                            "nvidiactl",
                            "nvidia-uvm",
                            "nvidia-1",
                            "nvidia+1",
                            "nvidia7x",
                            "nvidia 7",
                            "xnvidia7",
                            "nvidia99999999999"}) {
    EXPECT_EQ(minor_of_node(other), std::nullopt) << other;
  }
}

TEST(driver_uuid, is_formatted_in_groups) {
  const char bytes[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, '\xfe', '\xff'};
  EXPECT_EQ(uuid_text("MIG-", bytes), "MIG-01020304-0506-0708-090a-0b0c0d0efeff");
}

TEST(driver_request, normal_device_knows_frameworks) {
  EXPECT_EQ(normal_device("cpu"), "host");
  EXPECT_EQ(normal_device("cpu:0"), "host");
  EXPECT_EQ(normal_device("cuda"), "0");
  EXPECT_EQ(normal_device("cuda:12"), "12");
  EXPECT_EQ(normal_device("gpu:3"), "3");
  for (const char* other : {"", "host", "auto", "1", "cpu:1", "cuda:", "cuda:x", "GPU-abcdef01"}) {
    EXPECT_EQ(normal_device(other), other);
  }
}

TEST(driver_request, is_ordinal_or_uuid_prefix) {
  ASSERT_TRUE(parse_device_request("7"));
  EXPECT_EQ(parse_device_request("7")->ordinal, 7);
  ASSERT_TRUE(parse_device_request("gpu-ABCDEF01"));
  EXPECT_EQ(parse_device_request("gpu-ABCDEF01")->uuid_prefix, "GPU-abcdef01");
  EXPECT_EQ(parse_device_request("cuda")->ordinal, 0);
  EXPECT_EQ(parse_device_request("cuda:3")->ordinal, 3);
  EXPECT_EQ(parse_device_request("gpu:1")->ordinal, 1);
  for (const char* wrong : {"",
                            "-1",
                            "1x",
                            "GPU-abcdef0",
                            "TPU-abcdef01",
                            "99999999999",
                            "auto",
                            "cuda:",
                            "cuda:-1",
                            "cuda:1x",
                            "cuda1",
                            "cuda:99999999999",
                            "cpu"}) {
    EXPECT_FALSE(parse_device_request(wrong)) << wrong;
  }
}

std::vector<gpu> two_gpus() {
  gpu first;
  first.ordinal = 0;
  first.id = {device_kind::gpu, "GPU-aaaaaaaa-0000-0000-0000-000000000001", "0000:18:00.0", 0};
  gpu second = first;
  second.ordinal = 1;
  second.id.uuid = "GPU-aaaaaaaa-0000-0000-0000-000000000002";
  return {first, second};
}

TEST(driver_find_device, accepts_ordinals_and_unique_prefixes) {
  const std::vector<gpu> gpus = two_gpus();
  EXPECT_EQ(find_device("1", gpus).ordinal, 1);
  EXPECT_EQ(find_device("GPU-aaaaaaaa-0000-0000-0000-000000000002", gpus).ordinal, 1);
}

std::string message_of(std::string_view text, const std::vector<gpu>& gpus) {
  try {
    static_cast<void>(find_device(text, gpus));
  } catch (const error& failure) {
    EXPECT_EQ(failure.code(), errc::device_not_found);
    return failure.what();
  }
  return "found";
}

TEST(driver_find_device, failure_lists_devices) {
  const std::string there =
      "; available: 0 = GPU-aaaaaaaa-0000-0000-0000-000000000001, 1 = "
      "GPU-aaaaaaaa-0000-0000-0000-000000000002 (use an ordinal (1, cuda:1), the UUID of a GPU or "
      "MIG instance, host (cpu) or auto)";
  EXPECT_EQ(message_of("2", two_gpus()), "find device \"2\": no such device" + there);
  EXPECT_EQ(message_of("GPU-aaaaaaaa", two_gpus()),
            "find device \"GPU-aaaaaaaa\": several devices have this prefix" + there);
  EXPECT_EQ(
      message_of("0", {}),
      "find device \"0\": no such device; no GPU is available (use an ordinal (1, cuda:1), the "
      "UUID of a GPU or MIG instance, host (cpu) or auto)");
  EXPECT_EQ(message_of("cuda:9", two_gpus()), "find device \"cuda:9\": no such device" + there);
}

TEST(driver_find_device, refuses_text_of_no_device_without_a_driver) {
  for (const char* wrong : {"", "HOST", "cpu:1", "cuda:", "cuda:x", "cuda:-1", "cudax", "tpu:0"}) {
    try {
      static_cast<void>(find_device(wrong));
      FAIL() << wrong;
    } catch (const error& failure) {
      EXPECT_EQ(failure.code(), errc::device_not_found) << wrong;
    }
  }
}

TEST(driver_check, has_call_result_and_next_step) {
  EXPECT_NO_THROW(cuda_driver::check(cuda::CUDA_SUCCESS, "create", "w", "cuMemCreate"));
  try {
    cuda_driver::check(cuda::CUDA_ERROR_OUT_OF_MEMORY, "create", "w", "cuMemCreate");
    FAIL();
  } catch (const error& failure) {
    EXPECT_EQ(failure.code(), errc::out_of_memory);
    EXPECT_STREQ(failure.what(),
                 "create \"w\": cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2) (request less, or free "
                 "memory on this GPU; nvidia-smi lists the processes that use it)");
  }
  try {
    cuda_driver::check(static_cast<cuda::CUresult>(4242), "open", "w", "cuMemMap");
    FAIL();
  } catch (const error& failure) {
    EXPECT_EQ(failure.code(), errc::driver_error);
    EXPECT_EQ(failure.cause(), "cuMemMap: unlisted CUDA result (4242)");
    EXPECT_FALSE(failure.next_step().empty());
  }
}

TEST(driver_visibility, distinguishes_denials) {
  const device_id device = two_gpus().front().id;
  const auto cause = [&](int number, bool can_make) {
    const auto verdict = visibility_verdict(device, "/dev/nvidia0", number, can_make);
    if (!verdict) {
      return std::string("visible");
    }
    EXPECT_EQ(verdict->code(), errc::device_not_visible);
    EXPECT_FALSE(verdict->next_step().empty());
    return verdict->cause();
  };
  const std::string start =
      "this process may not use GPU-aaaaaaaa-0000-0000-0000-000000000001 at PCI 0000:18:00.0: ";
  EXPECT_EQ(cause(ENOENT, true), "visible");
  EXPECT_EQ(cause(ENOENT, false),
            start +
                "the device node does not exist: open(/dev/nvidia0): No such file or directory "
                "(ENOENT)");
  EXPECT_EQ(cause(EPERM, true),
            start +
                "the device cgroup denies it: open(/dev/nvidia0): Operation not permitted "
                "(EPERM)");
  EXPECT_EQ(cause(EACCES, true),
            start +
                "the node's owner and mode deny it: open(/dev/nvidia0): Permission denied "
                "(EACCES)");
  EXPECT_NE(cause(ENXIO, true).find("no working GPU"), std::string::npos);
}

TEST(driver_visibility, accepts_host_and_unknown_minor) {
  EXPECT_NO_THROW(check_visible({}));
  EXPECT_NO_THROW(check_visible({device_kind::gpu, "GPU-x", "", -1}));
}

}  // namespace
}  // namespace gpushm::driver
