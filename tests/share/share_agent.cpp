// SPDX-License-Identifier: Apache-2.0
// A process that shares and opens memory by commands on standard input, one per line, and replies
// each with one line: "ok ..." or "error CODE TEXT".
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/wire/crc32.hpp"
#include "protocol/wire/ticket.hpp"
#include "tests/share/agent_memory.hpp"
#include "tests/support/process/hex.hpp"
#include "tests/support/process/quiet_fork.hpp"

namespace {

using namespace gpushm;

std::string to_hex(std::span<const std::byte> bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte each : bytes) {
    text += digits[std::to_integer<unsigned>(each) >> 4U];
    text += digits[std::to_integer<unsigned>(each) & 15U];
  }
  return text;
}

class agent {
 public:
  /// Returns the reply, without its "ok ".
  std::string execute(const std::string& order, std::istringstream& words) {
    const auto number = [&] {
      std::uint64_t value = 0;
      words >> value;
      return value;
    };
    const auto word = [&] {
      std::string text;
      words >> text;
      return text;
    };
    if (order == "pid") {
      return std::to_string(::getpid());
    }
    if (order == "connect") {
      client_.emplace(client::connect({.socket_path = word(), .timeout = wait}));
      return {};
    }
    if (order == "device") {
      memory_.use_device(static_cast<int>(number()));
      return {};
    }
    if (order == "reset") {
      memory_.reset_device();
      return {};
    }
    if (order == "alloc") {
      const std::string kind = word();
      const std::uint64_t bytes = number();
      memory_.allocate(kind, bytes, number());
      return std::to_string(memory_.address());
    }
    if (order == "fill") {
      const std::uint64_t offset = number();
      const std::uint64_t bytes = number();
      memory_.fill(offset, bytes, static_cast<std::uint8_t>(number()));
      return {};
    }
    if (order == "free") {
      memory_.free();
      return {};
    }
    if (order == "share") {
      const std::string name = word();
      const std::uint64_t offset = number();
      const std::uint64_t bytes = number();
      share_options options;
      options.lifetime = word() == "persistent" ? lifetime::persistent : lifetime::leased;
      segment result = client_->share(name, at(offset), bytes, options);
      const auto address = reinterpret_cast<std::uintptr_t>(result.data());
      shared_.insert_or_assign(name, std::move(result));
      return std::to_string(address);
    }
    if (order == "unshare") {
      shared_.at(word()).unshare();
      return {};
    }
    if (order == "drop") {
      shared_.erase(word());
      return {};
    }
    if (order == "export") {
      const std::uint64_t offset = number();
      return to_hex(export_memory(at(offset), number()));
    }
    if (order == "export-segment") {
      return to_hex(export_segment(shared_.at(word())));
    }
    if (order == "open") {
      const std::string name = word();
      return keep(client_->open(name, {.access = access::read_write, .device = word()}));
    }
    if (order == "open-waiting") {
      return keep(client_->open(word(), {.access = access::read_write, .timeout = wait}));
    }
    if (order == "open-read") {
      const std::string name = word();
      return keep(client_->open(name, {.device = word()}));
    }
    if (order == "import") {
      const auto bytes = gpushm_testing::bytes_of_hex(word());
      return keep(import_memory(bytes, {.access = access::read_write, .device = word()}));
    }
    if (order == "import-elsewhere") {  // as if created on another machine
      auto described = wire::decode_ticket(gpushm_testing::bytes_of_hex(word()));
      described.exporter.boot_id = "00000000-0000-4000-8000-000000000000";
      return keep(import_memory(wire::encode_ticket(described)));
    }
    if (order == "import-random") {
      const std::uint64_t count = number();
      return import_random(count, gpushm_testing::bytes_of_hex(word()));
    }
    if (order == "use") {  // makes an earlier opened segment the current one
      current_ = number();
      return {};
    }
    if (order == "check") {
      const std::uint64_t offset = number();
      std::vector<std::byte> bytes(number());
      const auto expected = static_cast<std::byte>(number());
      current().read(offset, bytes);
      return std::to_string(std::count_if(
          bytes.begin(), bytes.end(), [&](std::byte each) { return each != expected; }));
    }
    if (order == "put") {
      const std::uint64_t offset = number();
      const std::uint64_t bytes = number();
      current().write(offset, std::vector<std::byte>(bytes, static_cast<std::byte>(number())));
      return {};
    }
    if (order == "state") {
      return std::string(to_string(current().state()));
    }
    if (order == "shared-state") {
      return std::string(to_string(shared_.at(word()).state()));
    }
    if (order == "close") {
      opened_.erase(current_);
      return {};
    }
    if (order == "stats") {
      const auto stats = client_->cache_stats();
      return std::to_string(stats.hits) + " " + std::to_string(stats.misses) + " " +
             std::to_string(stats.evictions) + " " + std::to_string(stats.kept_entries);
    }
    if (order == "fork-import") {
      return in_child(
          [&, bytes = gpushm_testing::bytes_of_hex(word())] { keep(import_memory(bytes)); });
    }
    if (order == "fork-share") {
      const std::string name = word();
      const std::uint64_t bytes = number();
      return in_child([&] { shared_.insert_or_assign(name, client_->share(name, at(0), bytes)); });
    }
    throw std::runtime_error("unknown command: " + order);
  }

