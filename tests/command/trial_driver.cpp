// SPDX-License-Identifier: Apache-2.0
// trial_driver GPUSHM SOCKET [--own-namespaces]: starts two trial workers, makes one export memory
// of GPU 0 in a trial that never continues, and waits to be killed.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "base/process/child_process.hpp"

int main(int argc, char** argv) {
  if (argc < 3) {
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  gpushm::base::child_options options;
  options.argv = {argv[1], "trial-worker"};
  options.argv.insert(options.argv.end(), argv + 3, argv + argc);
  auto exporter = gpushm::base::child_process::start(options);
  auto importer = gpushm::base::child_process::start(options);
  const auto until = gpushm::base::deadline_in(std::chrono::seconds(60));
  exporter.write_line(
      R"({"way":"cuda-vmm","order":"export","device":"0","name":"a","size_bytes":4096,"seed":1,)"
      R"("socket":")" +
      std::string(argv[2]) + R"("})");
  const auto exported = exporter.read_line(until);
  importer.write_line(R"({"way":"host","order":"hello"})");
  const auto ready = importer.read_line(until);
  if (!exported || exported->find("\"exported\"") == std::string::npos || !ready) {
    std::fprintf(stderr, "%s\n", exported.value_or("no answer").c_str());
    return 1;
  }
  std::puts("exporter waits");
  std::fflush(stdout);
  for (;;) {
    ::pause();
  }
}
