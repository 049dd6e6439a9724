// SPDX-License-Identifier: Apache-2.0
// The broker of a domain, as a process that a successor continues (docs/adr/0031).
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "apps/support/log_line.hpp"
#include "base/syscall.hpp"
#include "base/text.hpp"
#include "broker/server.hpp"
#include "gpushm/broker.hpp"
#include "keeper/descriptor_store.hpp"
#include "keeper/inherited_descriptors.hpp"

namespace {

using gpushm::broker_detail::descriptor_shelf;
using gpushm::broker_detail::inheritance;

/// Of the domain, in the keeper.
constexpr std::string_view short_name = "d";
constexpr std::chrono::milliseconds keeper_timeout{5'000};

void print_line(std::string_view text) {
  gpushm::app::write_log_line("gpushm-brokerd", gpushm::base::printable(std::string(text)));
}

/// What a predecessor left. Whatever cannot be continued is removed from the keeper: first of all
/// the lock of the socket.
std::optional<inheritance> take_inheritance(gpushm::keeper::descriptor_store& store) {
  auto inherited = gpushm::keeper::take_inherited_descriptors();
  std::vector<std::string> names(inherited.size());
  std::transform(inherited.begin(), inherited.end(), names.begin(), [](const auto& each) {
    return each.name;
  });
  auto all = gpushm::broker_detail::read_inheritances(std::move(inherited));
  std::optional<inheritance> result;
  if (const auto found = all.find(std::string(short_name)); found != all.end()) {
    result = std::move(found->second);
  }
  for (const std::string& name : names) {
    const auto label = descriptor_shelf::parse(name);
    const bool is_used = result && label && label->domain == short_name &&
                         (!label->is_journal || label->number == result->log.sequence());
    if (!is_used) {
      store.remove(name, keeper_timeout);
    }
  }
  store.barrier(keeper_timeout);
  if (!names.empty() && !result) {
    print_line("nothing of the last broker can be continued: its clients connect again");
  }
  return result;
}

int run(int argc, char** argv) {
  CLI::App app(
      "The broker of a domain, as a process that can be killed and replaced without loss.\n"
      "Start it by gpushm-keeper, or by systemd with a descriptor store.",
      "gpushm-brokerd");
  gpushm::broker_options options;
  app.add_option("--socket", options.socket_path, "path of the socket")->required();
  app.add_option("--domain", options.domain, "name of the domain")->capture_default_str();
  std::string mode = "0600";
  app.add_option("--mode", mode, "permissions of the socket, octal")->capture_default_str();
  app.add_option("--max-segments", options.limits.max_segments, "upper bound of segments")
      ->capture_default_str();
  app.add_flag("--accept-fake-chunks", options.accept_fake_chunks, "for tests")->group("");
  app.set_version_flag("--version", "gpushm-brokerd " GPUSHM_VERSION);
  try {
    app.parse(argc, argv);
    options.mode = static_cast<mode_t>(std::stoul(mode, nullptr, 8));
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? 0 : 2;
  } catch (const std::exception&) {
    print_line("--mode " + mode + ": not an octal number");
    return 2;
  }
  gpushm::set_log_sink(
      [](gpushm::log_level /*level*/, std::string_view text) { print_line(text); });
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  // Until it is ready, nothing depends on this broker: if its keeper dies, the keeper before starts
  // another one.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t stop;
  sigemptyset(&stop);
  for (const int each : {SIGTERM, SIGINT, SIGHUP}) {
    sigaddset(&stop, each);
  }
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);  // also in the broker's threads

  auto store = gpushm::keeper::descriptor_store::from_environment();
  if (!store) {
    print_line(
        "NOTIFY_SOCKET is not set: there is no keeper (start it by gpushm-keeper or systemd)");
    return 1;
  }
  std::optional<inheritance> left = take_inheritance(*store);
  options.raise_descriptor_limit = true;
  gpushm::broker_detail::server server(
      options,
      nullptr,
      gpushm::broker_detail::succession{std::string(short_name), std::move(left)});
  std::promise<void> started;
  std::thread thread([&] {
    std::function<void()> report = [&] {
      store->ready(keeper_timeout);
      started.set_value();
    };
    server.run([](void* function) { (*static_cast<std::function<void()>*>(function))(); }, &report);
  });
  started.get_future().wait();
  ::prctl(PR_SET_PDEATHSIG, 0);  // of this thread
  int number = 0;
  ::sigwait(&stop, &number);
  server.stop();
  thread.join();
  // Like SIGKILL: everything is for the successor, and no destructor may take it away.
  ::_exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {
    print_line(failure.what());
    return 1;
  }
}
