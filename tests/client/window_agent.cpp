// SPDX-License-Identifier: Apache-2.0
// Changes a window back and forth on the first GPU, and repeats what fails. Prints a line for each
// event: what its parent has let fail is in GPUSHM_FAKE_FAIL.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/driver/owners.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/proc_counters.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace {

using namespace gpushm;

constexpr std::uint64_t chunk_bytes = 2UL << 20U;
constexpr std::uint64_t size_bytes = 3 * chunk_bytes;
constexpr int max_attempts = 5;

void line(const std::string& text) {
  std::cout << text << std::endl;  // NOLINT(performance-avoid-endl): the parent may kill it
}

/// Between the driver's calls in the trace.
void mark(const std::string& text) {
  const char* const path = std::getenv("GPUSHM_FAKE_TRACE");  // NOLINT(concurrency-mt-unsafe)
  if (path != nullptr) {
    std::ofstream(path, std::ios::app) << text << '\n';
  }
}

segment make(client& client, const std::string& name, unsigned char value) {
  segment made =
      client.create(name, {.size_bytes = size_bytes, .device = "0", .chunk_bytes = chunk_bytes});
  made.fill(std::byte{value});
  made.publish();
  return made;
}

/// The name of the segment whose contents are at the window's address; "nothing".
std::string contents(const window& window) {
  const driver::gpu& gpu = driver::find_device("0");
  const auto context = driver::retain_primary_context(gpu.handle, "test", gpu.id.uuid);
  const driver::context_scope scope(context.get().context, "test", gpu.id.uuid);
  std::vector<unsigned char> bytes(size_bytes);
  if (driver::cuda_driver::instance()->cuMemcpyDtoH_v2(
          bytes.data(), reinterpret_cast<cuda::CUdeviceptr>(window.data()), bytes.size()) !=
      cuda::CUDA_SUCCESS) {
    return "nothing";
  }
  const bool is_uniform =
      std::all_of(bytes.begin(), bytes.end(), [&](unsigned char each) { return each == bytes[0]; });
  return is_uniform ? std::string(1, static_cast<char>(bytes[0])) : "mixed";
}

std::string held() {
  return std::to_string(gpushm_testing::total(gpushm_testing::count_descriptors(::getpid()))) +
         " " + std::to_string(gpushm_testing::count_mappings(::getpid(), "gpu"));
}

/// Runs `call` until it succeeds; `after` prints what there is after a failure.
template <typename Call, typename After>
void repeat(Call&& call, After&& after) {
  for (int attempt = 0; attempt != max_attempts; ++attempt) {
    try {
      call();
      return;
    } catch (const error& why) {
      line("failed " + std::string(to_string(why.code())) + " " + after());
    }
  }
  line("gave up");
}

void run() {
  const gpushm_testing::temp_dir folder;
  broker_options options;
  options.socket_path = folder / "socket";
  options.accept_fake_chunks = true;
  const broker broker = broker::start(options);
  client owner = client::connect({.socket_path = options.socket_path});
  client user = client::connect({.socket_path = options.socket_path});
  const segment first = make(owner, "a", 'a');
  const segment second = make(owner, "b", 'b');
  const std::array<segment, 2> seen{user.open("a"), user.open("b")};
  window window;
  mark("create");
  repeat([&] { window = gpushm::window(seen.front()); }, [] { return std::string("no window"); });
  const std::string before = held();
  mark("change");
  for (const std::size_t next : {1U, 0U}) {
    repeat([&] { window.show(seen.at(next)); },
           [&] {
             const bool is_mapped = window.state() == segment_state::live;
             return std::string(is_mapped ? "mapped " : "unmapped ") + window.segment().name() +
                    " " + contents(window);
           });
    line("shown " + window.segment().name() + " " + contents(window));
  }
  mark("end");
  line(held() == before ? "held as before" : "held " + before + ", now " + held());
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& why) {
    line(std::string("ended by ") + why.what());
    return 1;
  }
  return 0;
}
