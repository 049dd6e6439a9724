// SPDX-License-Identifier: Apache-2.0
// The import cache with mappings created by the test, of GPUs that do not exist, and the events
// that make it drop them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "client/lease/lease_table.hpp"
#include "gpushm/broker.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/client/counted_region.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::client_detail {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::eventually;
using gpushm_tests::counted_region;

constexpr std::uint64_t mebibyte = 1ULL << 20U;

/// Segments of a broker, with made-up GPUs.
class import_cache_parts : public testing::Test {
 protected:
  import_cache_parts() {
    options_.socket_path = directory_ / "socket";
    // One test does not read while it makes thousands of requests.
    options_.limits.send_timeout_ms =
        static_cast<std::uint32_t>(gpushm_testing::wait_limit(60s).count());
    broker_.emplace(broker::start(options_));
    producer_.emplace(client::connect({.socket_path = options_.socket_path}));
    connection_ = connection::establish(options_.socket_path, 10s);
  }
  void TearDown() override {
    cache_->close();
    EXPECT_EQ(cache_->stats().kept_entries, 0U);
    EXPECT_EQ(cache_->stats().kept_bytes, 0U);
    EXPECT_EQ(cache_->stats().used_entries, 0U);
    EXPECT_EQ(cache_->stats().used_bytes, 0U);
    EXPECT_EQ(alive_, 0);
  }

  void limit(std::uint64_t bytes, std::uint64_t entries) {
    cache_ = std::make_shared<lease_table>(cache_bounds{bytes, entries});
  }
  /// Creates a used mapping of a new segment on `home` for `user`; "" is the host.
  std::shared_ptr<mapping> use(const std::string& name,
                               const std::string& home,
                               const std::string& user,
                               std::uint64_t bytes = mebibyte,
                               std::function<void()> on_end = {}) {
    segment created = producer_->create(
        name, {.size_bytes = 4096, .device = "host", .lifetime = lifetime::persistent});
    created.publish();
    const auto reply = connection_->request(
        wire::stat{name}, {"stat", name}, std::chrono::steady_clock::now() + 10s);
    wire::segment info = std::get<wire::listing>(reply.body).segments.at(0);
    if (!home.empty()) {
      info.device = {device_kind::gpu, home, "0000:18:00.0", 0};
    }
    info.allocated_bytes = bytes;
    grant nothing;  // already counted: the test owns the leases
    const auto lease = cache_->take(connection_, {std::move(info)}, nothing, "open");
    const auto mapped = std::make_shared<mapping>(
        lease,
        std::make_shared<counted_region>(alive_, std::move(on_end)),
        access::read,
        user.empty() ? device_id{} : device_id{device_kind::gpu, user, {}, 0});
    cache_->keep(mapped, user);
    return mapped;
  }
  void keep(const std::string& name,
            const std::string& home,
            const std::string& user,
            std::uint64_t bytes = mebibyte) {
    cache_->release(use(name, home, user, bytes));
  }
  /// True if it is cached for that user. Makes it the most recently used one.
  bool has(const std::string& name, const std::string& user) {
    auto cache = cache_->find(name, user, access::read);
    if (!cache) {
      return false;
    }
    EXPECT_EQ(cache->info().name, name);
    cache_->release(std::move(cache));
    return true;
  }

  gpushm_testing::temp_dir directory_;
  broker_options options_;
  std::optional<broker> broker_;
  std::optional<client> producer_;
  std::shared_ptr<connection> connection_;
  std::atomic<int> alive_{0};
  std::shared_ptr<lease_table> cache_;
};

// ---- the last mapping of a peer ----

TEST_F(import_cache_parts, peers_evicts_last_mapping_of_a_peer_last) {
  limit(~0ULL, 2);
  keep("peer", "GPU-0", "GPU-1");
  keep("host/1", "", "");
  keep("host/2", "", "");
  keep("host/3", "", "");
  EXPECT_EQ(cache_->stats().evictions, 2U);
  EXPECT_TRUE(has("peer", "GPU-1")) << "the oldest, but the last one of GPU-0";
  EXPECT_TRUE(has("host/3", ""));
  EXPECT_FALSE(has("host/1", ""));
  EXPECT_FALSE(has("host/2", ""));
  EXPECT_EQ(alive_, 2);
}

