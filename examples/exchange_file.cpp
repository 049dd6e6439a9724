// SPDX-License-Identifier: Apache-2.0
// Shares memory between two processes or containers that have only a directory in common.
//
//   exchange_file export FILE    shares memory until one importer has released it
//   exchange_file import FILE    prints the sum of its bytes
//
// Either may start first, in any PID namespace. The memory comes from cudaMalloc, or from the host
// if there is no GPU.
#include <cstdio>
#include <gpushm/file_export.hpp>
#include <gpushm/gpushm.hpp>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_memory.hpp"

using namespace std::chrono_literals;

namespace {

constexpr std::size_t size_bytes = 1 << 20;
constexpr unsigned char value = 3;

int export_to(const std::string& file) {
  // Declared first, so that it is freed last: after `out` no new importer can connect.
  const auto tensor = cuda_memory::try_allocate(size_bytes);
  gpushm::segment shared;
  auto out = gpushm::file_export::begin(file);
  auto events = out.client().subscribe();
  if (tensor) {
    tensor->fill(value);  // synchronous: importers cannot wait for your streams
    shared = out.client().share("tensor", tensor->data(), size_bytes);
  } else {
    shared = out.client().create("tensor", {.size_bytes = size_bytes, .device = "host"});
    shared.fill(std::byte{value});
    shared.publish();
  }
  out.write(shared);  // creates the file atomically
  std::printf("exported %zu bytes of %s memory\n", size_bytes, tensor ? "GPU" : "host");
  std::fflush(stdout);

  while (const auto event = events.next(60s)) {
    if (event->kind == gpushm::event_kind::released) {
      return 0;
    }
  }
  std::fputs("exchange_file: no process imported and released the memory within 60 s\n", stderr);
  return 1;
}  // removes the file and its socket

int import_from(const std::string& file) {
  const auto imported = gpushm::import_file(file, {.timeout = 60s});
  std::vector<std::byte> bytes(imported.size_bytes());
  imported.read(0, bytes);  // or launch a kernel on imported.data()
  const auto sum = std::accumulate(
      bytes.begin(), bytes.end(), std::size_t{0}, [](std::size_t partial, auto byte) {
        return partial + std::to_integer<std::size_t>(byte);
      });
  std::printf("the sum of %zu bytes is %zu\n", bytes.size(), sum);
  return 0;
}  // the lease ends here, and the exporter receives `released`

}  // namespace

int main(int argc, char** argv) {
  const std::string_view role = argc == 3 ? argv[1] : "";
  try {
    if (role == "export") {
      return export_to(argv[2]);
    }
    if (role == "import") {
      return import_from(argv[2]);
    }
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "exchange_file: %s\n", failure.what());
    return 1;
  }
  std::fputs("usage: exchange_file export|import FILE\n", stderr);
  return 2;
}
