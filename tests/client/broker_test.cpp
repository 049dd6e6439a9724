// SPDX-License-Identifier: Apache-2.0
// Client and broker in one process, host memory: the contracts of the public interface.
#include "gpushm/broker.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <stop_token>
#include <thread>

#include "base/files/page_size.hpp"
#include "gpushm/gpushm.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm {
namespace {

using namespace std::chrono_literals;
using gpushm_testing::eventually;

class sharing : public testing::Test {
 protected:
  sharing() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gpushm-test-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    options_.socket_path = folder_ + "/socket";
    broker_.emplace(broker::start(options_));
  }
  ~sharing() override {
    broker_.reset();
    std::filesystem::remove_all(folder_);
  }

  client connect() { return client::connect({.socket_path = options_.socket_path}); }
  static create_options host(std::uint64_t size, lifetime kept = lifetime::leased) {
    return {.size_bytes = size, .device = "host", .lifetime = kept};
  }

  template <typename Call>
  static errc code_of(Call&& call) {
    try {
      call();
    } catch (const error& why) {
      EXPECT_FALSE(why.cause().empty());
      EXPECT_FALSE(why.next_step().empty()) << why.what();
      return why.code();
    }
    ADD_FAILURE() << "no error";
    return errc::system_error;
  }

  std::string folder_;
  broker_options options_;
  std::optional<broker> broker_;
};

