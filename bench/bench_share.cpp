// SPDX-License-Identifier: Apache-2.0
// Existing memory: the cost of an open from the import cache, the cost that gpushm adds to opening
// a legacy handle and to receiving and mapping a range of many chunks, and how much a cached
// mapping saves later opens from a peer GPU. Both sides of each ratio run in one loop.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <iostream>
#include <memory>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/signals.hpp"
#include "base/text/size_text.hpp"
#include "bench/bench_support.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpu/memory/backends/backend.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/messages.hpp"
#include "protocol/wire/ticket.hpp"

namespace gpushm::bench {
namespace {

// ---- the other process ----

constexpr std::string_view exporter_flag = "--exporter";

/// Allocates with cuMemAlloc on GPU 0, shares it as "bench", writes its ticket, and waits.
int run_exporter(const std::string& socket, std::uint64_t size_bytes) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto& gpu = driver::find_device("0");
  const driver::context_scope scope(driver::primary_context(gpu.handle, "bench", {}), "bench", {});
  cuda::CUdeviceptr memory = 0;
  driver::cuda_driver::check(driver::cuda_driver::instance()->cuMemAlloc_v2(&memory, size_bytes),
                             "bench",
                             {},
                             "cuMemAlloc");
  auto* const pointer = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): CUDA's API
      static_cast<std::uintptr_t>(memory));
  client broker = client::connect({.socket_path = socket});
  const segment shared = broker.share("bench", pointer, size_bytes);
  const auto bytes = export_memory(pointer, size_bytes);
  static_cast<void>(!::write(STDOUT_FILENO, bytes.data(), bytes.size()));
  ::close(STDOUT_FILENO);
  for (;;) {
    ::pause();
  }
}

