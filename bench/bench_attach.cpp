// SPDX-License-Identifier: Apache-2.0
// How long a client takes to attach a model with a table of tensors, compared with the driver's own
// import and mapping of the same memory in the same process and run.
//
//   gpushm_attach [GIB [TENSORS [DEVICE [REPETITIONS]]]]   prints JSON
//
// GIB: 10. TENSORS: 500. DEVICE: "0" (if there is a GPU), "host". REPETITIONS: 30, each of which
// attaches in each way once; all figures are medians of microseconds. Each attach is of a new
// client of this process, and ends before the next one begins. `raw` starts with a descriptor that
// is already here.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "bench/bench_support.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/owners.hpp"
#include "gpu/driver/primary_context.hpp"
#include "gpushm/gpushm.hpp"

namespace gpushm::bench {
namespace {

using std::chrono::steady_clock;

constexpr const char* model_name = "bench/model";
constexpr std::uint64_t row_bytes = 8'192;

struct wanted {
  double gib = 10;
  std::uint64_t tensors = 500;
  std::string device;
  int repetitions = 30;
};

/// The parts of one way to attach, in their order.
class parts {
 public:
  void begin() { first_ = last_ = steady_clock::now(); }
  void part(const std::string& name) {
    const auto now = steady_clock::now();
    of(name).add(microseconds(now - last_));
    last_ = now;
  }
  void end() { of("all").add(microseconds(last_ - first_)); }

  [[nodiscard]] double all() const { return samples_.at("all").median(); }
  [[nodiscard]] std::string text() const {
    std::string result;
    for (const std::string& name : names_) {
      std::array<char, 64> number{};
      std::snprintf(number.data(), number.size(), "%.1f", samples_.at(name).median());
      result += (result.empty() ? "{\"" : ", \"") + name + "\": " + number.data();
    }
    return result + "}";
  }

 private:
  static double microseconds(steady_clock::duration duration) {
    return std::chrono::duration<double, std::micro>(duration).count();
  }
  samples& of(const std::string& name) {
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) {
      names_.push_back(name);
    }
    return samples_[name];
  }

  std::vector<std::string> names_;
  std::map<std::string, samples> samples_;
  steady_clock::time_point first_;
  steady_clock::time_point last_;
};

std::string table_for(const wanted& request) {
  const auto rows = std::max<std::uint64_t>(
      1,
      static_cast<std::uint64_t>(request.gib * static_cast<double>(1UL << 30U) /
                                 static_cast<double>(request.tensors * row_bytes)));
  std::string table = "{";
  for (std::uint64_t i = 0; i != request.tensors; ++i) {
    const std::uint64_t begin = i * rows * row_bytes;
    table += (i == 0 ? "\"" : ", \"") + ("model.layers." + std::to_string(i)) +
             ".mlp.weight\": {\"dtype\": \"BF16\", \"shape\": [" + std::to_string(rows) +
             ", 4096], \"data_offsets\": [" + std::to_string(begin) + ", " +
             std::to_string(begin + rows * row_bytes) + "]}";
  }
  return table + "}";
}

void must(cuda::CUresult result, const char* call) {
  driver::cuda_driver::check(result, "bench", {}, call);
}

/// The driver alone, from a descriptor.
void map_raw(parts& times, int file, std::uint64_t bytes, const std::string& device) {
  if (device == "host") {
    times.begin();
    void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
    times.part("map");
    times.end();
    if (at == MAP_FAILED) {
      throw std::runtime_error("mmap failed");
    }
    ::munmap(at, bytes);
    return;
  }
  const driver::gpu& gpu = driver::find_device(device);
  const driver::context_scope scope(
      driver::primary_context(gpu.handle, "bench", {}), "bench", device);
  const driver::cuda_driver& cu = driver::cuda_driver::instance();
  times.begin();
  cuda::CUmemGenericAllocationHandle handle = 0;
  auto* const number = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): CUDA's way
      static_cast<std::intptr_t>(file));
  must(cu->cuMemImportFromShareableHandle(
           &handle, number, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
       "cuMemImportFromShareableHandle");
  driver::unique_allocation imported(handle);
  times.part("import");
  cuda::CUdeviceptr address = 0;
  must(cu->cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  const driver::unique_reservation reserved({address, bytes});
  times.part("reserve");
  must(cu->cuMemMap(address, bytes, 0, handle, 0), "cuMemMap");
  const driver::unique_device_mapping mapped({address, bytes});
  times.part("map");
  cuda::CUmemAccessDesc access{};
  access.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, gpu.handle};
  access.flags = cuda::CU_MEM_ACCESS_FLAGS_PROT_READ;
  must(cu->cuMemSetAccess(address, bytes, &access, 1), "cuMemSetAccess");
  times.part("access");
  imported.reset();
  times.end();
}