TEST_F(sharing, reader_sees_creators_writes) {
  client producer = connect();
  client consumer = connect();
  segment written = producer.create("w/llama", host(100'000));
  EXPECT_EQ(written.size_bytes(), 100'000U);
  written.fill(std::byte{7});
  EXPECT_FALSE(consumer.try_open("w/llama"));
  written.publish("hello");

  segment seen = consumer.open("w/llama");
  EXPECT_EQ(seen.size_bytes(), 100'000U);
  EXPECT_EQ(seen.generation(), written.generation());
  EXPECT_EQ(seen.metadata().size(), 5U);
  EXPECT_EQ(static_cast<const unsigned char*>(seen.data())[99'999], 7);
  EXPECT_NE(seen.data(), written.data());
  static_cast<unsigned char*>(written.mutable_data())[5] = 9;
  EXPECT_EQ(static_cast<const unsigned char*>(seen.data())[5], 9);
  EXPECT_EQ(seen.state(), segment_state::live);
}

TEST_F(sharing, leased_segment_ends_with_last_lease) {
  client producer = connect();
  client consumer = connect();
  segment written = producer.create("kv", host(4096));
  written.publish();
  segment seen = consumer.open("kv");
  written.reset();
  static_cast<void>(producer.list());  // the earlier release has been read
  EXPECT_EQ(consumer.stat("kv").leases, 1U);
  seen.reset();
  EXPECT_EQ(code_of([&] { static_cast<void>(consumer.open("kv")); }), errc::no_such_segment);
}

TEST_F(sharing, persistent_segment_stays_until_removed) {
  client producer = connect();
  client consumer = connect();
  segment written = producer.create("w", host(4096, lifetime::persistent));
  written.publish();
  written.reset();
  segment seen = consumer.open("w");
  consumer.remove("w");
  EXPECT_EQ(seen.state(), segment_state::removed);
  EXPECT_FALSE(consumer.try_open("w"));
  EXPECT_TRUE(producer.list().empty());
}

TEST_F(sharing, users_of_one_process_share_a_lease) {
  client producer = connect();
  client consumer = connect();
  segment written = producer.create("w", host(4096));
  written.publish();
  std::optional<segment> first = consumer.open("w");
  segment second = consumer.open("w");
  EXPECT_EQ(first->data(), second.data());
  EXPECT_EQ(producer.stat("w").leases, 2U);
  first.reset();
  static_cast<void>(consumer.list());  // earlier messages have been read
  EXPECT_EQ(producer.stat("w").leases, 2U);
  second.reset();
  static_cast<void>(consumer.list());
  EXPECT_EQ(producer.stat("w").leases, 1U);
}

TEST_F(sharing, open_waits_for_name) {
  client producer = connect();
  client consumer = connect();
  auto waiting = std::async(std::launch::async,
                            [&] { return consumer.open("late", {.timeout = 30s}).size_bytes(); });
  segment written = producer.create("late", host(8192));
  written.publish();
  EXPECT_EQ(waiting.get(), 8192U);
}

TEST_F(sharing, open_of_missing_name_suggests_ls) {
  client producer = connect();
  segment written = producer.create("w/llama2", host(4096));
  written.publish();
  try {
    static_cast<void>(producer.open("w/llama", {.timeout = 20ms}));
    FAIL();
  } catch (const error& why) {
    EXPECT_STREQ(why.what(),
                 "open \"w/llama\": no such segment in domain default; the name was not published "
                 "within the timeout (`gpushm ls` lists segments; if it is published later, give a "
                 "longer timeout)");
  }
}

TEST_F(sharing, many_chunks_map_contiguously) {
  client producer = connect();
  client consumer = connect();
  const std::uint64_t page = base::host_page_bytes();
  create_options options = host(700 * page + 1);
  options.chunk_bytes = page;
  segment written = producer.create("many", options);
  for (std::size_t i = 0; i < 701; ++i) {
    static_cast<unsigned char*>(written.mutable_data())[i * page] =
        static_cast<unsigned char>(i % 251);
  }
  written.publish();
  EXPECT_EQ(consumer.stat("many").chunks, 701U);
  segment seen = consumer.open("many");
  for (std::size_t i = 0; i < 701; ++i) {
    ASSERT_EQ(static_cast<const unsigned char*>(seen.data())[i * page], i % 251);
  }
}

TEST_F(sharing, mutable_data_requires_read_write) {
  client producer = connect();
  segment written = producer.create("kv", host(4096));
  EXPECT_EQ(written.mutable_data(), written.data());
  EXPECT_EQ(written.ordinal(), -1);
  written.publish();
  client consumer = connect();
  const segment seen = consumer.open("kv");
  EXPECT_NE(seen.data(), nullptr);
  try {
    static_cast<void>(seen.mutable_data());
    ADD_FAILURE() << "writable";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::invalid_argument);
    EXPECT_EQ(why.next_step(), "open it with access::read_write");
  }
  const segment_view view = seen.view();
  EXPECT_EQ(view.data(), seen.data());
  EXPECT_EQ(view.mutable_data(), nullptr);
  EXPECT_EQ(written.view().mutable_data(), written.data());
  EXPECT_EQ(segment_view().data(), nullptr);
}

// ---- stopped waits ----

errc code_of_stopped(const std::function<void(std::stop_token)>& wait) {
  std::stop_source source;
  std::jthread stops([&] {
    std::this_thread::sleep_for(50ms);
    source.request_stop();
  });
  const auto begin = std::chrono::steady_clock::now();
  errc code = errc::system_error;
  try {
    wait(source.get_token());
  } catch (const error& why) {
    code = why.code();
    EXPECT_FALSE(why.next_step().empty());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, gpushm_testing::scaled_timeout(5s));
  return code;
}

TEST_F(sharing, stop_ends_every_wait) {
  client user = connect();
  EXPECT_EQ(code_of_stopped([&](std::stop_token stop) {
              static_cast<void>(user.open("kv", {.timeout = forever, .stop = std::move(stop)}));
            }),
            errc::cancelled);
  EXPECT_EQ(code_of_stopped([&](std::stop_token stop) {
              static_cast<void>(user.try_open("kv", {.timeout = forever, .stop = std::move(stop)}));
            }),
            errc::cancelled);
  EXPECT_EQ(
      code_of_stopped([&](std::stop_token stop) {
        static_cast<void>(client::connect(
            {.socket_path = folder_ + "/absent", .timeout = forever, .stop = std::move(stop)}));
      }),
      errc::cancelled);
  auto events = user.subscribe();
  static_cast<void>(code_of_stopped([&](std::stop_token stop) {
    EXPECT_EQ(events.next(forever, stop), std::nullopt);
    EXPECT_TRUE(stop.stop_requested());
  }));
  // The broker drops the open, and the client stays usable.
  EXPECT_TRUE(eventually([&] { return broker_->statistics().waiting_opens == 0; }, 20s));
  segment created = user.create("kv", host(4096));
  created.publish();
  std::stop_source stopped;
  stopped.request_stop();
  EXPECT_EQ(user.open("kv", {.stop = stopped.get_token()}).size_bytes(), 4096U) << "it exists";
  EXPECT_TRUE(events.next(5s));
}

TEST_F(sharing, stopped_open_many_returns_found_names) {
  client producer = connect();
  segment created = producer.create("there", host(4096));
  created.publish();
  client user = connect();
  const std::vector<std::string> names{"there", "not/there", "nor/there"};
  static_cast<void>(code_of_stopped([&](std::stop_token stop) {
    const auto results = user.open_many(names, {.timeout = forever, .stop = std::move(stop)});
    ASSERT_EQ(results.size(), 3U);
    EXPECT_TRUE(results[0]);
    for (std::size_t i = 1; i < 3; ++i) {
      ASSERT_NE(results[i].failure(), nullptr);
      EXPECT_EQ(results[i].failure()->code(), errc::cancelled);
      EXPECT_EQ(results[i].failure()->object(), names[i]);
    }
  }));
  EXPECT_TRUE(eventually([&] { return broker_->statistics().waiting_opens == 0; }, 20s));
}

// In either order, an open gets a segment or is cancelled, and no lease is left.
TEST_F(sharing, stop_racing_reply_leaves_no_lease) {
  client producer = connect();
  client user = connect();
  int opened = 0;
  for (int round = 0; round < 300; ++round) {
    const std::string name = "kv/" + std::to_string(round);
    segment created = producer.create(name, host(4096));
    std::stop_source source;
    std::jthread publishes([&] { created.publish(); });
    std::jthread stops([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(round % 60));
      source.request_stop();
    });
    try {
      EXPECT_EQ(user.open(name, {.timeout = forever, .stop = source.get_token()}).name(), name);
      ++opened;
    } catch (const error& why) {
      EXPECT_EQ(why.code(), errc::cancelled) << why.what();
    }
    publishes.join();
    EXPECT_TRUE(eventually([&] { return producer.stat(name).leases == 1; }, 20s)) << name;
  }
  EXPECT_GT(opened, 0);
  EXPECT_EQ(broker_->statistics().waiting_opens, 0U);
}

// As a tensor's deleter, on any thread.
TEST_F(sharing, view_keeps_mapping_and_lease) {
  client producer = connect();
  segment written = producer.create("kv", host(4096));
  written.fill(std::byte{7});
  written.publish();
  segment_view view;
  {
    client consumer = connect();
    view = consumer.open("kv").view();
  }
  EXPECT_EQ(producer.stat("kv").leases, 2U);
  EXPECT_EQ(static_cast<const unsigned char*>(view.data())[4095], 7);
  EXPECT_EQ(view.size_bytes(), 4096U);
  EXPECT_EQ(view.ordinal(), -1);
  EXPECT_EQ(view.device().text(), "host");
  segment_view copy = view;
  view = {};
  written.write(0, std::array{std::byte{9}});
  EXPECT_EQ(static_cast<const unsigned char*>(copy.data())[0], 9);
  std::thread([last = std::move(copy)] {}).join();
  copy = {};
  EXPECT_TRUE(eventually([&] { return producer.stat("kv").leases == 1; }, 20s));
}

TEST_F(sharing, open_many_returns_result_per_name) {
  client producer = connect();
  std::vector<segment> created;
  std::vector<std::string> names;
  for (int i = 0; i < 300; ++i) {
    names.push_back("part/" + std::to_string(i));
    if (i % 3 != 0) {
      created.push_back(producer.create(names.back(), host(4096)));
      created.back().publish();
    }
  }
  client consumer = connect();
  const auto results = consumer.open_many(names);
  ASSERT_EQ(results.size(), names.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(bool(results[i]), i % 3 != 0);
    EXPECT_EQ(results[i].failure() != nullptr, i % 3 == 0);
    if (const error* const why = results[i].failure()) {
      try {
        static_cast<void>(results[i].value());
        ADD_FAILURE() << "no error";
      } catch (const error& thrown) {
        EXPECT_EQ(thrown.what(), std::string(why->what()));
      }
    } else {
      EXPECT_EQ(results[i].value().name(), names[i]);
    }
  }
}

TEST_F(sharing, creator_gets_opened_and_released_events) {
  client producer = connect();
  client consumer = connect();
  subscription events = producer.subscribe("w");
  segment written = producer.create("w", host(4096));
  written.publish();
  segment seen = consumer.open("w");
  seen.reset();
  for (const event_kind expected :
       {event_kind::published, event_kind::opened, event_kind::released}) {
    const auto got = events.next(10s);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->kind, expected);
    EXPECT_EQ(got->name, "w");
  }
}

TEST_F(sharing, mappings_and_client_survive_broker) {
  client producer = connect();
  segment written = producer.create("w", host(4096, lifetime::persistent));
  written.publish();
  written.fill(std::byte{3});
  broker_.reset();
  EXPECT_EQ(written.state(), segment_state::broker_gone);
  EXPECT_EQ(static_cast<const unsigned char*>(written.data())[4095], 3);
  EXPECT_EQ(code_of([&] { static_cast<void>(producer.list()); }), errc::broker_unreachable);
  broker_.emplace(broker::start(options_));
  EXPECT_TRUE(producer.list().empty());
  segment again = producer.create("w", host(4096));
  again.publish();
  EXPECT_NE(again.epoch(), written.epoch());
  EXPECT_EQ(again.state(), segment_state::live);
  EXPECT_EQ(written.state(), segment_state::broker_gone);
}

TEST_F(sharing, dropped_client_is_logged_with_reason) {
  std::mutex mutex;
  std::vector<std::string> lines;
  set_log_sink([&](log_level, std::string_view text) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(text);
  });
  const auto socket = transport::connect_packet_socket(options_.socket_path, 1s);
  const std::array<std::byte, 8> garbage{std::byte{1}};
  ASSERT_EQ(transport::send_packet(socket.get(), garbage, {}), transport::send_result::sent);
  const auto end = std::chrono::steady_clock::now() + 5s;
  std::string logged;
  while (logged.empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
    const std::lock_guard lock(mutex);
    const auto at = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
      return line.starts_with("dropped ");
    });
    logged = at == lines.end() ? "" : *at;
  }
  set_log_sink(nullptr);
  EXPECT_TRUE(logged.starts_with("dropped pid " + std::to_string(::getpid()) + ", uid " +
                                 std::to_string(::getuid())))
      << logged;
  EXPECT_TRUE(logged.ends_with(" in domain default: the packet is not a message of this protocol"))
      << logged;
}

