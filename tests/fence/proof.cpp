// SPDX-License-Identifier: Apache-2.0
// Kills writers that use the library during their GPU work, and checks whether any shared byte
// changes after the broker has reported their death. Exits with 1 if one did, if a writer did not
// write, or if a death was reported while a process could still write.
//
//   gpushm_fence_proof [--rounds N] [--jobs N] [--only PREFIX[,PREFIX...]] [--torch] [--json FILE]
//                      [--list]
//
// N rounds in total, divided among the cases, four at a time; also with fake GPUs. --torch: also
// PyTorch processes with three loader workers, forked after gpushm was loaded or before.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/process/signals.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/fence/command_line.hpp"
#include "tests/fence/proof_writer.hpp"
#include "tests/fence/watcher.hpp"
#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace gpushm::fence_rounds;
using gpushm_testing::child;
using clock_type = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// How long memory is watched after the report.
constexpr milliseconds settle{200};
/// How long a child that may write is left running after its parent's death.
constexpr milliseconds with_child{1'000};
constexpr seconds max_report_time{60};

enum class place : std::uint8_t { plain, pid_namespace, uid_1000 };

struct proof_case {
  std::string name;
  proof_options writer;
  place where = place::plain;
  const char* torch = nullptr;  ///< order in PyTorch: "shared-first", "workers-first"
};

std::vector<proof_case> all_cases(bool peers, bool torch) {
  std::vector<proof_case> result;
  for (const auto does : {work::kernel, work::copies}) {
    const std::string does_what = does == work::kernel ? "kernel" : "copies";
    for (const auto leaves : {offspring::none, offspring::forked}) {
      const std::string child_text = leaves == offspring::none ? "" : "/forked-child";
      result.push_back({does_what + "/plain" + child_text, {does, leaves}, place::plain});
      result.push_back(
          {does_what + "/pid-namespace" + child_text, {does, leaves}, place::pid_namespace});
      result.push_back({does_what + "/uid-1000" + child_text, {does, leaves}, place::uid_1000});
    }
    result.push_back({does_what + "/plain/cloned-child", {does, offspring::cloned}, place::plain});
    if (peers) {
      result.push_back({does_what + "/peer-reader", {does, offspring::none, sharing::peer_reader}});
      result.push_back({does_what + "/peer-reader/pid-namespace/forked-child",
                        {does, offspring::forked, sharing::peer_reader},
                        place::pid_namespace});
      result.push_back({does_what + "/peer-writer", {does, offspring::none, sharing::peer_writer}});
      result.push_back({does_what + "/peer-writer/uid-1000/forked-child",
                        {does, offspring::forked, sharing::peer_writer},
                        place::uid_1000});
    }
  }
  if (torch) {
    result.push_back({"torch/shared-first", {}, place::plain, "shared-first"});
    result.push_back({"torch/workers-first", {}, place::plain, "workers-first"});
  }
  return result;
}

constexpr const char* torch_script = R"py(
import ctypes, sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 1 << 30
    def __getitem__(self, index):
        time.sleep(0.01)
        return index

tensor = torch.zeros(1 << 26, dtype=torch.uint8, device="cuda")

def share():
    shim = ctypes.CDLL(sys.argv[1])
    text = ctypes.create_string_buffer(4096)
    if shim.share_shim_share(sys.argv[2].encode(), sys.argv[3].encode(),
                             ctypes.c_void_p(tensor.data_ptr()), ctypes.c_uint64(1 << 26),
                             text, ctypes.c_size_t(4096)) != 0:
        sys.exit("share: " + text.value.decode())

def start_workers():
    loader = iter(DataLoader(Numbers(), num_workers=3, multiprocessing_context="fork"))
    next(loader)
    return loader

if sys.argv[4] == "shared-first":
    share()
    loader = start_workers()
else:
    loader = start_workers()
    share()
print("ready", flush=True)
while True:
    tensor.add_(1)
)py";