TEST_F(import_cache_parts, peers_evicts_oldest_of_several) {
  limit(~0ULL, 2);
  keep("peer/1", "GPU-0", "GPU-1");
  keep("peer/2", "GPU-0", "GPU-1");
  keep("host", "", "");
  EXPECT_FALSE(has("peer/1", "GPU-1"));
  EXPECT_TRUE(has("peer/2", "GPU-1"));
  EXPECT_TRUE(has("host", ""));
}

TEST_F(import_cache_parts, peers_counts_mappings_in_use) {
  limit(~0ULL, 1);
  const auto used = use("used", "GPU-0", "GPU-1");
  keep("peer", "GPU-0", "GPU-1");
  keep("host", "", "");
  EXPECT_FALSE(has("peer", "GPU-1")) << "the mapping in use keeps the GPU's peer access";
  EXPECT_TRUE(has("host", ""));
  cache_->release(used);
  EXPECT_FALSE(has("host", "")) << "now it is the last one";
  EXPECT_TRUE(has("used", "GPU-1"));
}

TEST_F(import_cache_parts, peers_does_not_count_own_memory) {
  limit(~0ULL, 2);
  const auto own = use("own", "GPU-0", "GPU-0");
  keep("peer", "GPU-0", "GPU-1");
  keep("own/1", "GPU-0", "GPU-0");
  keep("own/2", "GPU-0", "GPU-0");
  EXPECT_TRUE(has("peer", "GPU-1"));
  EXPECT_FALSE(has("own/1", "GPU-0"));
  EXPECT_TRUE(has("own/2", "GPU-0"));
  cache_->release(own);
}

TEST_F(import_cache_parts, peers_distinguishes_gpus_and_size_classes) {
  limit(~0ULL, 4);
  keep("small/0", "GPU-0", "GPU-2");
  keep("large/0", "GPU-0", "GPU-2", 512 * mebibyte);
  keep("small/1", "GPU-1", "GPU-2", 512 * mebibyte - 1);
  keep("large/1", "GPU-1", "GPU-2", 512 * mebibyte);
  keep("large/2", "GPU-1", "GPU-2", 1024 * mebibyte);
  EXPECT_FALSE(has("large/1", "GPU-2")) << "the only one with a newer one of its class";
  for (const char* name : {"small/0", "large/0", "small/1", "large/2"}) {
    EXPECT_TRUE(has(name, "GPU-2")) << name;
  }
  EXPECT_EQ(cache_->stats().evictions, 1U);
  EXPECT_EQ(cache_->stats().kept_bytes, (1 + 512 + 512 + 1024) * mebibyte - 1);
}

TEST_F(import_cache_parts, peers_limits_apply_to_last_mappings) {
  limit(~0ULL, 2);
  keep("peer/0", "GPU-0", "GPU-9");
  keep("peer/1", "GPU-1", "GPU-9");
  keep("peer/2", "GPU-2", "GPU-9");
  EXPECT_FALSE(has("peer/0", "GPU-9")) << "the oldest of them";
  EXPECT_TRUE(has("peer/1", "GPU-9"));
  EXPECT_TRUE(has("peer/2", "GPU-9"));
  EXPECT_EQ(cache_->stats().kept_entries, 2U);
}

TEST_F(import_cache_parts, peers_counts_again_after_eviction) {
  limit(~0ULL, 2);
  keep("peer", "GPU-0", "GPU-1");
  cache_->trim();
  EXPECT_EQ(alive_, 0);
  keep("peer/2", "GPU-0", "GPU-1");
  for (int i = 0; i < 3; ++i) {
    keep("host/" + std::to_string(i), "", "");
  }
  EXPECT_TRUE(has("peer/2", "GPU-1"));
}

// ---- keys ----