/// Returns whether it becomes readable within that time.
bool is_readable(int descriptor, std::chrono::milliseconds within) {
  pollfd waits{descriptor, POLLIN, 0};
  return ::poll(&waits, 1, static_cast<int>(within.count())) == 1;
}

TEST_F(sharing, dispatch_never_blocks) {
  client user = connect();
  segment there = user.create("w/there", host(1));
  there.publish();
  std::vector<segment_info> present;
  subscription events = user.subscribe("w/", present);
  ASSERT_EQ(present.size(), 1U);
  EXPECT_EQ(present.front().name, "w/there");
  const int descriptor = events.descriptor();
  EXPECT_EQ(events.descriptor(), descriptor);
  EXPECT_FALSE(is_readable(descriptor, 0ms));

  client producer = connect();
  segment created = producer.create("w/new", host(1));
  created.publish();
  ASSERT_TRUE(is_readable(descriptor, 20s));
  std::vector<std::string> opened;
  const auto open_what_comes = [&](const event& event) {
    if (event.kind == event_kind::published) {
      opened.push_back(user.open(event.name).name());  // handlers may call the library
    }
  };
  EXPECT_GE(events.dispatch(open_what_comes), 1U);
  EXPECT_EQ(opened, std::vector<std::string>{"w/new"});
}

