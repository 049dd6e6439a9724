// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/inspect/doctor_ipc.hpp"

#include <fcntl.h>
#include <gnu/libc-version.h>
#include <linux/magic.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "apps/gpushm/inspect/doctor_report.hpp"
#include "apps/gpushm/inspect/ipc_library.hpp"
#include "apps/gpushm/inspect/ipc_trial.hpp"
#include "apps/gpushm/inspect/machine.hpp"
#include "base/files/domain_places.hpp"
#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "gpushm/client.hpp"
#include "inspect/doctor/ipc.hpp"

namespace gpushm::cli {

namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no code sets variables
  return value == nullptr ? "" : value;
}

std::string why_not_readable(const std::string& path) {
  const base::unique_fd file(
      base::retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  return file ? "" : std::generic_category().message(errno);
}

/// The entries of a list of libraries; in a file, comments begin with "#".
void add_entries(const std::string& text,
                 bool from_file,
                 std::vector<inspect::preload_entry>& entries) {
  constexpr std::string_view separators = " \t\n:";
  for (std::size_t at = 0; at < text.size();) {
    at = text.find_first_not_of(separators, at);
    if (at == std::string::npos) {
      return;
    }
    if (from_file && text[at] == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    const std::size_t end = std::min(text.find_first_of(separators, at), text.size());
    inspect::preload_entry& entry = entries.emplace_back();
    entry.path = text.substr(at, end - at);
    entry.from_file = from_file;
    entry.problem = entry.path.find('/') == std::string::npos ? "" : why_not_readable(entry.path);
    at = end;
  }
}

std::vector<std::string> loaders_of_musl() {
  std::vector<std::string> loaders;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator("/lib", failed)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("ld-musl-")) {
      loaders.push_back(entry.path().string());
    }
  }
  return loaders;
}

/// In the order of the library (src/ipc/domain.c): `chosen` is GPUSHM_IPC_DOMAIN.
inspect::broker_facts query_domain(const std::string& socket, const std::string& chosen) {
  inspect::broker_facts facts;
  facts.socket = socket;
  try {
    if (socket.empty() && !chosen.empty()) {
      facts.socket = base::chosen_machine_socket(chosen);
    }
    connect_options options;
    options.socket_path = facts.socket;
    options.request_limit = std::chrono::seconds(2);
    auto broker = client::connect(options);
    const auto about = broker.broker();
    facts.socket = about.socket_path;
    facts.domain = about.domain;
    facts.segments = broker.list(".fd/").size();
    facts.reachable = true;
  } catch (const error& failure) {
    facts.problem = failure.what();
  }
  return facts;
}

void examine_shm(inspect::ipc_facts& facts) {
  struct statfs status {};
  if (base::retry([&] { return ::statfs("/dev/shm", &status); }) != 0) {
    facts.shm_problem = std::generic_category().message(errno);
    return;
  }
  facts.shm_is_tmpfs = status.f_type == TMPFS_MAGIC;
  facts.shm_free_bytes =
      static_cast<std::uint64_t>(status.f_bavail) * static_cast<std::uint64_t>(status.f_bsize);
  if (::access("/dev/shm", W_OK | X_OK) != 0) {
    facts.shm_problem = "not writable: " + std::generic_category().message(errno);
  }
}

std::string conclusion_of(const doctor_report& report) {
  if (report.problems() > 0) {
    return "CUDA IPC of unchanged programs may fail here: fix the problems above; also run this "
           "in the other container";
  }
  const bool has_domain = [&] {
    for (const inspect::check& each : report.checks) {
      if (each.id == "ipc-domain") {
        return each.result == inspect::verdict::ok;
      }
    }
    return false;
  }();
  return has_domain
             ? "CUDA IPC of unchanged programs should work here: memory, events and "
               "descriptors; also run this in the other container"
             : "CUDA IPC of unchanged programs should work here for memory; events and descriptors "
               "need a domain; also run this in the other container";
}

/// The facts about this process, its container and the domain that it would use, except `mps`.
/// Blocks for at most a few seconds.
inspect::ipc_facts gather_ipc_facts(const doctor_arguments& arguments) {
  inspect::ipc_facts facts;
  facts.installed = find_ipc_library("doctor", arguments.ipc_library);
  facts.loaded = loaded_ipc_library();
  add_entries(variable("LD_PRELOAD"), false, facts.entries);
  add_entries(base::read_small_file("/etc/ld.so.preload").value_or(""), true, facts.entries);
  facts.switched_off = variable("GPUSHM_IPC") == "0";
  facts.secure = ::getauxval(AT_SECURE) != 0;
  facts.glibc = ::gnu_get_libc_version();
  facts.other_loaders = loaders_of_musl();
  facts.chosen_domain = variable("GPUSHM_IPC_DOMAIN");
  facts.domain = query_domain(arguments.socket, facts.chosen_domain);
  examine_shm(facts);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    facts.soft_descriptors = limit.rlim_cur;
    facts.hard_descriptors = limit.rlim_max;
  }
  return facts;
}

}  // namespace

int run_doctor_ipc(const doctor_arguments& arguments) {
  const auto begin = std::chrono::steady_clock::now();
  inspect::ipc_facts facts = gather_ipc_facts(arguments);
  const machine seen = gather_machine({}, arguments.driver_timeout);
  facts.mps = seen.facts.mps;
  doctor_report report;
  report.ipc = true;
  report.checks = inspect::examine_ipc(facts);
  report.check_time = std::chrono::steady_clock::now() - begin;
  if (arguments.selftest) {
    const auto& gpus = seen.facts.driver.cuda.gpus;
    std::string why;
    if (facts.installed.empty()) {
      why = "libgpushm-ipc.so was not found (--ipc-library PATH)";
    } else if (gpus.empty()) {
      why = "no GPU is visible here";
    }
    if (why.empty()) {
      ipc_trial_options options;
      options.library = facts.installed;
      options.device = gpus.front().uuid;
      options.accept_fake_chunks = arguments.accept_fake_chunks;
      for (inspect::check& each : run_ipc_trials(options)) {
        report.checks.push_back(std::move(each));
      }
    } else {
      inspect::check& skipped = report.checks.emplace_back(
          inspect::finding(inspect::verdict::not_applicable, "not run: " + why));
      skipped.id = "ipc-trial";
      skipped.section = "trial with equal PIDs, in namespaces of its own each";
    }
  }
  report.conclusion = conclusion_of(report);
  return finish_report(report, begin, arguments.json);
}

}  // namespace gpushm::cli