TEST_F(import_cache_parts, keys_are_distinct_and_may_share_a_mapping) {
  limit(~0ULL, 8);
  const auto mapped = use("w", "GPU-0", "GPU-1");
  cache_->keep(mapped, "1");
  cache_->release(mapped);
  EXPECT_TRUE(has("w", "GPU-1"));
  EXPECT_TRUE(has("w", "1"));
  EXPECT_FALSE(has("w", ""));
  EXPECT_FALSE(has("w1", ""));
  EXPECT_FALSE(has("", "w1"));
  EXPECT_EQ(cache_->find("w", "1", access::read_write), nullptr);
  EXPECT_EQ(cache_->stats().used_entries, 1U);
  cache_->release(mapped);
  EXPECT_TRUE(has("w", "1"));
}

TEST_F(import_cache_parts, keys_of_ended_mappings_find_nothing) {
  limit(~0ULL, 1);
  for (int i = 0; i < 200; ++i) {  // past the number at which keys are swept
    keep("w/" + std::to_string(i), "", "");
  }
  EXPECT_EQ(alive_, 1);
  for (int i = 0; i < 199; ++i) {
    EXPECT_FALSE(has("w/" + std::to_string(i), ""));
  }
  EXPECT_TRUE(has("w/199", ""));
}

TEST_F(import_cache_parts, keys_find_latest_mapping_after_former_ends) {
  limit(~0ULL, 8);
  const auto former = use("w", "GPU-0", "GPU-1");
  producer_->remove("w");
  EXPECT_FALSE(has("w", "GPU-1")) << "its segment was removed";
  const auto latest = use("w", "GPU-0", "GPU-1");
  cache_->release(former);
  EXPECT_TRUE(has("w", "GPU-1"));
  cache_->keep(former, "GPU-1");  // by a user that was still using it
  cache_->keep(latest, "GPU-1");
  cache_->release(former);
  EXPECT_TRUE(has("w", "GPU-1"));
  cache_->release(latest);
  cache_->release(latest);
  EXPECT_EQ(cache_->stats().kept_entries, 1U);
}

TEST_F(import_cache_parts, keys_may_exceed_name_length) {
  limit(~0ULL, 8);
  keep("w", "GPU-0", "GPU-1");
  const std::string device(5'000, 'd');
  const auto mapped = cache_->find("w", "GPU-1", access::read);
  ASSERT_NE(mapped, nullptr);
  EXPECT_EQ(mapped.use_count(), 0) << "a hit counts uses, not references";
  EXPECT_FALSE(has("w", device));
  cache_->release(mapped);
}

// ---- slow drivers ----

TEST_F(import_cache_parts, slow_driver_does_not_delay_hits) {
  limit(~0ULL, 8);
  const auto other = use("other", "", "");
  keep("kept", "", "");
  const struct {
    const char* what;
    std::function<void(const std::string&)> end;
  } cases[] = {
      {"trim", [&](const std::string& /*name*/) { cache_->trim(); }},
      {"find", [&](const std::string& name) { EXPECT_FALSE(has(name, "")); }},
      {"end_all_lost", [&](const std::string& /*name*/) { cache_->end_all_lost(); }},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.what);
    std::promise<void> ending;
    std::promise<void> may_end;
    auto may_end_future = may_end.get_future();
    const std::string name = std::string("slow/") + each.what;
    cache_->release(use(name, "", "", mebibyte, [&] {
      ending.set_value();
      EXPECT_EQ(may_end_future.wait_for(10s), std::future_status::ready);
    }));
    if (each.what != std::string("trim")) {
      producer_->remove(name);
    }
    auto ender = std::async(std::launch::async, [&] { each.end(name); });
    ASSERT_EQ(ending.get_future().wait_for(10s), std::future_status::ready);
    const int alive = alive_;
    EXPECT_TRUE(has("other", ""));
    EXPECT_EQ(cache_->stats().used_entries, 1U);
    EXPECT_EQ(alive_, alive) << "it is still being unmapped";
    may_end.set_value();
    ender.get();
    EXPECT_EQ(alive_, alive - 1);
  }
  cache_->release(other);
}

// ---- lost leases ----

