// SPDX-License-Identifier: Apache-2.0
// Two processes, or containers, that share a directory and nothing else.
//
//   exchange_file export FILE    shares memory until one importer came and went
//   exchange_file import FILE    prints the sum of its bytes
//
// Either may start first, in whatever PID namespace. A GPU's memory is what cudaMalloc returned;
// without a GPU it is memory of the host.
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
  // Declared first, so that it is freed last: when `out` is gone, nobody new can come.
  const auto tensor = cuda_memory::try_allocate(size_bytes);
  gpushm::segment shared;
  auto out = gpushm::file_export::begin(file);
  auto events = out.client().subscribe();
  if (tensor) {
    tensor->fill(value);  // and wait for it: importers do not know of your streams
    shared = out.client().share("tensor", tensor->data(), size_bytes);
  } else {
    shared = out.client().create("tensor", {.size_bytes = size_bytes, .device = "host"});
    shared.fill(std::byte{value});
    shared.publish();
  }
  out.write(shared);  // the file appears, whole
  std::printf("exported %zu bytes of %s memory\n", size_bytes, tensor ? "GPU" : "host");
  std::fflush(stdout);

  while (const auto seen = events.next(60s)) {
    if (seen->kind == gpushm::event_kind::released) {
      return 0;
    }
  }
  std::fputs("exchange_file: nobody imported the memory and was done with it\n", stderr);
  return 1;
}  // the file and its socket go

int import_from(const std::string& file) {
  const auto found = gpushm::import_file(file, {.timeout = 60s});
  std::vector<std::byte> bytes(found.size_bytes());
  found.read(0, bytes);  // or a kernel of yours, on found.data()
  const auto sum =
      std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}, [](std::size_t all, auto byte) {
        return all + std::to_integer<std::size_t>(byte);
      });
  std::printf("the sum of %zu bytes is %zu\n", bytes.size(), sum);
  return 0;
}  // the lease ends here, and the exporter hears of it

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