TEST_F(sharing, handler_exception_is_rethrown_and_other_events_stay) {
  client user = connect();
  subscription events = user.subscribe();
  const int descriptor = events.descriptor();
  for (const char* name : {"a", "b"}) {
    user.create(name, host(1)).publish();
  }
  std::vector<std::string> published;
  const auto refuse = [&](const event& event) {
    published.push_back(event.name);
    throw std::out_of_range(event.name);
  };
  ASSERT_TRUE(is_readable(descriptor, 20s));
  EXPECT_THROW(static_cast<void>(events.dispatch(refuse)), std::out_of_range);
  ASSERT_TRUE(is_readable(descriptor, 20s));
  EXPECT_THROW(static_cast<void>(events.dispatch(refuse)), std::out_of_range);
  EXPECT_EQ(published.size(), 2U);
}

TEST_F(sharing, broker_end_wakes_event_loop_once) {
  client user = connect();
  subscription events = user.subscribe();
  const int descriptor = events.descriptor();
  broker_.reset();
  ASSERT_TRUE(is_readable(descriptor, 20s));
  const auto ignore = [](const event&) {};
  EXPECT_EQ(code_of([&] {
              while (is_readable(descriptor, 20s)) {
                static_cast<void>(events.dispatch(ignore));
              }
            }),
            errc::broker_gone);
  EXPECT_FALSE(is_readable(descriptor, 0ms));
}

