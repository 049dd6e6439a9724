// SPDX-License-Identifier: Apache-2.0
// What a text says itself: the function that failed, errno values, records of the audit log; and
// logs as runtimes and collectors write them, of any size.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "inspect/explain/clean.hpp"
#include "inspect/explain/explain.hpp"
#include "tests/support/process/environment.hpp"

namespace gpushm::inspect {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::string first_rule(std::string_view text) {
  const auto explanations = explain(text);
  return explanations.empty() ? "" : explanations[0].rule;
}

/// The likeliest cause: "rule/cause".
std::string first_cause(std::string_view text, const situation& here = {}) {
  const auto explanations = explain(text, here);
  return explanations.empty() ? "" : explanations[0].rule + "/" + explanations[0].causes.at(0).id;
}

std::vector<std::string> cause_ids(std::string_view text) {
  std::vector<std::string> ids;
  const auto explanations = explain(text);
  for (const auto& each : explanations.at(0).causes) {
    ids.push_back(each.id);
  }
  return ids;
}

// ---- what the text says ----

TEST(explain_evidence, failed_call_decides) {
  const situation equal_pids{{"own-pid-namespace", "in-container"}, {}};
  for (const char* text : {"cuMemGetAddressRange failed: CUDA_ERROR_INVALID_CONTEXT (201)",
                           "cuMemGetAddressRange_v2: invalid device context",
                           "CUDA_ERROR_INVALID_CONTEXT returned by cuIpcGetMemHandle",
                           "RuntimeError: cuPointerGetAttribute: invalid device context",
                           "  check(driver.cuIpcGetMemHandle(ptr))\n"
                           "RuntimeError: CUDA_ERROR_INVALID_CONTEXT",
                           "opened by cuIpcOpenMemHandle\n"
                           "cuLaunchKernel: invalid device context",
                           "CUDA error: invalid device context\n"
                           "#1 0x7f in cuMemcpyDtoD_v2 () from libcuda.so.1"}) {
    EXPECT_EQ(first_cause(text, equal_pids), "invalid-context/no-current-context") << text;
    EXPECT_THAT(cause_ids(text), ElementsAre("no-current-context")) << text;
  }
  for (const char* text : {"cuIpcOpenMemHandle failed: CUDA_ERROR_INVALID_CONTEXT",
                           "cuIpcOpenMemHandle_v2: invalid device context",
                           "cudaIpcOpenEventHandle(&event, handle): invalid device context",
                           "cuIpcGetMemHandle: ok\ncuIpcOpenMemHandle: invalid device context",
                           "  File \"storage.py\", line 779, in _new_shared_cuda\n"
                           "RuntimeError: CUDA error: invalid device context"}) {
    EXPECT_EQ(first_cause(text), "invalid-context/pid-collision") << text;
    EXPECT_THAT(cause_ids(text), Not(::testing::Contains("no-current-context"))) << text;
  }
  // Types, error names and other libraries are not functions.
  EXPECT_EQ(first_cause("cudaError_t e; cuDNN, cudaStream_t: cudaErrorDeviceUninitialized"),
            "invalid-context/pid-collision");
}

TEST(explain_evidence, call_selects_causes_of_other_errors) {
  EXPECT_EQ(first_cause("cudaIpcOpenMemHandle: invalid argument"), "invalid-value/gpu-not-allowed");
  EXPECT_EQ(first_cause("cuIpcGetMemHandle: invalid argument"), "invalid-value/not-legacy-memory");
  EXPECT_EQ(first_cause("cudaMemcpyAsync: invalid argument"), "invalid-value/read-only-mapping");
  EXPECT_EQ(first_cause("cudaEventCreateWithFlags: invalid argument"),
            "invalid-value/other-argument");
  EXPECT_EQ(first_cause("cudaEventRecord: invalid resource handle"),
            "invalid-handle/other-context");
  EXPECT_EQ(first_cause("cuIpcOpenMemHandle: invalid resource handle"),
            "invalid-handle/exporter-gone");
}

TEST(explain_evidence, errno_values_exclude_causes) {
  situation here;
  here.checks = {{"ptrace", "isolation", verdict::problem, "ptrace_scope 1", "", "", ""}};
  for (const char* text : {"pidfd_open: Function not implemented",
                           "OSError: [Errno 38] pidfd_getfd",
                           "pidfd_open failed, errno=38",
                           "pidfd_getfd: ENOSYS",
                           "RuntimeError: The kernel on this machine does not support the "
                           "pidfd_open syscall needed to use IPC for CUDA tensors"}) {
    EXPECT_THAT(first_cause(text, here),
                ::testing::AnyOf("pidfd-getfd/no-system-call", "pidfd-unsupported/old-kernel"))
        << text;
    EXPECT_THAT(cause_ids(text), Not(::testing::Contains("ptrace-scope"))) << text;
  }
  EXPECT_THAT(cause_ids("pidfd_getfd: Operation not permitted"),
              Not(::testing::Contains("no-system-call")));
}

TEST(explain_evidence, words_exclude_causes) {
  const situation laptop{{"no-module", "no-gpus"}, {}};
  const char* text =
      "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update "
      "your driver to a newer version, or use an earlier cuda container: unknown";
  EXPECT_EQ(first_cause(text, laptop), "insufficient-driver/old-driver");
  EXPECT_THAT(cause_ids(text), ElementsAre("old-driver"));
}

TEST(explain_evidence, audit_records_are_read) {
  const std::string device =
      "type=AVC msg=audit(1700000000.100:35): avc:  denied  { read write } for  pid=4711 "
      "comm=\"python\" name=\"nvidia0\" dev=\"devtmpfs\" ino=900 "
      "scontext=system_u:system_r:container_t:s0:c1,c2 "
      "tcontext=system_u:object_r:xserver_misc_device_t:s0 tclass=chr_file permissive=0";
  const std::string socket =
      "type=AVC msg=audit(1700000000.200:36): avc:  denied  { write } for  pid=4712 comm=\"app\" "
      "name=\"socket\" dev=\"tmpfs\" ino=901 scontext=system_u:system_r:container_t:s0:c1,c2 "
      "tcontext=system_u:object_r:var_run_t:s0 tclass=sock_file permissive=0";
  EXPECT_EQ(first_cause(device), "selinux-device/label-of-container");
  EXPECT_EQ(first_cause(socket), "selinux-socket/label-of-directory");
  EXPECT_THAT(explain(device + "\n" + socket), SizeIs(2));
  EXPECT_THAT(explain(device)[0].causes[0].fix, HasSubstr("container_use_devices=on"));
  EXPECT_EQ(first_rule("Failed to initialize NVML: Insufficient Permissions"), "nvml-unknown");
  EXPECT_EQ(first_cause("Failed to initialize NVML: Insufficient Permissions"),
            "nvml-unknown/selinux");
  EXPECT_EQ(first_cause("[ 12.5] audit: type=1326 audit(1.2:3): pid=9 comm=\"p\" sig=0 "
                        "arch=c000003e syscall=438 compat=0 ip=0x7f code=0x50000"),
            "seccomp-audit/pidfd");
  EXPECT_EQ(first_rule("audit: type=1400 audit(1.2:3): apparmor=\"DENIED\" operation=\"open\" "
                       "name=\"/dev/nvidia0\""),
            "apparmor-denied");
}

TEST(explain_evidence, machine_is_used_only_if_it_may_be_the_one) {
  facts explanations;
  EXPECT_FALSE(may_have_failed_here(explanations));
  explanations.gpus.resize(1);
  EXPECT_FALSE(may_have_failed_here(explanations));
  explanations.self.container.runtime = "containerd";
  EXPECT_TRUE(may_have_failed_here(explanations));
  explanations.gpus.clear();
  EXPECT_FALSE(may_have_failed_here(explanations));
}

// ---- logs ----

TEST(explain_log, each_form_of_a_line_is_read) {
  for (const std::string& text :
       {std::string("2023-10-06T00:17:09.669794202Z stderr F invalid device context"),
        std::string("2023-10-06T00:17:09.1Z stderr F cuIpcOpenMemHandle: invalid\n"
                    "2023-10-06T00:17:09.2Z stderr F device context"),
        std::string("2023-10-06T00:17:09.1Z stderr P RuntimeError: invalid dev\n"
                    "2023-10-06T00:17:09.2Z stderr F ice context"),
        std::string(R"({"log":"\u001b[31minvalid device\u001b[0m context\n","stream":"stderr"})"),
        std::string(
            R"(time="2024-01-01T00:00:00Z" level=error msg="a: \"invalid\tdevice context\"")"),
        std::string("E1129 12:00:00.123456 1234 a.go:1] err=\"\\\"invalid device context\\\"\""),
        std::string("Nov 29 13:18:50 host app[1]: invalid\nNov 29 13:18:51  device context"),
        std::string("web-1  | invalid device\nweb-1  |   context"),
        std::string("[pod/a/b] invalid device\n[pod/a/b] context"),
        std::string("(Worker_TP0 pid=12) invalid device\n(Worker_TP0 pid=12) context"),
        std::string("[ 1234.567890] invalid device context"),
        std::string("\x1b]0;title\x07invalid\xc2\xa0"
                    "device\r\n   context"),
        std::string("step 9\rinvalid device context"),
        std::string("\xef\xbb\xbfinvalid device context"),
        std::string("a\0invalid device context\0", 25)}) {
    EXPECT_EQ(first_rule(text), "invalid-context") << text;
  }
  std::string wide = "\xff\xfe";
  for (const char c : std::string("x\r\ninvalid device context\r\n")) {
    wide += c;
    wide += '\0';
  }
  EXPECT_EQ(first_rule(wide), "invalid-context");
  // The backslashes of a path are not escapes.
  EXPECT_EQ(clean("open C:\\new\\text").text, "open C:\\new\\text");
}

TEST(explain_log, escapes_of_json_are_decoded) {
  EXPECT_EQ(first_cause(R"({"msg":"unsatisfied condition: cuda\u003e=12.8, please update"})"),
            "insufficient-driver/old-driver");
  EXPECT_EQ(clean(R"({"a":"x\u00e9\\\"y"})").text, "{\"a\":\"x\xc3\xa9\"y\"}");
}

TEST(explain_log, line_numbers_are_those_of_the_log) {
  const auto explanations = explain(
      "2023-10-06T00:17:09.1Z stderr P one \n"
      "2023-10-06T00:17:09.1Z stderr F line\n\n"
      "2023-10-06T00:17:09.2Z stderr F invalid device context\n");
  ASSERT_THAT(explanations, SizeIs(1));
  EXPECT_EQ(explanations[0].line_number, 4U);
  EXPECT_EQ(explanations[0].line, "invalid device context");
}

TEST(explain_log, error_leads_and_information_follows) {
  const auto explanations = explain(
      "DEBUG 10:00 pidfd_getfd is available\n"
      "[W CudaIPC.cpp:1] peer access is already enabled\n"
      "hello\n"
      "RuntimeError: CUDA error: invalid device context\n"
      "Segmentation fault (core dumped)\n");
  std::vector<std::string> rules;
  for (const auto& each : explanations) {
    rules.push_back(each.rule);
  }
  EXPECT_THAT(rules,
              ElementsAre("invalid-context", "peer-access", "pidfd-getfd", "importer-crashes"));
}

TEST(explain_log, words_far_from_the_error_are_not_evidence) {
  std::string log = "cuIpcOpenMemHandle is available\n";
  for (int i = 0; i < 200; ++i) {
    log += "step\n";
  }
  log += "CUDA error: invalid device context\n";
  EXPECT_THAT(explain(log)[0].causes[0].evidence, IsEmpty());
}

TEST(explain_log, large_log_is_searched_whole_in_bounded_time) {
  const std::size_t size_bytes = gpushm_testing::number_from_environment<std::size_t>(
                                     "GPUSHM_LOG_MIB", gpushm::base::under_sanitizer ? 4 : 16)
                                 << 20U;
  // Of this process's CPU, which other processes do not slow down.
  const double most_seconds = 20 + static_cast<double>(size_bytes >> 20U);
  std::string block;
  std::size_t lines = 0;
  while (block.size() < (1UL << 20U)) {
    block += "2026-11-21T10:00:00.123Z INFO step 17 of 1000: loss 0.35, error 0.01, cuda:0 " +
             std::to_string(block.size()) + "\n";
    ++lines;
  }
  const std::clock_t start = std::clock();
  log_explainer log;
  std::size_t blocks = 0;
  for (std::size_t size = 0; size < size_bytes; size += block.size()) {
    log.add(block);
    ++blocks;
  }
  log.add("  check(driver.cuIpcGetMemHandle(ptr))\nRuntimeError: CUDA_ERROR_INVALID_CONTEXT\n");
  log.add(block);
  log.add("Segmentation fault");
  const auto explanations = log.finish({});
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, most_seconds);
  ASSERT_THAT(explanations, SizeIs(2));
  EXPECT_EQ(explanations[0].rule, "invalid-context");
  EXPECT_EQ(explanations[0].line_number, lines * blocks + 2);
  EXPECT_THAT(explanations[0].causes, SizeIs(1));
  EXPECT_EQ(explanations[1].line_number, lines * (blocks + 1) + 3);
}

TEST(explain_log, message_across_parts_is_found) {
  const std::string word = "invalid device\ncontext\n";
  for (std::size_t before = (1UL << 20U) - 40; before <= (1UL << 20U) + 5; before += 9) {
    std::string text(before - 1, 'x');
    for (std::size_t i = 99; i < text.size(); i += 100) {
      text[i] = '\n';
    }
    text += '\n';
    const auto explanations = explain(text + word + std::string(1UL << 20U, '\n'));
    ASSERT_THAT(explanations, SizeIs(1)) << before;
    EXPECT_EQ(explanations[0].line_number,
              1U + static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')));
  }
}

TEST(explain_log, line_without_end_is_searched) {
  const auto explanations = explain(std::string(3UL << 20U, 'x') + " invalid device context " +
                                    std::string(3UL << 20U, 'y'));
  ASSERT_THAT(explanations, SizeIs(1));
  EXPECT_LE(explanations[0].line.size(), 80U);
}

}  // namespace
}  // namespace gpushm::inspect
