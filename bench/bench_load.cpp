// SPDX-License-Identifier: Apache-2.0
// Loads of a model from the page cache (load_tensors), compared with the limit that this machine
// has: copies from pinned memory to the GPU, or memcpy for host memory. Two models, one a quarter
// of the other: the difference is the rate of a long load, the rest is what each load costs to
// start.
//
//   gpushm_load FOLDER [GIB [DEVICE [REPETITIONS [THREADS...]]]]   prints a line of JSON
//
// FOLDER gets the files, 1.25 x GIB (8), and must be able to keep them in the page cache; they are
// removed. DEVICE: "0" (if there is a GPU), "host". Each figure is the best of REPETITIONS (5). How
// long the parts of each load have taken is on standard error.
// THREADS: 4 8 12 16 and 0, the automatic choice.
// "first_calls": the first load of a process, by the automatic choice, in new processes: `call` is
// connect and load in a process that has a context of the GPU, as an engine has when it loads;
// `process` is all from the start of the process, the creation of its context included.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/process/child_process.hpp"
#include "bench/bench_support.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpushm/gpushm.hpp"
#include "tensors/files/hash.hpp"

namespace gpushm::bench {
namespace {

using std::chrono::steady_clock;

constexpr std::uint64_t mib = 1U << 20U;
constexpr std::uint64_t piece_bytes = 4 * mib;

const driver::cuda_driver& cu() {
  return driver::cuda_driver::instance();
}
void must(cuda::CUresult result) {
  driver::cuda_driver::check(result, "bench", {}, "the driver");
}

/// The shortest of several runs, in seconds.
double shortest(int repetitions, const std::function<void()>& run) {
  double result = 0;
  for (int i = 0; i != repetitions; ++i) {
    const auto begin = steady_clock::now();
    run();
    const double took = std::chrono::duration<double>(steady_clock::now() - begin).count();
    result = i == 0 ? took : std::min(result, took);
  }
  return result;
}
double gigabytes(std::uint64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

// ---- files ----

/// A safetensors file like those of language models: for each layer two vectors and two matrices,
/// which are not aligned in the file.
class model {
 public:
  model(const std::string& folder, std::uint64_t mib_of_it)
      : path_(folder + "/gpushm-load-" + std::to_string(mib_of_it) + ".safetensors") {
    std::string header = "{";
    constexpr std::array<std::uint64_t, 4> sizes{8'192, 80 * mib, 8'192, 48 * mib};
    for (std::size_t i = 0; tensor_bytes_ < mib_of_it * mib; ++i) {
      const std::uint64_t size =
          std::min(sizes.at(i % sizes.size()), mib_of_it * mib - tensor_bytes_);
      header += (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[)" +
                std::to_string(size) + "],\"data_offsets\":[" + std::to_string(tensor_bytes_) +
                "," + std::to_string(tensor_bytes_ + size) + "]}";
      tensor_bytes_ += size;
    }
    header += "}";
    header.append(8 - header.size() % 8, ' ');
    std::string length;
    for (unsigned shift = 0; shift != 64; shift += 8) {
      length += static_cast<char>(header.size() >> shift & 0xFFU);
    }
    file_ = base::unique_fd(base::checked("bench", path_, "open", [&] {
      return ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    }));
    write(length + header);
    std::string block(mib, '\0');
    std::uint32_t state = 1;
    for (std::uint64_t at = 0; at != tensor_bytes_; at += block.size()) {
      for (std::size_t i = 0; i < block.size(); i += 64) {
        block[i] = static_cast<char>((state = state * 1'664'525U + 1'013'904'223U) >> 24U);
      }
      write(block);
    }
    // No writes to the disk during the measurements.
    base::checked("bench", path_, "fsync", [&] { return ::fsync(file_.get()); });
  }
  model(const model&) = delete;
  model& operator=(const model&) = delete;
  ~model() { ::unlink(path_.c_str()); }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int file() const { return file_.get(); }
  [[nodiscard]] std::uint64_t tensor_bytes() const { return tensor_bytes_; }

 private:
  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t done = base::checked("bench", path_, "write", [&] {
        return ::write(file_.get(), bytes.data(), bytes.size());
      });
      bytes.remove_prefix(static_cast<std::size_t>(done));
    }
  }
  std::string path_;
  std::uint64_t tensor_bytes_ = 0;
  base::unique_fd file_;
};

// ---- the limits ----

/// GB/s of 32 MiB copies from one pinned buffer on two streams.
double pinned_copies(int repetitions) {
  constexpr std::uint64_t buffer_bytes = 512 * mib;
  constexpr std::uint64_t step = 32 * mib;
  constexpr int rounds = 8;
  must(
      cu()->cuCtxSetCurrent(driver::primary_context(driver::find_device("0").handle, "bench", {})));
  void* pinned = nullptr;
  must(cu()->cuMemHostAlloc(&pinned, buffer_bytes, 0));
  std::memset(pinned, 1, buffer_bytes);
  cuda::CUdeviceptr target = 0;
  must(cu()->cuMemAlloc_v2(&target, buffer_bytes));
  std::array<cuda::CUstream, 2> streams{};
  for (auto& each : streams) {
    must(cu()->cuStreamCreate(&each, cuda::CU_STREAM_NON_BLOCKING));
  }
  const double took = shortest(repetitions, [&] {
    for (int i = 0; i != rounds; ++i) {
      for (std::uint64_t at = 0; at != buffer_bytes; at += step) {
        must(cu()->cuMemcpyHtoDAsync_v2(target + at,
                                        static_cast<std::byte*>(pinned) + at,
                                        step,
                                        streams.at(at / step % streams.size())));
      }
    }
    for (const auto& each : streams) {
      must(cu()->cuStreamSynchronize(each));
    }
  });
  for (const auto& each : streams) {
    must(cu()->cuStreamDestroy_v2(each));
  }
  must(cu()->cuMemFree_v2(target));
  must(cu()->cuMemFreeHost(pinned));
  return gigabytes(buffer_bytes * rounds) / took;
}

/// GB/s of memcpy by as many threads as there are CPUs, into memory that is there.
double host_copies(int repetitions) {
  constexpr std::uint64_t bytes = 64 * mib;
  constexpr int rounds = 8;
  const unsigned threads = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::vector<char>> from(threads, std::vector<char>(bytes, 'x'));
  std::vector<std::vector<char>> to(threads, std::vector<char>(bytes));
  const double took = shortest(repetitions, [&] {
    std::vector<std::jthread> workers;
    for (unsigned i = 0; i != threads; ++i) {
      workers.emplace_back([&, i] {
        for (int round = 0; round != rounds; ++round) {
          std::memcpy(to[i].data(), from[i].data(), bytes);
        }
      });
    }
  });
  return gigabytes(bytes * rounds * threads) / took;
}

/// GB/s of one core, of bytes in its cache.
double hash_rate(const tensors::hash_variant& variant, int repetitions) {
  constexpr std::uint64_t bytes = mib / 2;
  constexpr int rounds = 500;
  const std::vector<std::byte> memory(bytes);
  std::uint64_t sum = 0;
  const double took = shortest(repetitions, [&] {
    for (int i = 0; i != rounds; ++i) {
      sum += variant.kernel.hash(memory.data(), memory.size());
    }
  });
  return gigabytes(bytes * rounds + sum % 2) / took;
}

/// GB/s of reads of a file into 4 MiB of each thread, `step` bytes at a time, which are hashed if
/// there is a kernel.
double read_rate(const model& model,
                 unsigned threads,
                 std::uint64_t step,
                 const gpushm_hash_kernel* hash,
                 int repetitions) {
  const std::uint64_t share = model.tensor_bytes() / threads / piece_bytes * piece_bytes;
  const auto read_share = [&](std::uint64_t begin) {
    std::vector<std::byte> buffer(piece_bytes);
    for (std::uint64_t at = begin; at != begin + share; at += piece_bytes) {
      alignas(GPUSHM_HASH_STATE_ALIGNMENT) std::array<std::byte, GPUSHM_HASH_STATE_BYTES> state{};
      if (hash != nullptr) {
        hash->begin(state.data());
      }
      for (std::uint64_t done = 0; done != piece_bytes; done += step) {
        base::checked("bench", model.path(), "pread", [&] {
          return ::pread(model.file(), buffer.data() + done, step, static_cast<off_t>(at + done));
        });
        if (hash != nullptr) {
          hash->add(state.data(), buffer.data() + done, step);
        }
      }
    }
  };
  const double took = shortest(repetitions, [&] {
    std::vector<std::jthread> workers;
    for (unsigned i = 0; i != threads; ++i) {
      workers.emplace_back([&, i] { read_share(share * i); });
    }
  });
  return gigabytes(share * threads) / took;
}

// ---- loads ----

struct load_rates {
  std::uint32_t threads = 0;
  double whole = 0;   ///< GB/s with all that a load costs
  double steady = 0;  ///< GB/s without its start
  double start_seconds = 0;
  double cores = 0;  ///< that it keeps busy
};

/// CPU time of this process.
double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

class loader {
 public:
  loader(const broker_process& broker, std::string device)
      : client_(broker.connect()), device_(std::move(device)) {}

  double seconds(const model& model, std::uint32_t threads) {
    load_options options;
    options.device = device_;
    options.threads = threads;
    options.reading = reading::cached;
    const std::array<std::string, 1> paths{model.path()};
    const auto begin = steady_clock::now();
    segment loaded = load_tensors(client_, "bench", paths, options);
    const double took = std::chrono::duration<double>(steady_clock::now() - begin).count();
    loaded.reset();
    client_.remove("bench");
    // The driver clears memory that was freed, with the GPU's copy engines: measured, the next load
    // had half its rate for 30 ms after 10 GiB.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return took;
  }
  load_rates rates(const model& large, const model& small, std::uint32_t threads, int repetitions) {
    load_rates result;
    result.threads = threads;
    double of_large = 0;
    double of_small = 0;
    for (int i = 0; i != repetitions; ++i) {
      const double cpu_before = cpu_seconds();
      const double a = seconds(large, threads);
      const double cores = (cpu_seconds() - cpu_before) / a;
      const double b = seconds(small, threads);
      if (i == 0 || a < of_large) {
        of_large = a;
        result.cores = cores;
      }
      of_small = i == 0 ? b : std::min(of_small, b);
    }
    result.whole = gigabytes(large.tensor_bytes()) / of_large;
    result.steady = gigabytes(large.tensor_bytes() - small.tensor_bytes()) / (of_large - of_small);
    result.start_seconds = of_large - gigabytes(large.tensor_bytes()) / result.steady;
    return result;
  }

 private:
  client client_;
  std::string device_;
};

// ---- the first load of a process ----

/// Microseconds.
struct first_call {
  std::int64_t context = 0;
  std::int64_t call = 0;  ///< connect and load
  std::int64_t process = 0;
};

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             steady_clock::now().time_since_epoch())
      .count();
}

constexpr const char* first_call_role = "--first-call";

/// The role of a child process: SOCKET FILE DEVICE STARTED. `STARTED`: `now_us` of its parent.
int run_first_call(const std::vector<std::string>& given) {
  const std::string& device = given.at(3);
  const std::int64_t begin = now_us();
  if (device != "host") {
    static_cast<void>(driver::primary_context(driver::find_device(device).handle, "bench", {}));
  }
  const std::int64_t has_context = now_us();
  client client = client::connect({given.at(1)});
  load_options options;
  options.device = device;
  options.reading = reading::cached;
  const std::array<std::string, 1> paths{given.at(2)};
  segment loaded = load_tensors(client, "bench", paths, options);
  const std::int64_t end = now_us();
  std::printf("%lld %lld %lld\n",
              static_cast<long long>(has_context - begin),
              static_cast<long long>(end - has_context),
              static_cast<long long>(end - std::stoll(given.at(4))));
  std::fflush(stdout);
  loaded.reset();
  client.remove("bench");
  return 0;
}

first_call measure_first_call(const broker_process& broker,
                              const model& model,
                              const std::string& device) {
  constexpr std::chrono::minutes limit{2};
  base::child_options options;
  options.argv = {base::executable_path(),
                  first_call_role,
                  broker.socket_path(),
                  model.path(),
                  device,
                  std::to_string(now_us())};
  auto child = base::child_process::start(options);
  std::string text;
  if (!child.read_all(text, base::deadline_in(limit)) ||
      child.wait(base::deadline_in(limit)) != 0) {
    throw std::runtime_error("a process that loads once has failed: " + text);
  }
  first_call result;
  std::istringstream(text) >> result.context >> result.call >> result.process;
  // As after the other loads: the driver clears what the process has left.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return result;
}

/// Sorted by `call`.
std::vector<first_call> first_calls(const broker_process& broker,
                                    const model& model,
                                    const std::string& device,
                                    int repetitions) {
  std::vector<first_call> result;
  for (int i = 0; i != repetitions; ++i) {
    result.push_back(measure_first_call(broker, model, device));
  }
  std::sort(result.begin(), result.end(), [](const first_call& left, const first_call& right) {
    return left.call < right.call;
  });
  return result;
}

void print_first_calls(const std::vector<first_call>& calls, std::uint64_t bytes, double limit) {
  std::printf("\"first_calls\": [");
  for (const first_call& each : calls) {
    const double rate = static_cast<double>(bytes) / 1e3 / static_cast<double>(each.call);
    const double whole = static_cast<double>(bytes) / 1e3 / static_cast<double>(each.process);
    std::printf(
        "%s{\"context_ms\": %.1f, \"call_ms\": %.1f, \"GBps\": %.1f, \"ratio\": %.3f, "
        "\"process_ms\": %.1f, \"process_GBps\": %.1f, \"process_ratio\": %.3f}",
        &each == &calls.front() ? "" : ", ",
        static_cast<double>(each.context) / 1e3,
        static_cast<double>(each.call) / 1e3,
        rate,
        rate / limit,
        static_cast<double>(each.process) / 1e3,
        whole,
        whole / limit);
  }
  std::printf("], ");
}

void print_rates(const load_rates& rates, double limit, const char* separator) {
  std::printf(
      "%s{\"threads\": %u, \"GBps\": %.1f, \"ratio\": %.3f, \"steady_GBps\": %.1f, "
      "\"steady_ratio\": %.3f, \"start_ms\": %.1f, \"cores\": %.1f}",
      separator,
      rates.threads,
      rates.whole,
      rates.whole / limit,
      rates.steady,
      rates.steady / limit,
      rates.start_seconds * 1e3,
      rates.cores);
  std::fflush(stdout);
}

struct wanted {
  std::string folder;
  std::uint64_t gib = 8;
  std::string device;
  int repetitions = 5;
  std::vector<std::uint32_t> threads;
};

int run(const broker_process& broker, const wanted& request) {
  const bool is_host = request.device == "host";
  const model large(request.folder, request.gib * 1024);
  const model small(request.folder, request.gib * 256);
  const unsigned cpus = std::max(1U, std::thread::hardware_concurrency());
  const int repetitions = request.repetitions;
  std::printf("{\"GiB\": %llu, \"device\": \"%s\", \"cpus\": %u, \"hash_GBps\": {",
              static_cast<unsigned long long>(request.gib),
              request.device.c_str(),
              cpus);
  const auto variants = tensors::hash_variants();
  for (const auto& each : variants) {
    std::printf("%s\"%s\": %.1f",
                &each == &variants.front() ? "" : ", ",
                std::string(each.name).c_str(),
                hash_rate(each, repetitions));
  }
  std::printf("}, \"read_GBps\": [");
  for (const unsigned threads : {1U, cpus}) {
    const auto* const hash = &variants.front().kernel;
    std::printf(
        "%s{\"threads\": %u, \"read\": %.1f, \"read_hash_1MiB\": %.1f, \"read_hash_4MiB\": %.1f}",
        threads == 1 ? "" : ", ",
        threads,
        read_rate(small, threads, piece_bytes, nullptr, repetitions),
        read_rate(small, threads, mib, hash, repetitions),
        read_rate(small, threads, piece_bytes, hash, repetitions));
  }
  // Before this process has memory on the GPU.
  const auto first = first_calls(broker, large, request.device, repetitions);
  loader loads(broker, request.device);
  loads.seconds(small, 1);  // the context of the GPU
  const double limit = is_host ? host_copies(repetitions) : pinned_copies(repetitions);
  std::printf("], \"%s\": %.1f, ", is_host ? "memcpy_GBps" : "pinned_GBps", limit);
  print_first_calls(first, large.tensor_bytes(), limit);
  std::printf("\"loads\": [");
  const char* separator = "";
  for (const std::uint32_t threads : request.threads) {
    print_rates(loads.rates(large, small, threads, repetitions), limit, separator);
    separator = ", ";
  }
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> given(argv + 1, argv + argc);
    if (given.empty()) {
      std::fprintf(stderr, "usage: gpushm_load FOLDER [GIB [DEVICE [REPETITIONS [THREADS...]]]]\n");
      return 2;
    }
    gpushm::set_log_sink([](gpushm::log_level, std::string_view text) {
      if (text.starts_with("load \"")) {  // how long its parts have taken
        std::fprintf(stderr, "%s\n", std::string(text).c_str());
      }
    });
    if (given.front() == gpushm::bench::first_call_role) {
      return gpushm::bench::run_first_call(given);
    }
    const gpushm::bench::broker_process broker;  // before this process uses the driver
    gpushm::bench::wanted request;
    request.folder = given[0];
    request.gib = given.size() > 1 ? std::stoull(given[1]) : request.gib;
    request.device = given.size() > 2 ? given[2] : gpushm::bench::gpu_count() > 0 ? "0" : "host";
    request.repetitions = given.size() > 3 ? std::stoi(given[3]) : request.repetitions;
    for (std::size_t i = 4; i < given.size(); ++i) {
      request.threads.push_back(static_cast<std::uint32_t>(std::stoul(given[i])));
    }
    if (request.threads.empty()) {
      request.threads = {4, 8, 12, 16, 0};
    }
    return gpushm::bench::run(broker, request);
  } catch (const std::exception& why) {
    std::fprintf(stderr, "gpushm_load: %s\n", why.what());
    return 1;
  }
}
