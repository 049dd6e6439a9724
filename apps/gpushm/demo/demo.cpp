// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <random>
#include <set>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/demo/channel_demo.hpp"
#include "apps/gpushm/demo/demo_arguments.hpp"
#include "apps/gpushm/demo/demo_size.hpp"
#include "apps/gpushm/demo/isolation.hpp"
#include "apps/gpushm/demo/role_process.hpp"
#include "apps/gpushm/demo/step_log.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/stop_signal.hpp"
#include "apps/support/temp_directory.hpp"
#include "base/files/syscall.hpp"
#include "base/text/size_text.hpp"

namespace gpushm::cli {

namespace {

void add_demo_arguments(CLI::App& app, demo_arguments& arguments) {
  add_device(app, "--device", "auto (default), host, an ordinal or a UUID", arguments.device);
  add_device(app,
             "--consumer-device",
             "GPU that the consumers use (default: the same GPU)",
             arguments.consumer_device);
  add_size(app,
           "--size",
           "Size of the segment (default: 1GiB, less if little is free)",
           [&](std::uint64_t value) { arguments.size_bytes = value; });
  add_duration(app,
               "--timeout",
               "Time limit of the whole demo (default: depends on the size)",
               [&](auto value) { arguments.timeout = value; });
  app.add_flag("--isolated",
               arguments.isolated,
               "Run each process in separate namespaces with an unprivileged uid");
  app.add_flag(
      "--channel", arguments.channel, "Show a channel; --size is that of a slot (default: 1MiB)");
  add_choice(app, "--corrupt", "Damage one byte (tests only)", arguments.corrupt, corrupt_stages())
      ->group("");
  add_json(app, arguments.json);
}

using clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint64_t gibibyte = 1ULL << 30U;
constexpr const char* segment_name = "demo/segment";
// Outside the usual ranges of uids for users and services.
constexpr uid_t broker_uid = 64'101;
constexpr uid_t producer_uid = 64'102;
constexpr uid_t consumer_uid = 64'103;

/// Data that differs from the expected pattern.
class wrong_data : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class demo {
 public:
  demo(const demo_arguments& arguments, json& document)
      : arguments_(arguments),
        document_(document),
        log_(arguments.json, document.at("steps")),
        directory_("gpushm-demo") {}

  void run() {
    prepare();
    role_process consumer = start_first_consumer();
    role_process broker = start("broker", broker_uid, {});
    // Not used after this function returns.
    // cppcheck-suppress danglingLifetime
    broker_ = &broker;
    await(broker, "ready");
    log_.step("broker_ready", fmt::format("broker {} serves {}", pid_text(broker), socket()));
    await(consumer, "connected");
    role_process producer = start_producer();
    verify_first(consumer);
    producer.send("check");
    check(
        await(producer, "checked"), "answer_checked", "producer checked every byte of the answer");
    await(producer, "idle");
    consumer.finish(until_);
    producer.kill_and_wait(until_);
    log_.step("producer_killed", "producer killed with SIGKILL; no process has the segment open");
    verify_survival();
    broker.finish(until_);
  }

 private:
  void prepare() {
    place_ = find_place(arguments_.device);
    choose_size();
    const auto by_size = std::chrono::seconds(60 + 30 * (size_bytes_ / gibibyte));
    timeout_ = arguments_.timeout.count() != 0 ? arguments_.timeout : milliseconds(by_size);
    until_ = base::deadline_in(timeout_);
    std::random_device random;
    seed_ = (std::uint64_t{random()} << 32U | random()) | 1U;
    const bool host = place_.kind == device_kind::host;
    const std::string device =
        host ? "host memory" : fmt::format("{}, {}", place_.name, place_.device);
    const std::string backend(to_string(host ? backend::host : backend::cuda_vmm));
    log_.print(fmt::format(
        "gpushm demo: {} in {}, backend {}", base::size_text(size_bytes_), device, backend));
    if (!place_.remark.empty()) {
      log_.print("host memory, because " + place_.remark);
    }
    if (!remark_.empty()) {
      log_.print(remark_);
    }
    document_["device"] = place_.device;
    document_["device_name"] = place_.name.empty() ? json(nullptr) : json(place_.name);
    document_["device_remark"] = place_.remark.empty() ? json(nullptr) : json(place_.remark);
    document_["backend"] = backend;
    document_["size_bytes"] = size_bytes_;
    document_["size_remark"] = remark_.empty() ? json(nullptr) : json(remark_);
    if (!arguments_.consumer_device.empty()) {
      consumer_device_ = find_place(arguments_.consumer_device).device;
      log_.print("consumers use " + consumer_device_);
    }
    document_["consumer_device"] = consumer_device_.empty() ? place_.device : consumer_device_;
    open_directory();
  }