class exporter_process {
 public:
  exporter_process(const std::string& socket, std::uint64_t size_bytes) {
    std::array<int, 2> ends{};
    base::checked("bench", {}, "pipe", [&] { return ::pipe2(ends.data(), O_CLOEXEC); });
    const base::unique_fd output(ends[0]);
    const std::string size = std::to_string(size_bytes);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::execl(
          "/proc/self/exe", "bench", exporter_flag.data(), socket.c_str(), size.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    std::array<std::byte, wire::max_ticket_bytes> buffer{};
    for (;;) {
      const auto count =
          base::retry([&] { return ::read(output.get(), buffer.data(), buffer.size()); });
      if (count <= 0) {
        break;
      }
      ticket_.insert(ticket_.end(), buffer.begin(), buffer.begin() + count);
    }
  }
  exporter_process(const exporter_process&) = delete;
  exporter_process& operator=(const exporter_process&) = delete;
  ~exporter_process() {
    gpushm::base::signal_process(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  [[nodiscard]] const std::vector<std::byte>& ticket() const { return ticket_; }

 private:
  pid_t pid_ = -1;
  std::vector<std::byte> ticket_;
};

// ---- opens from the cache ----

void cached_open(benchmark::State& state, const std::string& device) {
  private_broker broker;
  client producer = broker.connect();
  client consumer = broker.connect();
  segment shared = producer.create(
      "w/llama", {.size_bytes = 2UL << 20U, .device = device, .lifetime = lifetime::persistent});
  shared.publish();
  static_cast<void>(consumer.open("w/llama"));
  const std::uint64_t misses = consumer.cache_stats().misses;
  for (auto _ : state) {
    benchmark::DoNotOptimize(consumer.open("w/llama"));  // including its end
  }
  if (consumer.cache_stats().misses != misses) {
    state.SkipWithError("an open was not from the cache");
  }
  consumer.trim();
  producer.remove("w/llama");
}

// ---- legacy handles ----

void legacy_open(benchmark::State& state, std::uint64_t size_bytes) {
  private_broker broker;
  const exporter_process exporter(broker.socket_path(), size_bytes);
  client consumer = broker.connect();
  const auto described = wire::decode_ticket(exporter.ticket());
  cuda::CUipcMemHandle handle{};
  std::memcpy(&handle, described.legacy->bytes.data(), sizeof handle);
  const auto& cu = driver::cuda_driver::instance();
  const auto& gpu = driver::find_device("0");
  const driver::context_scope scope(driver::primary_context(gpu.handle, "bench", {}), "bench", {});

  samples raw;
  samples by_bytes;
  samples by_name;
  const auto open_raw = [&] {
    cuda::CUdeviceptr mapped = 0;
    raw.time([&] {
      driver::cuda_driver::check(
          cu->cuIpcOpenMemHandle_v2(&mapped, handle, cuda::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
          "bench",
          {},
          "cuIpcOpenMemHandle");
    });
    cu->cuIpcCloseMemHandle(mapped);
  };
  const auto open_by_bytes = [&] {
    segment opened;
    by_bytes.time([&] { opened = import_memory(exporter.ticket()); });
  };
  const auto open_by_name = [&] {
    segment opened;
    by_name.time([&] { opened = consumer.open("bench"); });
  };
  int turn = 0;
  for (auto _ : state) {
    for (int i = 0; i < 3; ++i) {  // each is first equally often
      switch ((turn + i) % 3) {
        case 0:
          open_raw();
          break;
        case 1:
          open_by_bytes();
          break;
        default:
          open_by_name();
      }
    }
    ++turn;
  }
  state.counters["raw_us"] = raw.median();
  state.counters["bytes_us"] = by_bytes.median();
  state.counters["name_us"] = by_name.median();
  state.counters["ratio_bytes"] = by_bytes.median() / raw.median();
  state.counters["ratio_name"] = by_name.median() / raw.median();
}

// ---- many chunks ----

/// Exports all chunks of a segment as a program without a broker would.
class raw_chunks {
 public:
  raw_chunks(const std::string& socket, const std::string& name) {
    std::array<int, 2> pair{};
    base::checked("bench", {}, "socketpair", [&] {
      return ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data());
    });
    near_ = base::unique_fd(pair[0]);
    far_ = base::unique_fd(pair[1]);
    broker_ = greeted_socket(socket);
    auto got = ask(broker_.get(), {1, wire::open{name, 0, 0}});
    const wire::segment info = std::get<wire::opened>(got.message.body).segment;
    total_bytes_ = info.allocated_bytes;
    chunk_bytes_ = total_bytes_ / info.chunk_count;
    chunks_.assign(std::make_move_iterator(got.descriptors.begin() + 1),
                   std::make_move_iterator(got.descriptors.end()));
    while (chunks_.size() < info.chunk_count) {
      auto more =
          ask(broker_.get(),
              {2, wire::fetch_chunks{info.generation, static_cast<std::uint32_t>(chunks_.size())}});
      chunks_.insert(chunks_.end(),
                     std::make_move_iterator(more.descriptors.begin()),
                     std::make_move_iterator(more.descriptors.end()));
    }
  }

  void send_all() const {
    const std::array<std::byte, 1> byte{};
    for (std::size_t first = 0; first < chunks_.size(); first += wire::max_batch) {
      std::vector<int> batch;
      for (std::size_t i = first; i < std::min(first + wire::max_batch, chunks_.size()); ++i) {
        batch.push_back(chunks_[i].get());
      }
      if (transport::send_packet(near_.get(), byte, batch) != transport::send_result::sent) {
        throw std::runtime_error("the descriptors were not sent");
      }
    }
  }
  /// Receives, imports, maps, and closes each batch; one set-access at the end.
  [[nodiscard]] std::unique_ptr<memory::region> attach(const memory::backend& backend) const {
    received_chunks chunks(*this);
    return backend.import({"raw", total_bytes_, access::read_write}, chunks);
  }

 private:
  class received_chunks final : public memory::chunk_source {
   public:
    explicit received_chunks(const raw_chunks& chunks) : of_(chunks) {}
    [[nodiscard]] std::optional<chunk> next() override {
      if (done_ == of_.chunks_.size()) {
        return std::nullopt;
      }
      if (taken_ == batch_.size()) {
        batch_ = transport::receive_packet(of_.far_.get(), buffer_).descriptors;
        taken_ = 0;
      }
      ++done_;
      return chunk{std::move(batch_.at(taken_++)), of_.chunk_bytes_};
    }

   private:
    const raw_chunks& of_;
    std::array<std::byte, 16> buffer_{};
    std::vector<base::unique_fd> batch_;
    std::size_t taken_ = 0;
    std::size_t done_ = 0;
  };

  greeted broker_;  // has the lease
  base::unique_fd near_;
  base::unique_fd far_;
  std::vector<base::unique_fd> chunks_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t chunk_bytes_ = 0;
};

void many_chunks(benchmark::State& state, const std::string& device, std::uint32_t count) {
  const auto backend = memory::backend_for_create(device, false);
  private_broker broker;
  client producer = broker.connect();
  client consumer = broker.connect();
  const std::uint64_t step = backend->granularity();
  segment shared =
      producer.create("bench", {.size_bytes = count * step, .device = device, .chunk_bytes = step});
  shared.publish();
  const raw_chunks exporter(broker.socket_path(), "bench");
  samples raw;
  samples through_broker;
  bool raw_first = false;
  for (auto _ : state) {
    raw_first = !raw_first;
    for (const bool is_raw : {raw_first, !raw_first}) {
      if (is_raw) {
        exporter.send_all();
        std::unique_ptr<memory::region> region;
        raw.time([&] { region = exporter.attach(*backend); });
      } else {
        segment opened;
        through_broker.time(
            [&] { opened = consumer.open("bench", {.access = access::read_write}); });
      }
    }
  }
  state.counters["raw_us"] = raw.median();
  state.counters["gpushm_us"] = through_broker.median();
  state.counters["ratio"] = through_broker.median() / raw.median();
}

// ---- peers ----

/// Opens on GPU 1 of memory on GPU 0: with an empty cache, and with one unused mapping in it.
void warm_peer(benchmark::State& state, std::uint64_t size_bytes) {
  private_broker broker;
  client producer = broker.connect();
  const create_options kept{
      .size_bytes = 512UL << 20U, .device = "0", .lifetime = lifetime::persistent};
  segment keeper = producer.create("keeper", kept);
  keeper.publish();
  segment shared = producer.create("bench", {.size_bytes = size_bytes, .device = "0"});
  shared.publish();
  const open_options on_peer{.device = "1"};
  samples cold;
  samples warm;
  for (auto _ : state) {
    client consumer = broker.connect();
    {
      segment opened;
      cold.time([&] { opened = consumer.open("bench", on_peer); });
    }
    static_cast<void>(consumer.open("keeper", on_peer));
    {
      segment opened;
      warm.time([&] { opened = consumer.open("bench", on_peer); });
    }
  }
  producer.remove("keeper");
  state.counters["cold_us"] = cold.median();
  state.counters["warm_us"] = warm.median();
  state.counters["cold_over_warm"] = cold.median() / warm.median();
}

void add(const std::string& name, auto function, int iterations) {
  auto* const added = benchmark::RegisterBenchmark(name.c_str(), function);
  if (iterations > 0) {
    added->Iterations(iterations)->Unit(benchmark::kMicrosecond);
  }
}

void add_all() {
  using state = benchmark::State;
  add(
      "cached_open/host", [](state& s) { cached_open(s, "host"); }, 0);
  add(
      "many_chunks/host/3435", [](state& s) { many_chunks(s, "host", 3435); }, 21);
  if (gpu_count() == 0) {
    return;
  }
  add(
      "cached_open/gpu", [](state& s) { cached_open(s, "0"); }, 0);
  for (const std::uint64_t size : {2UL << 20U, 1UL << 30U, 16UL << 30U}) {
    if (size + (1UL << 30U) < free_gpu_bytes(0)) {
      add(
          "legacy_open/" + base::size_text(size), [=](state& s) { legacy_open(s, size); }, 301);
    }
  }
  if ((8UL << 30U) < free_gpu_bytes(0)) {
    add(
        "many_chunks/gpu/3435", [](state& s) { many_chunks(s, "0", 3435); }, 11);
  }
  if (gpu_count() > 1) {
    for (const std::uint64_t size : {2UL << 20U, 1UL << 30U}) {
      add(
          "warm_peer/" + base::size_text(size), [=](state& s) { warm_peer(s, size); }, 31);
    }
  }
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  if (argc == 4 && argv[1] == gpushm::bench::exporter_flag) {
    return gpushm::bench::run_exporter(argv[2], std::stoull(argv[3]));
  }
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  benchmark::Initialize(&argc, argv);
  gpushm::bench::add_all();
  benchmark::RunSpecifiedBenchmarks();
}
