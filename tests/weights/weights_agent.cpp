// SPDX-License-Identifier: Apache-2.0
// weights_agent SOCKET NAME DEVICE PATH [PAUSE_MS [replace | TENSORS DIMENSION PARTS]]
// Loads a model, prints "report BYTES TOTAL here|there" while it does, then "ready GENERATION", and
// for each line on standard input compares segment and files: "whole", or what differs. With a
// pause, it does not go on for so long at each report of the load's own progress. With "replace",
// the model replaces another one of this name. With tensors (a pattern), it loads only these, and
// of each the second of the equal parts of a dimension.
#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "tests/support/ptrace/marker.hpp"
#include "tests/weights/model_compare.hpp"

using namespace gpushm;

int main(int argc, char** argv) {
  if (argc < 5 || argc == 8 || argc > 9) {
    return 2;
  }
  try {
    client client = client::connect({.socket_path = argv[1], .timeout = std::chrono::seconds(20)});
    load_options options;
    options.device = argv[3];
    options.threads = 2;
    options.timeout = std::chrono::minutes(2);
    options.replace = argc == 7;
    const std::chrono::milliseconds pause(argc > 5 ? std::stoi(argv[5]) : 0);
    if (argc == 9) {
      options.tensors = {argv[6]};
      options.slices = {{argv[6], std::stoi(argv[7]), 1, 2, std::stoul(argv[8])}};
    }
    options.report = [pause](const load_progress& far) {
      std::cout << "report " << far.bytes << ' ' << far.total_bytes << ' '
                << (far.is_here ? "here" : "there") << std::endl;
      if (far.is_here) {
        std::this_thread::sleep_for(pause);
      }
    };
    const std::vector<std::string> paths{argv[4]};
    gpushm_testing::mark_begin();
    const segment loaded = load_tensors(client, argv[2], paths, options);
    gpushm_testing::mark_end();
    std::cout << "ready " << loaded.generation() << std::endl;
    for (std::string line; std::getline(std::cin, line) && line != "end";) {
      std::cout << gpushm_tests::model_comparison(loaded, argv[4], options).all() << std::endl;
    }
    return 0;
  } catch (const error& why) {
    std::cout << "failed " << to_string(why.code()) << ' ' << why.what() << std::endl;
    return 1;
  }
}