 private:
  static constexpr std::chrono::milliseconds wait{30'000};

  void* at(std::uint64_t offset) const {
    return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): CUDA's API
        memory_.address() + offset);
  }
  segment& current() { return opened_.at(current_); }
  std::string keep(segment opened) {
    current_ = next_++;
    const auto address = reinterpret_cast<std::uintptr_t>(opened.data());
    std::string text = std::to_string(address) + " " + std::to_string(opened.size_bytes()) + " " +
                       std::string(to_string(opened.backend()));
    opened_.emplace(current_, std::move(opened));
    return text;
  }

  /// Half of them random bytes, half with a valid checksum around a random handle.
  static std::string import_random(std::uint64_t count, const std::vector<std::byte>& valid) {
    std::mt19937_64 random(4711);
    std::map<std::string, std::uint64_t> codes;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::vector<std::byte> bytes;
      if (i % 2 == 0) {
        bytes.resize(random() % 512);
        std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
        std::copy_n(
            valid.begin(), std::min<std::size_t>(bytes.size(), random() % 24), bytes.begin());
      } else {
        auto described = wire::decode_ticket(valid);
        for (std::byte& each : described.legacy->bytes) {
          each = static_cast<std::byte>(random());
        }
        described.legacy->pid_offset.reset();
        described.buffer_id = random();
        bytes = wire::encode_ticket(described);
      }
      try {
        static_cast<void>(import_memory(bytes));
        ++codes["accepted"];
      } catch (const error& why) {
        ++codes[std::string(to_string(why.code()))];
      }
    }
    std::string text;
    for (const auto& [code, times] : codes) {
      text += (text.empty() ? "" : " ") + code + "=" + std::to_string(times);
    }
    return text;
  }

  /// Returns the error that `work` throws in a forked child; "nothing" if it does not throw.
  template <typename Work>
  static std::string in_child(Work&& work) {
    int ends[2];
    if (::pipe(ends) != 0) {
      throw std::runtime_error("pipe");
    }
    const pid_t child = gpushm_testing::quiet_fork();
    if (child == 0) {
      std::string text = "nothing";
      try {
        work();
      } catch (const error& why) {
        text = std::string(to_string(why.code())) + " " + why.what();
      } catch (const std::exception& why) {
        text = why.what();
      }
      static_cast<void>(!::write(ends[1], text.data(), text.size()));
      ::_exit(0);
    }
    ::close(ends[1]);
    std::string text(4096, '\0');
    const auto count = ::read(ends[0], text.data(), text.size());
    ::close(ends[0]);
    ::waitpid(child, nullptr, 0);
    text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return text;
  }

  std::optional<client> client_;
  gpushm_tests::agent_memory memory_;
  std::map<std::string, segment> shared_;
  std::map<std::uint64_t, segment> opened_;
  std::uint64_t next_ = 0;
  std::uint64_t current_ = 0;
};

}  // namespace

int main() {
  agent self;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string order;
    words >> order;
    try {
      const std::string text = self.execute(order, words);
      std::cout << "ok " << text << std::endl;
    } catch (const error& why) {
      std::cout << "error " << to_string(why.code()) << " " << why.what() << std::endl;
    } catch (const std::exception& why) {
      std::cout << "error - " << why.what() << std::endl;
    }
  }
  return 0;
}