TEST_F(sharing, subscribe_lists_all_existing_segments) {
  client user = connect();
  std::vector<segment> created;
  std::vector<std::string> names;
  for (int at = 0; at < 1'500; ++at) {  // more than fit into one reply
    names.push_back("w/" + std::to_string(10'000 + at));
    created.push_back(user.create(names.back(), host(1)));
    created.back().publish();
  }
  std::vector<segment_info> present;
  const subscription events = user.subscribe("w/", present);
  std::vector<std::string> listed;
  for (const segment_info& each : present) {
    listed.push_back(each.name);
  }
  EXPECT_EQ(listed, names);
}

TEST_F(sharing, invalid_input_is_refused_without_effect) {
  client user = connect();
  EXPECT_EQ(code_of([&] { static_cast<void>(user.create("", host(1))); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] { static_cast<void>(user.create(std::string(256, 'x'), host(1))); }),
            errc::invalid_argument);
  EXPECT_EQ(code_of([&] { static_cast<void>(user.create("\xff", host(1))); }),
            errc::invalid_argument);
  EXPECT_EQ(code_of([&] { static_cast<void>(user.create("w", host(0))); }), errc::invalid_argument);
  EXPECT_EQ(code_of([&] { static_cast<void>(user.create("w", host(1ULL << 60U))); }),
            errc::invalid_argument);
  EXPECT_EQ(code_of([&] { static_cast<void>(user.create("w", host(1ULL << 47U))); }),
            errc::out_of_memory);
  segment written = user.create("w", host(4096));
  EXPECT_EQ(code_of([&] { static_cast<void>(user.create("w", host(1))); }), errc::already_exists);
  written.publish();
  EXPECT_EQ(code_of([&] { written.publish(); }), errc::already_published);
  EXPECT_EQ(code_of([&] { static_cast<void>(user.open("w", {.expected_size_bytes = 5})); }),
            errc::size_mismatch);
  EXPECT_EQ(code_of([&] { user.remove("other"); }), errc::no_such_segment);
  EXPECT_EQ(user.list().size(), 1U);
  EXPECT_EQ(user.stat("w").leases, 1U);
}

}  // namespace
}  // namespace gpushm
