// SPDX-License-Identifier: Apache-2.0
// A client that does what its parent writes, line by line, and answers each line with one.
//   holding_member SOCKET [DEVICE]
// Commands: "create NAME leased|persistent SEED" (contents and metadata from SEED; not published),
// "publish NAME", "share NAME KIND" (memory of its own, leased: memfd, malloc, pool), "open NAME",
// "state NAME", "holds NAME SEED" (the contents and the metadata), "close NAME", "end" (the client
// object; its segments stay), "files" (its number of descriptors). Answers: "ok [RESULT]", or
// "failed WHY".

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/share/agent_memory.hpp"
#include "tests/support/process/patient_client.hpp"
#include "tests/support/process/proc_counters.hpp"

namespace {

using namespace std::chrono_literals;

constexpr std::size_t segment_bytes = std::size_t{256} * 1024;

std::vector<std::byte> bytes_from(std::uint64_t seed, std::size_t count) {
  std::vector<std::byte> result(count);
  std::uint64_t state = seed * 2'654'435'761U + 1;
  for (std::byte& each : result) {
    state = state * 6'364'136'223'846'793'005U + 1'442'695'040'888'963'407U;
    each = static_cast<std::byte>(state >> 56U);
  }
  return result;
}

constexpr std::size_t metadata_bytes = 40;

class member {
 public:
  member(const std::string& socket, std::string device)
      : device_(std::move(device)), client_(gpushm_testing::patient_client(socket)) {}

  std::string perform(std::istringstream words) {
    std::string command;
    std::string name;
    words >> command >> name;
    if (command == "create") {
      std::string lifetime;
      std::uint64_t seed = 0;
      words >> lifetime >> seed;
      auto created =
          client_->create(name,
                          {.size_bytes = segment_bytes,
                           .device = device_,
                           .lifetime = lifetime == "persistent" ? gpushm::lifetime::persistent
                                                                : gpushm::lifetime::leased});
      created.write(0, bytes_from(seed, segment_bytes));
      seeds_[name] = seed;
      return add(name, std::move(created));
    }
    if (command == "publish") {
      segments_.at(name).publish(bytes_from(seeds_.at(name), metadata_bytes));
      return "ok";
    }
    if (command == "share") {
      std::string kind;
      words >> kind;
      if (kind != "memfd") {
        memory_.use_device(0);
        memory_.allocate(kind, segment_bytes, 0);
        return add(name,
                   client_->share(name,
                                  // NOLINTNEXTLINE(performance-no-int-to-ptr): of a GPU
                                  reinterpret_cast<void*>(memory_.address()),
                                  segment_bytes));
      }
      const gpushm::base::unique_fd file(sealed_memfd());
      void* const memory =  // never unmapped
          ::mmap(nullptr, segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
      return add(name, client_->share(name, memory, segment_bytes));
    }
    if (command == "open") {
      return add(name,
                 client_->open(name,
                               {.access = gpushm::access::read,
                                .timeout = gpushm_testing::scaled_timeout(10s)}));
    }
    if (command == "state") {
      return "ok " + std::string(to_string(segments_.at(name).state()));
    }
    if (command == "holds") {
      std::uint64_t seed = 0;
      words >> seed;
      std::vector<std::byte> found(segment_bytes);
      segments_.at(name).read(0, found);
      const auto metadata = segments_.at(name).metadata();
      const auto wanted = bytes_from(seed, metadata_bytes);
      const bool same = found == bytes_from(seed, segment_bytes) &&
                        std::equal(metadata.begin(), metadata.end(), wanted.begin(), wanted.end());
      return same ? "ok same" : "ok other";
    }
    if (command == "close") {
      segments_.erase(name);
      return "ok";
    }
    if (command == "end") {
      client_.reset();
      return "ok";
    }
    if (command == "files") {
      return "ok " +
             std::to_string(gpushm_testing::total(gpushm_testing::count_descriptors(::getpid())));
    }
    throw std::runtime_error("no such command");
  }

 private:
  std::string add(const std::string& name, gpushm::segment segment) {
    const auto generation = segment.generation();
    segments_.insert_or_assign(name, std::move(segment));
    return "ok " + std::to_string(generation);
  }

  static int sealed_memfd() {
    const int file = ::memfd_create("member", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (::ftruncate(file, segment_bytes) != 0 ||
        ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      throw std::runtime_error("no memfd");
    }
    return file;
  }

  std::string device_;
  std::optional<gpushm::client> client_;
  std::map<std::string, gpushm::segment> segments_;
  std::map<std::string, std::uint64_t> seeds_;
  gpushm_tests::agent_memory memory_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv, std::next(argv, argc));
    member self(arguments.at(1), arguments.size() > 2 ? arguments[2] : "host");
    std::cout << "ready" << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      std::string reply;
      try {
        reply = self.perform(std::istringstream(line));
      } catch (const std::exception& why) {
        reply = "failed " + std::string(why.what());
      }
      std::cout << reply << std::endl;
    }
    return 0;
  } catch (const std::exception& why) {
    std::cerr << why.what() << '\n';
    return 1;
  }
}
