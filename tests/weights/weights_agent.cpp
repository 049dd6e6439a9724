// SPDX-License-Identifier: Apache-2.0
// weights_agent SOCKET NAME DEVICE PATH
// Loads a model, prints "report BYTES TOTAL here|there" while it does, then "ready GENERATION", and
// for each line on standard input compares segment and files: "whole", or what differs.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iostream>
#include <string>
#include <vector>

#include "gpushm/gpushm.hpp"
#include "weights/hash.hpp"
#include "weights/model_files.hpp"
#include "weights/piece_reader.hpp"
#include "weights/tensor_json.hpp"

namespace {

using namespace gpushm;

/// "whole", or the first tensor that differs. Reads the files with code that no load uses.
std::string compare(const segment& loaded, const std::string& path) {
  const auto table = weights::read_tensors(tensor_table(loaded), weights::dialect::table);
  std::size_t compared = 0;
  for (const weights::model_file& file : weights::open_model({path})) {
    for (const weights::tensor& wanted : file.contents.all) {
      const auto found = std::find_if(table.all.begin(), table.all.end(), [&](const auto& each) {
        return each.name == wanted.name;
      });
      if (found == table.all.end() || found->shape != wanted.shape ||
          !(found->type == wanted.type)) {
        return wanted.name + " has another shape or type";
      }
      const std::size_t bytes = wanted.end - wanted.begin;
      std::vector<std::byte> expected(bytes);
      std::vector<std::byte> got(bytes);
      if (::pread(file.file.get(),
                  expected.data(),
                  bytes,
                  static_cast<off_t>(file.data_begin + wanted.begin)) !=
          static_cast<ssize_t>(bytes)) {
        return "cannot read the file";
      }
      loaded.read(found->begin, got);
      if (got != expected) {
        return wanted.name + " has other bytes";
      }
      std::vector<std::uint64_t> pieces;
      for (std::size_t at = 0; at < bytes; at += weights::hashed_bytes) {
        const std::size_t count = std::min<std::size_t>(weights::hashed_bytes, bytes - at);
        pieces.push_back(weights::hash_of({expected.data() + at, count}));
      }
      if (found->hash != weights::tensor_hash(pieces)) {
        return wanted.name + " has another hash";
      }
      ++compared;
    }
  }
  return compared == table.all.size() ? "whole" : "it has more tensors";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    return 2;
  }
  try {
    client by = client::connect({.socket_path = argv[1], .timeout = std::chrono::seconds(20)});
    load_options options;
    options.device = argv[3];
    options.threads = 2;
    options.timeout = std::chrono::minutes(2);
    options.report = [](const load_progress& far) {
      std::cout << "report " << far.bytes << ' ' << far.total_bytes << ' '
                << (far.is_here ? "here" : "there") << std::endl;
    };
    const std::vector<std::string> paths{argv[4]};
    const segment loaded = load_tensors(by, argv[2], paths, options);
    std::cout << "ready " << loaded.generation() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << compare(loaded, argv[4]) << std::endl;
    }
    return 0;
  } catch (const error& why) {
    std::cout << "failed " << to_string(why.code()) << ' ' << why.what() << std::endl;
    return 1;
  }
}