TEST_F(import_cache_parts, lost_leases_drops_only_lost) {
  limit(~0ULL, 8);
  keep("a", "", "");
  keep("b", "", "");
  const auto used = use("c", "", "");
  const auto stat = [&](const char* name) { return producer_->stat(name).generation; };
  const auto a = stat("a");
  const auto b = stat("b");
  const auto end_all = [&](gpushm::generation failure) {
    while (cache_->end_lost(failure)) {
    }
  };
  end_all(a);
  EXPECT_EQ(alive_, 3) << "still cached: the event was older";
  producer_->remove("a");
  producer_->remove("b");
  producer_->remove("c");
  end_all(b);
  EXPECT_EQ(alive_, 2);
  EXPECT_EQ(cache_->stats().kept_entries, 1U);
  end_all(a);
  EXPECT_EQ(alive_, 1) << "the mapping in use";
  cache_->release(used);
  EXPECT_EQ(cache_->stats().kept_entries, 0U);
}

TEST_F(import_cache_parts, lost_events_check_every_lease) {
  limit(~0ULL, 8);
  for (const char* name : {"a", "b", "c"}) {
    keep(name, "", "");
  }
  producer_->remove("a");
  producer_->remove("c");
  cache_->end_all_lost();
  EXPECT_EQ(alive_, 1);
  EXPECT_TRUE(has("b", ""));
}

// ---- a slow reader ----

/// A connection that reads only on request.
class raw_reader {
 public:
  explicit raw_reader(const std::string& path)
      : socket_(transport::connect_packet_socket(path, 10s)), buffer_(wire::max_packet_bytes) {
    send({0, wire::hello{}});
    auto first = receive(socket_.get());
    EXPECT_EQ(first.second.size(), 2U);
    events_ = std::move(first.second.at(1));
  }
  void send(const wire::message& message) {
    EXPECT_EQ(transport::send_packet(socket_.get(), wire::encode(message), {}),
              transport::send_result::sent);
  }
  wire::message next() { return receive(socket_.get()).first; }
  wire::message next_event() { return receive(events_.get()).first; }
  [[nodiscard]] bool has_event() const { return transport::wait_readable(events_.get(), 0ms); }

 private:
  std::pair<wire::message, std::vector<base::unique_fd>> receive(int socket) {
    for (;;) {
      if (!transport::wait_readable(socket, gpushm_testing::wait_limit(10s))) {
        throw std::runtime_error("no packet arrives");
      }
      auto got = transport::receive_packet(socket, buffer_);
      if (got.status == transport::receive_status::would_block) {
        continue;
      }
      auto message =
          got.status == transport::receive_status::packet ? wire::decode(got.packet) : std::nullopt;
      if (!message) {
        throw std::runtime_error("not a message");
      }
      return {std::move(*message), std::move(got.descriptors)};
    }
  }

  base::unique_fd socket_;
  base::unique_fd events_;
  std::vector<std::byte> buffer_;
};

TEST_F(import_cache_parts, lost_events_become_one_resync_for_slow_reader) {
  limit(0, 0);
  constexpr int count = 2'500;
  raw_reader holder(options_.socket_path);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    names.push_back("w/" + std::to_string(i));
    segment created = producer_->create(
        names.back(), {.size_bytes = 4096, .device = "host", .lifetime = lifetime::persistent});
    created.publish();
    holder.send({static_cast<std::uint64_t>(i + 1), wire::open{names.back(), 0, 0}});
    ASSERT_TRUE(std::holds_alternative<wire::opened>(holder.next().body));
  }
  for (const std::string& name : names) {  // without reading the events
    producer_->remove(name);
  }
  int received = 0;
  for (;;) {
    const auto message = holder.next_event();
    ASSERT_EQ(message.id, 0U);
    const auto event = std::get<wire::event>(message.body);
    if (event.kind == event_kind::resync) {
      EXPECT_EQ(event.generation, 0U);
      EXPECT_EQ(event.name, "");
      break;
    }
    EXPECT_EQ(event.kind, event_kind::removed);
    EXPECT_EQ(event.name, names.at(static_cast<std::size_t>(received)));
    ++received;
  }
  EXPECT_GE(received, 1'024);
  EXPECT_LT(received, count) << "some events must be lost";
  holder.send({9'999, wire::list{}});
  const auto after = holder.next();
  EXPECT_EQ(after.id, 9'999U);
  EXPECT_FALSE(holder.has_event()) << "more than one resync";
}

}  // namespace
}  // namespace gpushm::client_detail
