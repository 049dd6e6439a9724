// SPDX-License-Identifier: Apache-2.0
// weights_engine SOCKET NAME PATH...
// An engine that serves a model. Opens it once it is complete, prints "ready GENERATION", and then
// compares its tensors with the file among PATH... that it was loaded from, one by one and over
// again, until standard input ends. For each line on standard input it asks the broker something
// and prints "whole STATE PASSES": all bytes, hashes and shapes are right, and so were those of
// each pass. Or it prints what differs, or "failed WHY".
#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "tests/weights/model_compare.hpp"

namespace {

using namespace std::chrono_literals;

/// Reads without end, as an engine that serves does.
class serving {
 public:
  explicit serving(const gpushm_tests::model_comparison& comparison)
      : thread_([this, &comparison](const std::stop_token& stop) { run(comparison, stop); }) {}

  [[nodiscard]] std::uint64_t passes() const { return passes_; }
  /// "whole", or what has differed in any pass.
  [[nodiscard]] std::string result() const {
    const std::lock_guard lock(mutex_);
    return result_;
  }

 private:
  void run(const gpushm_tests::model_comparison& comparison, const std::stop_token& stop) {
    try {
      for (std::size_t next = 0; !stop.stop_requested();) {
        if (const std::string found = comparison.bytes_of(next); found != "whole") {
          set("while serving: " + found);
        }
        next = (next + 1) % comparison.tensors();
        passes_ += next == 0 ? 1 : 0;
        std::this_thread::sleep_for(1ms);  // others need the CPU, too
      }
    } catch (const std::exception& why) {
      set(std::string("while serving: ") + why.what());
    }
  }
  void set(const std::string& result) {
    const std::lock_guard lock(mutex_);
    result_ = result;
  }

  mutable std::mutex mutex_;
  std::string result_ = "whole";
  std::atomic<std::uint64_t> passes_{0};
  std::jthread thread_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    return 2;
  }
  try {
    auto client = gpushm::client::connect({.socket_path = argv[1], .timeout = 60s});
    const gpushm::segment loaded = gpushm::open_tensors(client, argv[2], {.timeout = 120s});
    const std::vector<std::string> paths(argv + 3, argv + argc);
    const auto from = std::find_if(paths.begin(), paths.end(), [&](const std::string& path) {
      return gpushm_tests::is_model_of(loaded, path);
    });
    if (from == paths.end()) {
      std::cout << "failed: the model of no file" << std::endl;
      return 1;
    }
    const gpushm_tests::model_comparison comparison(loaded, *from);
    const serving thread(comparison);
    std::cout << "ready " << loaded.generation() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      std::string result = thread.result();
      if (result == "whole") {
        result = comparison.all();
      }
      static_cast<void>(client.list(argv[2]));  // the broker answers
      std::cout << result << ' ' << to_string(loaded.state()) << ' ' << thread.passes()
                << std::endl;
    }
    return 0;
  } catch (const std::exception& why) {
    std::cout << "failed " << why.what() << std::endl;
    return 1;
  }
}