/// `names`: requested with the connection.
void attach(parts& times,
            const broker_process& broker,
            const wanted& request,
            const std::vector<std::string>& names) {
  times.begin();
  client attached = client::connect({.socket_path = broker.socket_path(), .prefetch = names});
  times.part("connect");
  const segment model = open_tensors(attached, model_name);
  times.part("open");
  const tensor_index tensors(model);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i != tensors.size(); ++i) {
    bytes += tensors[i].size_bytes;
  }
  times.part("table");
  times.end();
  if (tensors.size() != request.tensors || bytes % row_bytes != 0) {
    throw std::runtime_error("the table has other tensors");
  }
}

int run(const broker_process& broker, const wanted& request) {
  const std::string table = table_for(request);
  client producer = broker.connect();
  segment model = producer.create(model_name,
                                  {.size_bytes = tensors_size(table),
                                   .device = request.device,
                                   .lifetime = lifetime::persistent});
  publish_tensors(model, table);

  const greeted session = greeted_socket(broker.socket_path());
  const auto got = ask(session.get(), {1, wire::open{model_name, 0, 0}});
  const auto bytes = std::get<wire::opened>(got.message.body).segment.allocated_bytes;
  parts raw;
  parts by_name;
  parts prefetched;
  constexpr std::size_t ways = 3;
  for (int i = 0; i != request.repetitions; ++i) {
    for (std::size_t j = 0; j != ways; ++j) {
      switch ((static_cast<std::size_t>(i) + j) % ways) {  // varies their order
        case 0:
          map_raw(raw, got.descriptors.at(0).get(), bytes, request.device);
          break;
        case 1:
          attach(by_name, broker, request, {});
          break;
        default:
          attach(prefetched, broker, request, {model_name});
      }
    }
  }
  producer.remove(model_name);
  std::printf(
      "{\"device\": \"%s\", \"gib\": %g, \"tensors\": %llu, \"repetitions\": %d,\n \"raw\": %s,\n "
      "\"gpushm\": %s,\n \"ratio\": %.2f,\n \"prefetched\": %s,\n "
      "\"ratio_prefetched\": %.2f}\n",
      request.device.c_str(),
      request.gib,
      static_cast<unsigned long long>(request.tensors),  // NOLINT(google-runtime-int): as printf's
      request.repetitions,
      raw.text().c_str(),
      by_name.text().c_str(),
      by_name.all() / raw.all(),
      prefetched.text().c_str(),
      prefetched.all() / raw.all());
  return 0;
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> given(argv + 1, argv + argc);
    const gpushm::bench::broker_process broker;  // before this process uses the driver
    gpushm::bench::wanted request;
    request.gib = given.empty() ? request.gib : std::stod(given[0]);
    request.tensors = given.size() > 1 ? std::stoull(given[1]) : request.tensors;
    request.device = given.size() > 2 ? given[2] : gpushm::bench::gpu_count() > 0 ? "0" : "host";
    request.repetitions = given.size() > 3 ? std::stoi(given[3]) : request.repetitions;
    return gpushm::bench::run(broker, request);
  } catch (const std::exception& why) {
    std::fprintf(stderr, "gpushm_attach: %s\n", why.what());
    return 1;
  }
}