  void choose_size() {
    const auto free = free_bytes(place_);
    if (arguments_.size_bytes) {
      size_bytes_ = *arguments_.size_bytes;
      if (free && size_bytes_ > *free) {
        throw error(errc::out_of_memory,
                    "demo",
                    {},
                    fmt::format("--size is {}, but only {} are free on {}",
                                base::size_text(size_bytes_),
                                base::size_text(*free),
                                place_.device),
                    "give a smaller --size");
      }
      return;
    }
    size_bytes_ = free ? fitting_size(gibibyte, *free) : gibibyte;
    if (size_bytes_ != gibibyte) {
      remark_ = fmt::format("{} instead of 1 GiB, because only {} are free",
                            base::size_text(size_bytes_),
                            base::size_text(*free));
    }
  }

  // The other uids must be able to reach the socket in it, and the broker's uid must be able to
  // create the socket.
  void open_directory() const {
    const std::string& path = directory_.path();
    base::checked("share directory", path, "chmod", [&] { return ::chmod(path.c_str(), 0711); });
    // Otherwise the roles have this process's uid outside their user namespaces: see `isolate`.
    if (arguments_.isolated && can_isolate_directly(broker_uid)) {
      base::checked("share directory", path, "chown", [&] {
        return ::chown(path.c_str(), broker_uid, broker_uid);
      });
    }
  }

  [[nodiscard]] std::string socket() const { return directory_.path() + "/socket"; }
  [[nodiscard]] std::string pid_text(const role_process& role) const {
    return fmt::format("(pid {})", role.pid());
  }

  role_process start(const std::string& role, uid_t uid, std::vector<std::string> more) {
    // Later than the demo's own deadline, so that the demo reports the timeout.
    more.insert(more.end(), {"--socket", socket(), "--name", segment_name});
    more.insert(more.end(), {"--timeout", fmt::format("{}ms", timeout_.count() + 2000)});
    more.insert(more.end(), {"--size-bytes", std::to_string(size_bytes_)});
    if (arguments_.isolated) {
      more.insert(more.end(), {"--isolate", "--uid", std::to_string(uid)});
    }
    role_process process(role, more, app::stop_signal::fd());
    if (arguments_.isolated) {
      process.set_pid(process.expect("isolated", until_).at("pid").get<pid_t>());
    }
    const json started = process.expect("started", until_);
    if (arguments_.isolated) {
      check_isolation(role, uid, started);
    }
    return process;
  }

  // Returns the next report of `role`. Throws `error` immediately if the broker dies.
  json await(role_process& role, std::string_view event) const {
    while (clock::now() < until_) {
      const auto slice = base::deadline_in(milliseconds(200));
      if (role.has_report(std::min(slice, until_))) {
        return role.expect(event, until_);
      }
      if (broker_ != nullptr && !broker_->alive()) {
        throw error(errc::peer_died, "wait for", "broker", "it died during the demo");
      }
    }
    return role.expect(event, until_);
  }

  // Without the isolation that it claims, the demo would prove nothing.
  void check_isolation(const std::string& role, uid_t uid, const json& started) {
    const auto require = [&](bool condition, const std::string& cause) {
      if (!condition) {
        throw error(errc::system_error, "isolate", role, cause, "report this as a bug");
      }
    };
    require(started.at("pid") == 1, "it is not the first process of a PID namespace");
    require(started.at("uid") == uid, "it has a different uid");
    const auto capabilities = started.at("capabilities").get<std::string>();
    require(!capabilities.empty() && capabilities.find_first_not_of('0') == std::string::npos,
            "it has capabilities");
    for (const std::string_view name : isolated_namespaces) {
      const auto inside = started.at("namespaces").at(std::string(name)).get<std::string>();
      require(!inside.empty() && inside != namespace_text(name),
              fmt::format("it shares the demo's {} namespace", name));
      // A later consumer's namespace may reuse the number of a deleted one.
      require(role == "consumer" || seen_namespaces_.insert(inside).second,
              fmt::format("it shares another role's {} namespace", name));
    }
  }