child start_writer(const proof_case& proof,
                   const std::string& socket_path,
                   const std::string& name) {
  gpushm_testing::spawn_options options;
  if (proof.where == place::pid_namespace) {
    options.argv = {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"};
  } else if (proof.where == place::uid_1000) {
    options.uid = options.gid = 1'000;
  }
  const std::vector<std::string> command =
      proof.torch != nullptr
          ? std::vector<std::string>{"python3",
                                     "-c",
                                     torch_script,
                                     gpushm_testing::own_library("libgpushm_share_shim.so"),
                                     socket_path,
                                     name,
                                     proof.torch}
          : std::vector<std::string>{gpushm_testing::own_program("gpushm_fence_proof"),
                                     "--writer",
                                     socket_path,
                                     name,
                                     to_text(proof.writer)};
  options.argv.insert(options.argv.end(), command.begin(), command.end());
  return child::start(options);
}

/// Reads the first bytes of a segment in device memory.
class memory_reader {
 public:
  memory_reader(const gpushm::segment& segment, const std::string& device)
      : at_(reinterpret_cast<std::uintptr_t>(segment.data())) {
    check(cu_->cuCtxSetCurrent(gpushm::driver::primary_context(
              gpushm::driver::find_device(device).handle, "watch", {})),
          "cuCtxSetCurrent");
    check(cu_->cuStreamCreate(&stream_, gpushm::cuda::CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    void* memory = nullptr;
    check(cu_->cuMemHostAlloc(&memory, watched_bytes, 0), "cuMemHostAlloc");
    now_ = static_cast<std::byte*>(memory);
  }
  memory_reader(const memory_reader&) = delete;
  memory_reader& operator=(const memory_reader&) = delete;
  ~memory_reader() {
    cu_->cuStreamDestroy_v2(stream_);
    cu_->cuMemFreeHost(now_);
  }

  /// Returns true if the bytes differ from the previous call.
  bool read() {
    check(cu_->cuMemcpyDtoHAsync_v2(now_, at_, watched_bytes, stream_), "cuMemcpyDtoHAsync");
    check(cu_->cuStreamSynchronize(stream_), "cuStreamSynchronize");
    const bool differs =
        before_.size() == watched_bytes && std::memcmp(before_.data(), now_, watched_bytes) != 0;
    before_.assign(now_, now_ + watched_bytes);
    return differs;
  }
  /// Number of reads within this time that differed from the previous one.
  int changes_within(milliseconds time) {
    int changes = 0;
    for (const auto end = clock_type::now() + time; clock_type::now() < end;) {
      changes += read() ? 1 : 0;
    }
    return changes;
  }
  /// Returns true once this many reads have differed; false if they have not within 10 s. A busy
  /// machine may stop the writer for longer than a round observes it.
  bool sees_changes(int wanted) {
    const auto end = clock_type::now() + seconds(10);
    while (wanted > 0 && clock_type::now() < end) {
      wanted -= read() ? 1 : 0;
    }
    return wanted <= 0;
  }

 private:
  const gpushm::driver::cuda_driver& cu_ = gpushm::driver::cuda_driver::instance();
  gpushm::cuda::CUdeviceptr at_;
  gpushm::cuda::CUstream stream_ = nullptr;
  std::byte* now_ = nullptr;
  std::vector<std::byte> before_;
};

struct proof_round {
  double reported_ms = 0;     ///< from the kill to the report
  double last_change_ms = 0;  ///< upper bound of the time of the last change
  bool wrote = false;         ///< before the kill
  bool changed_after = false;
  bool reported_early = false;  ///< while the writer or a child could still write
  std::string waited_for;
};

/// True if events received since the last call include the death.
bool is_reported(gpushm::subscription& events) {
  while (const auto event = events.next(milliseconds(0))) {
    if (event->kind == gpushm::event_kind::peer_died) {
      return true;
    }
  }
  return false;
}

proof_round run_round(const proof_case& proof, const std::string& socket, unsigned number) {
  const bool peer_writer = proof.writer.shares == sharing::peer_writer;
  const std::string device = proof.writer.shares == sharing::peer_reader ? "1" : "0";
  const std::string name = "fence-" + std::to_string(number);
  auto client = gpushm::client::connect({.socket_path = socket});
  auto events = client.subscribe(name);
  std::optional<gpushm::segment> memory;
  if (peer_writer) {
    memory = client.create(name, {.size_bytes = shared_bytes, .device = "0"});
    memory->publish();
  }
  child writer = start_writer(proof, socket, name);
  writer.wait_for_line("^ready$", seconds(120));
  if (!peer_writer) {
    memory = client.open(name, {.device = device});
  }
  memory_reader observation(*memory, device);
  proof_round result;
  result.wrote = observation.sees_changes(2);
  // At a different time of its work in each round.
  constexpr unsigned moments = 100;
  static_cast<void>(observation.changes_within(milliseconds(20 + number * 37 % moments)));
  if (has_fake_gpus()) {
    writer.write("go\n");
    static_cast<void>(observation.changes_within(milliseconds(50)));
    result.wrote = result.wrote && observation.sees_changes(2);
  }
  const auto killed = clock_type::now();
  const auto since_kill = [&] {
    return std::chrono::duration<double, std::milli>(clock_type::now() - killed).count();
  };
  bool reported = is_reported(events);
  result.reported_early = reported;
  writer.kill(SIGKILL);
  bool child_lives = proof.writer.leaves == offspring::cloned;
  while (!reported) {
    if (observation.read()) {
      result.last_change_ms = since_kill();
    }
    if (is_reported(events)) {
      reported = true;
      result.reported_early = child_lives;
    }
    for (const auto& shown : client.list(name)) {
      if (shown.ending != 0) {
        result.waited_for = gpushm::to_string(shown.ending_waits);
      }
    }
    if (child_lives && clock_type::now() - killed > with_child) {
      const auto& output = writer.text(gpushm_testing::stream::out);
      gpushm::base::signal_process(std::stoi(output.substr(output.find("child ") + 6)), SIGKILL);
      child_lives = false;
    }
    if (clock_type::now() - killed > max_report_time) {
      throw std::runtime_error("no death was reported");
    }
  }
  result.reported_ms = since_kill();
  static_cast<void>(observation.read());
  result.changed_after = observation.changes_within(settle) != 0;
  return result;
}

/// Summary of the rounds of one case.
nlohmann::ordered_json summary(const std::string& name, const std::vector<proof_round>& rounds) {
  std::vector<double> reported;
  std::vector<double> changed;
  int after = 0;
  int early = 0;
  int wrote = 0;
  nlohmann::ordered_json waited = nlohmann::ordered_json::object();
  for (const proof_round& one : rounds) {
    reported.push_back(one.reported_ms);
    changed.push_back(one.last_change_ms);
    after += one.changed_after ? 1 : 0;
    early += one.reported_early ? 1 : 0;
    wrote += one.wrote ? 1 : 0;
    if (!one.waited_for.empty()) {
      waited[one.waited_for] = waited.value(one.waited_for, 0) + 1;
    }
  }
  return {{"case", name},
          {"rounds", rounds.size()},
          {"wrote", wrote},
          {"reported_ms", spread(reported)},
          {"last_change_ms", spread(changed)},
          {"waited_for", waited},
          {"changed_after_report", after},
          {"reported_too_early", early}};
}

int prove(const arguments& arguments) {
  if (const std::string why = why_no_gpu(); !why.empty()) {
    std::cout << "no CUDA driver: " << why << '\n';
    return 0;
  }
  auto cases = all_cases(gpushm::driver::visible_gpus().size() > 1, arguments.torch);
  std::erase_if(cases, [&](const proof_case& proof) {
    return (!arguments.only.empty() && std::none_of(arguments.only.begin(),
                                                    arguments.only.end(),
                                                    [&](const std::string& prefix) {
                                                      return proof.name.starts_with(prefix);
                                                    })) ||
           (proof.where != place::plain && ::geteuid() != 0);
  });
  if (cases.empty()) {
    throw std::runtime_error("no such case; --list shows them");
  }
  const gpushm_testing::temp_dir folder(0711);
  const gpushm::broker broker = gpushm::broker::start(
      {.socket_path = folder / "socket", .mode = 0666, .accept_fake_chunks = has_fake_gpus()});
  std::vector<std::vector<proof_round>> seen(cases.size());
  std::string failure;
  {
    std::mutex mutex;  // protects `seen` and `failure`
    std::atomic<unsigned> next{0};
    std::vector<std::jthread> workers;
    for (unsigned i = 0; i < arguments.jobs; ++i) {
      workers.emplace_back([&] {
        for (unsigned round = next++; round < arguments.rounds; round = next++) {
          const std::size_t which = round % cases.size();
          try {
            const auto summary = run_round(cases[which], folder / "socket", round);
            const std::scoped_lock lock(mutex);
            seen[which].push_back(summary);
          } catch (const std::exception& why) {
            const std::scoped_lock lock(mutex);
            failure = cases[which].name + ": " + why.what();
            next = arguments.rounds;
          }
        }
      });
    }
  }
  std::printf("%-45s %6s  %-24s %-24s %s\n",
              "milliseconds after the kill",
              "rounds",
              "last change",
              "death reported",
              "changed after it");
  nlohmann::ordered_json report;
  report["cases"] = nlohmann::ordered_json::array();
  bool held = failure.empty();
  std::size_t done = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (seen[i].empty()) {
      continue;
    }
    done += seen[i].size();
    auto entry = summary(cases[i].name, seen[i]);
    const auto text = [&](const char* key) {
      std::array<char, 48> line{};
      std::snprintf(line.data(),
                    line.size(),
                    "%.1f..%.1f",
                    entry[key]["min"].get<double>(),
                    entry[key]["max"].get<double>());
      return std::string(line.data());
    };
    const bool wrote = entry["wrote"] == seen[i].size();
    const bool early = entry["reported_too_early"] != 0;
    held = held && wrote && !early && entry["changed_after_report"] == 0;
    std::printf("%-45s %6zu  %-24s %-24s %d%s\n",
                cases[i].name.c_str(),
                seen[i].size(),
                text("last_change_ms").c_str(),
                text("reported_ms").c_str(),
                entry["changed_after_report"].get<int>(),
                early    ? " (reported too early)"
                : !wrote ? " (a writer did not write)"
                         : "");
    report["cases"].push_back(std::move(entry));
  }
  report["rounds"] = done;
  report["held"] = held;
  if (!arguments.json.empty()) {
    std::ofstream(arguments.json) << report.dump(1) << '\n';
  }
  if (!failure.empty()) {
    throw std::runtime_error(failure);
  }
  std::printf("%zu rounds: %s\n", done, held ? "no byte changed after a report" : "FAILED");
  return held ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 5 && std::strcmp(argv[1], "--writer") == 0) {
    return run_proof_writer(argv[2], argv[3], proof_from_text(argv[4]));
  }
  const arguments wanted = parse(argc, argv, {.rounds = 200, .jobs = 4});
  if (wanted.list) {
    for (const proof_case& one : all_cases(true, true)) {
      std::cout << one.name << '\n';
    }
    return 0;
  }
  return prove(wanted);
} catch (const std::exception& why) {
  std::cerr << "gpushm_fence_proof: " << why.what() << '\n';
  return 2;
}
