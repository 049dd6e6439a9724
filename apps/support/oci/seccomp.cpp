// SPDX-License-Identifier: Apache-2.0
#include "apps/support/oci/seccomp.hpp"

#include <nlohmann/json.hpp>

namespace gpushm::app::oci {

namespace {
#if defined(__x86_64__)
constexpr const char* this_architecture = "SCMP_ARCH_X86_64";
#elif defined(__aarch64__)
constexpr const char* this_architecture = "SCMP_ARCH_AARCH64";
#else
#error "how does an OCI runtime spec name this architecture?"
#endif
}  // namespace

nlohmann::json default_seccomp() {
  return {{"defaultAction", "SCMP_ACT_ALLOW"},
          {"architectures", {this_architecture}},
          {"syscalls",
           {{{"names",
              {"acct",
               "add_key",
               "bpf",
               "clock_settime",
               "create_module",
               "delete_module",
               "finit_module",
               "fsconfig",
               "fsmount",
               "fsopen",
               "init_module",
               "io_uring_enter",
               "io_uring_register",
               "io_uring_setup",
               "kcmp",
               "kexec_load",
               "keyctl",
               "lookup_dcookie",
               "mount",
               "move_mount",
               "move_pages",
               "name_to_handle_at",
               "open_by_handle_at",
               "open_tree",
               "perf_event_open",
               "pidfd_getfd",
               "pivot_root",
               "process_vm_readv",
               "process_vm_writev",
               "ptrace",
               "quotactl",
               "reboot",
               "request_key",
               "setns",
               "swapoff",
               "swapon",
               "syslog",
               "umount2",
               "unshare",
               "userfaultfd"}},
             {"action", "SCMP_ACT_ERRNO"},
             {"errnoRet", 1}}}}};
}

}  // namespace gpushm::app::oci