  role_process start_first_consumer() {
    std::vector<std::string> more{
        "--seed", std::to_string(seed_), "--answer-seed", std::to_string(~seed_)};
    add_consumer_options(more);
    role_process consumer = start("consumer", consumer_uid, more);
    if (arguments_.isolated) {
      log_.step(
          "isolated",
          "each process has separate pid, ipc, net, uts and mnt namespaces, a separate uid and "
          "no capabilities");
    }
    log_.step("consumer_started",
              fmt::format("consumer {} starts first: neither the broker nor the segment exists yet",
                          pid_text(consumer)));
    return consumer;
  }

  void add_consumer_options(std::vector<std::string>& more) const {
    if (!consumer_device_.empty()) {
      more.insert(more.end(), {"--device", consumer_device_});
    }
    if (arguments_.corrupt == corrupt_stage::rewrite) {
      more.insert(more.end(), {"--corrupt", "rewrite"});
    }
  }

  role_process start_producer() {
    std::vector<std::string> more{
        "--seed", std::to_string(seed_), "--answer-seed", std::to_string(~seed_)};
    more.insert(more.end(), {"--device", place_.device});
    if (arguments_.corrupt == corrupt_stage::fill || arguments_.corrupt == corrupt_stage::survive) {
      more.insert(more.end(),
                  {"--corrupt", arguments_.corrupt == corrupt_stage::fill ? "fill" : "survive"});
    }
    role_process producer = start("producer", producer_uid, more);
    const json created = await(producer, "created");
    document_["backend"] = created.at("backend");
    log_.step("created",
              fmt::format("producer {} created the segment, backend {}",
                          pid_text(producer),
                          created.at("backend").get<std::string>()),
              created.at("seconds"));
    log_.step(
        "filled", "producer filled it with a pattern", await(producer, "filled").at("seconds"));
    log_.step("published", "producer published it", await(producer, "published").at("seconds"));
    return producer;
  }

  void verify_first(role_process& consumer) {
    await(consumer, "opened");
    log_.step("opened", "consumer opened it");
    check(await(consumer, "checked"), "checked", "consumer checked every byte");
    log_.step(
        "answered", "consumer wrote another pattern back", await(consumer, "filled").at("seconds"));
  }

  void verify_survival() {
    std::vector<std::string> more{"--seed", std::to_string(~seed_)};
    add_consumer_options(more);
    role_process second = start("consumer", consumer_uid, more);
    await(second, "connected");
    const json opened = await(second, "opened");
    log_.step(
        "reopened",
        fmt::format("second consumer {} opened the dead producer's segment", pid_text(second)),
        opened.at("seconds"));
    check(await(second, "checked"), "survival_checked", "second consumer checked every byte");
    second.finish(until_);
  }

  void check(const json& report, const std::string& name, const std::string& text) {
    const auto checked = report.at("checked_bytes").get<std::uint64_t>();
    const auto wrong = report.at("wrong_bytes").get<std::uint64_t>();
    if (wrong != 0 || checked != size_bytes_) {
      throw wrong_data(fmt::format(
          "{}: {} of {} bytes are wrong{}",
          text,
          wrong,
          checked,
          wrong == 0 ? ""
                     : fmt::format(", the first at {}",
                                   report.at("first_wrong_offset").get<std::uint64_t>())));
    }
    log_.step(name, text, report.at("seconds"));
  }

  const demo_arguments& arguments_;
  json& document_;
  step_log log_;
  app::stop_signal stop_;  // before the directory, so that an interrupted demo removes it
  app::temp_directory directory_;
  role_process* broker_ = nullptr;  ///< null before it is started
  demo_place place_;
  std::string consumer_device_;
  std::string remark_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t seed_ = 0;
  milliseconds timeout_{0};
  base::deadline until_;
  std::set<std::string> seen_namespaces_;
};

int run_demo(const demo_arguments& arguments) {
  ::signal(SIGPIPE, SIG_IGN);
  if (arguments.channel) {
    return run_channel_demo(arguments);
  }
  // This process adopts the orphans of isolated processes; init reaps them when it exits.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  json document{{"result", "FAIL"},
                {"isolated", arguments.isolated},
                {"device", nullptr},
                {"device_name", nullptr},
                {"device_remark", nullptr},
                {"consumer_device", nullptr},
                {"backend", nullptr},
                {"size_bytes", nullptr},
                {"size_remark", nullptr},
                {"steps", json::array()}};
  return finish_demo(arguments.json, document, [&] { demo(arguments, document).run(); });
}

}  // namespace

void add_demo(command_list& commands) {
  add_command<demo_arguments>(
      commands,
      "demo",
      "Share a segment, or a channel, between separate processes, which check every byte",
      add_demo_arguments,
      run_demo);
}

}  // namespace gpushm::cli
