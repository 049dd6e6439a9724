// SPDX-License-Identifier: Apache-2.0
// A process that shares and opens memory by commands on standard input, one per line, and replies
// each with one line: "ok ..." or "error CODE TEXT".
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/text/hex.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/wire/crc32.hpp"
#include "protocol/wire/ticket.hpp"
#include "tests/share/agent_memory.hpp"
#include "tests/support/process/hex.hpp"
#include "tests/support/process/orders.hpp"
#include "tests/support/process/quiet_fork.hpp"

namespace {

using namespace gpushm;
using gpushm_testing::order_words;

class agent {
 public:
  agent() {
    add_memory_orders();
    add_share_orders();
    add_open_orders();
    add_segment_orders();
  }

  void run() { orders_.run(); }

 private:
  void add_memory_orders() {
    orders_.add("pid", [] { return std::to_string(::getpid()); });
    orders_.add("connect", [this](order_words& words) {
      client_.emplace(client::connect({.socket_path = words.text(), .timeout = wait}));
    });
    orders_.add("device", [this](order_words& words) {
      memory_.use_device(static_cast<int>(words.number()));
    });
    orders_.add("reset", [this] { memory_.reset_device(); });
    orders_.add("alloc", [this](order_words& words) {
      const std::string kind = words.text();
      const std::uint64_t bytes = words.number();
      memory_.allocate(kind, bytes, words.number());
      return std::to_string(memory_.address());
    });
    orders_.add("fill", [this](order_words& words) {
      const std::uint64_t offset = words.number();
      const std::uint64_t bytes = words.number();
      memory_.fill(offset, bytes, static_cast<std::uint8_t>(words.number()));
    });
    orders_.add("free", [this] { memory_.free(); });
  }

  void add_share_orders() {
    orders_.add("share", [this](order_words& words) {
      const std::string name = words.text();
      const std::uint64_t offset = words.number();
      const std::uint64_t bytes = words.number();
      share_options options;
      options.lifetime = words.text() == "persistent" ? lifetime::persistent : lifetime::leased;
      segment result = client_->share(name, at(offset), bytes, options);
      const auto address = reinterpret_cast<std::uintptr_t>(result.data());
      shared_.insert_or_assign(name, std::move(result));
      return std::to_string(address);
    });
    orders_.add("unshare", [this](order_words& words) { shared_.at(words.text()).unshare(); });
    orders_.add("drop", [this](order_words& words) { shared_.erase(words.text()); });
    orders_.add("export", [this](order_words& words) {
      const std::uint64_t offset = words.number();
      return base::hex_text(export_memory(at(offset), words.number()));
    });
    orders_.add("export-segment", [this](order_words& words) {
      return base::hex_text(export_segment(shared_.at(words.text())));
    });
  }

  void add_open_orders() {
    orders_.add("open", [this](order_words& words) {
      const std::string name = words.text();
      return keep(client_->open(name, {.access = access::read_write, .device = words.text()}));
    });
    orders_.add("open-waiting", [this](order_words& words) {
      return keep(client_->open(words.text(), {.access = access::read_write, .timeout = wait}));
    });
    orders_.add("open-read", [this](order_words& words) {
      const std::string name = words.text();
      return keep(client_->open(name, {.device = words.text()}));
    });
    orders_.add("import", [this](order_words& words) {
      const auto bytes = gpushm_testing::bytes_of_hex(words.text());
      return keep(import_memory(bytes, {.access = access::read_write, .device = words.text()}));
    });
    // as if created on another machine
    orders_.add("import-elsewhere", [this](order_words& words) {
      auto described = wire::decode_ticket(gpushm_testing::bytes_of_hex(words.text()));
      described.exporter.boot_id = "00000000-0000-4000-8000-000000000000";
      return keep(import_memory(wire::encode_ticket(described)));
    });
    orders_.add("import-random", [](order_words& words) {
      const std::uint64_t count = words.number();
      return import_random(count, gpushm_testing::bytes_of_hex(words.text()));
    });
  }

  void add_segment_orders() {
    // makes an earlier opened segment the current one
    orders_.add("use", [this](order_words& words) { current_ = words.number(); });
    orders_.add("check", [this](order_words& words) {
      const std::uint64_t offset = words.number();
      std::vector<std::byte> bytes(words.number());
      const auto expected = static_cast<std::byte>(words.number());
      current().read(offset, bytes);
      return std::to_string(std::count_if(
          bytes.begin(), bytes.end(), [&](std::byte each) { return each != expected; }));
    });
    orders_.add("put", [this](order_words& words) {
      const std::uint64_t offset = words.number();
      const std::uint64_t bytes = words.number();
      current().write(offset,
                      std::vector<std::byte>(bytes, static_cast<std::byte>(words.number())));
    });
    orders_.add("state", [this] { return std::string(to_string(current().state())); });
    orders_.add("shared-state", [this](order_words& words) {
      return std::string(to_string(shared_.at(words.text()).state()));
    });
    orders_.add("close", [this] { opened_.erase(current_); });
    orders_.add("stats", [this] {
      const auto stats = client_->cache_stats();
      return std::to_string(stats.hits) + " " + std::to_string(stats.misses) + " " +
             std::to_string(stats.evictions) + " " + std::to_string(stats.kept_entries);
    });
    orders_.add("fork-import", [this](order_words& words) {
      return in_child(
          [&, bytes = gpushm_testing::bytes_of_hex(words.text())] { keep(import_memory(bytes)); });
    });
    orders_.add("fork-share", [this](order_words& words) {
      const std::string name = words.text();
      const std::uint64_t bytes = words.number();
      return in_child([&] { shared_.insert_or_assign(name, client_->share(name, at(0), bytes)); });
    });
  }

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

  gpushm_testing::order_table orders_;
  std::optional<client> client_;
  gpushm_tests::agent_memory memory_;
  std::map<std::string, segment> shared_;
  std::map<std::uint64_t, segment> opened_;
  std::uint64_t next_ = 0;
  std::uint64_t current_ = 0;
};

}  // namespace

int main() {
  agent().run();
}
