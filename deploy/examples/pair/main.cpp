// SPDX-License-Identifier: Apache-2.0
// gpushm-pair: the program of the pods in deploy/examples. A producer and a consumer that share one
// segment, check every byte of each other's pattern, and exit. Either may start first.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>

#include "apps/gpushm/demo/pattern.hpp"
#include "apps/support/duration.hpp"
#include "apps/support/end_signal.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/text/size_text.hpp"
#include "gpushm/client.hpp"

namespace gpushm::pair {
namespace {

using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;

constexpr std::uint64_t producer_seed = 7;
constexpr std::uint64_t consumer_seed = 9;
// Poll interval for signals.
constexpr milliseconds tick{200};

struct arguments {
  std::string name = "demo/pair";
  std::string device = "auto";
  std::uint64_t size_bytes = 64UL << 20U;
  milliseconds timeout{300'000};
};

// A pod's log is not a terminal: without the flush, output would only appear at exit.
void print(const std::string& role, const std::string& text) {
  std::printf("%s: %s\n", role.c_str(), text.c_str());
  std::fflush(stdout);
}

std::string described(const segment& mapped) {
  std::string text = base::size_text(mapped.size_bytes());
  text.append(" on ").append(mapped.device().text());
  text.append(", backend ").append(to_string(mapped.backend()));
  return text;
}

bool verify(const std::string& role,
            const std::string& name,
            const segment& mapped,
            unsigned seed) {
  const cli::check_result result = cli::check_segment(mapped, seed);
  if (result.wrong_bytes == 0) {
    print(
        role,
        name + " verification PASSED (" + std::to_string(result.checked_bytes) + " bytes checked)");
    return true;
  }
  print(role,
        name + " verification FAILED: " + std::to_string(result.wrong_bytes) +
            " bytes are wrong, the first at offset " + std::to_string(result.first_wrong_offset));
  return false;
}

client connect(const std::string& role, const arguments& given) {
  connect_options options;
  options.timeout = given.timeout;
  client broker = client::connect(options);
  print(role, "connected to the domain \"" + broker.broker().domain + "\"");
  return broker;
}

/// Blocks until the last consumer has released the segment; returns false after a signal. Throws
/// `error` with `errc::timed_out` at the timeout.
bool released(subscription& events, const segment& held, const arguments& given) {
  const app::stop_signal stop;
  const auto end = clock::now() + given.timeout;
  while (!stop.pending()) {
    if (clock::now() >= end) {
      throw error(errc::timed_out,
                  "wait for release of",
                  given.name,
                  "no consumer opened and released it in time",
                  "check that the consumer runs on this node and in this domain");
    }
    const auto seen = events.next(tick);
    if (seen && seen->kind == event_kind::released && seen->generation == held.generation()) {
      return true;
    }
  }
  return false;
}

int produce(const arguments& given) {
  const std::string role = "Producer";
  client broker = connect(role, given);
  create_options options;
  options.size_bytes = given.size_bytes;
  options.device = given.device;
  segment created = broker.create(given.name, options);
  cli::fill_segment(created, producer_seed);
  // Subscribes before other clients can see the segment, so that no release is missed.
  subscription events = broker.subscribe(given.name);
  created.publish("gpushm-pair");
  print(role, "published \"" + given.name + "\": " + described(created));
  if (!released(events, created, given)) {
    print(role, "stopped before a consumer released the segment");
    return 1;
  }
  return verify(role, "Answer", created, consumer_seed) ? 0 : 1;
}

int consume(const arguments& given) {
  const std::string role = "Consumer";
  client broker = connect(role, given);
  print(role, "waiting for \"" + given.name + "\"");
  open_options options;
  options.access = access::read_write;
  options.timeout = given.timeout;
  segment opened = broker.open(given.name, options);
  print(role, "opened \"" + given.name + "\": " + described(opened));
  if (!verify(role, "Data", opened, producer_seed)) {
    return 1;
  }
  cli::fill_segment(opened, consumer_seed);
  print(role, "wrote its answer");
  return 0;
}

int run(int argc, char** argv) {
  arguments given;
  CLI::App app("A producer and a consumer of one segment, for examples and for testing a cluster");
  app.set_version_flag("--version", "gpushm-pair " GPUSHM_VERSION);
  app.require_subcommand(1);
  std::string timeout = "5m";
  std::string size = "64MiB";
  CLI::App* producer = app.add_subcommand("producer", "Create, fill, publish; check the answer");
  CLI::App* consumer = app.add_subcommand("consumer", "Open, check every byte, write an answer");
  for (CLI::App* role : {producer, consumer}) {
    role->add_option("--name", given.name, "Name of the segment (default: demo/pair)");
    role->add_option("--timeout", timeout, "Maximum wait for the other side (default: 5m)")
        ->check([](const std::string& text) {
          return app::parse_duration(text) ? std::string() : "not a duration: " + text;
        });
  }
  producer->add_option("--size", size, "Size of the segment (default: 64MiB)")
      ->check([](const std::string& text) {
        return base::parse_size(text) ? std::string() : "not a size: " + text;
      });
  producer->add_option("--device", given.device, "auto (default), host, an ordinal or a UUID");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& parse_error) {
    return app.exit(parse_error) == 0 ? 0 : 2;
  }
  given.timeout = app::parse_duration(timeout).value_or(given.timeout);
  given.size_bytes = base::parse_size(size).value_or(given.size_bytes);
  return producer->parsed() ? produce(given) : consume(given);
}

}  // namespace
}  // namespace gpushm::pair

int main(int argc, char** argv) {
  // Also exits on signals as the first process of a container. Its memory is freed when it exits.
  gpushm::app::end_on_signals();
  try {
    return gpushm::pair::run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "gpushm-pair: %s\n", failure.what());
    return 1;
  }
}
