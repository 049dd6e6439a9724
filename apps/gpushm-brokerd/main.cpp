// SPDX-License-Identifier: Apache-2.0
// The brokers of a node, as a process that a successor continues (docs/adr/0031).
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "apps/gpushm-brokerd/system_calls.hpp"
#include "apps/gpushm-brokerd/watchdog.hpp"
#include "apps/support/log_line.hpp"
#include "base/files/descriptor_numbers.hpp"
#include "base/files/file.hpp"
#include "base/process/memory_limit.hpp"
#include "base/text/text.hpp"
#include "domains/protocol/private_socket.hpp"
#include "domains/serve/domain_set.hpp"
#include "domains/serve/predecessor.hpp"
#include "domains/serve/run_directory.hpp"
#include "domains/serve/service.hpp"
#include "gpushm/gpushm.hpp"
#include "succession/descriptor_store/descriptor_store.hpp"

namespace {

using gpushm::domains::domain_set_options;

constexpr std::chrono::milliseconds keeper_timeout{5'000};
constexpr std::chrono::milliseconds check_timeout{2'000};
/// For the private socket, the keeper's sockets, and each domain's own.
constexpr std::uint64_t reserved_descriptors = 512;

/// The log, from its first use on.
gpushm::app::program_log& own_log(gpushm::log_level least = gpushm::log_level::info) {
  static gpushm::app::program_log log("gpushm-brokerd", least);
  return log;
}

/// Prints a line of a subcommand, or about a wrong command line. The kubelet puts the lines of
/// `check` into an event.
void print_line(std::string_view text) {
  std::fprintf(stderr, "gpushm-brokerd: %s\n", gpushm::base::printable(text).c_str());
}

std::uint64_t less_reserved(std::uint64_t total) {
  return total > 2 * reserved_descriptors ? total - reserved_descriptors : total / 2;
}

/// Descriptors for all domains together.
void limit_descriptors(domain_set_options& options) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max != RLIM_INFINITY) {
    options.descriptors = less_reserved(limit.rlim_max);
  }
  // What the keeper cannot store would be lost with this process. The reserve has room for each
  // domain's own, for a journal that replaces another, and for copies that are being removed.
  const std::uint64_t kept = gpushm::keeper::descriptor_store::capacity();
  if (kept != 0) {
    const std::uint64_t most = less_reserved(kept);
    options.descriptors = options.descriptors == 0 ? most : std::min(options.descriptors, most);
    std::uint64_t& by_domain =
        options.limits.max_descriptors;  // its members' shares are parts of it
    by_domain = by_domain == 0 ? options.descriptors : std::min(by_domain, options.descriptors);
  }
}

struct options {
  domain_set_options domains;
  std::optional<gid_t> group;
  gpushm::log_level level = gpushm::log_level::info;
  gpushm::app::forbidden_call at_forbidden_call = gpushm::app::forbidden_call::refuse;
};

void add_limits(CLI::App& app, gpushm::broker_limits& limits) {
  limits.max_segments = 4'096;
  limits.max_connections = 1'024;
  app.add_option("--max-segments", limits.max_segments, "segments per domain")
      ->envname("GPUSHM_BROKERD_MAX_SEGMENTS")
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  app.add_option("--max-connections", limits.max_connections, "connections per domain")
      ->envname("GPUSHM_BROKERD_MAX_CONNECTIONS")
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  app.add_option(
         "--quota-bytes",
         limits.quota_bytes,
         "segments per domain, in bytes of the host's memory and of each GPU's; 0: no limit")
      ->envname("GPUSHM_BROKERD_QUOTA_BYTES")
      ->capture_default_str();
  app.add_option("--quota-bytes-per-principal",
                 limits.quota_bytes_per_principal,
                 "the same per pod or other principal in a domain")
      ->envname("GPUSHM_BROKERD_QUOTA_BYTES_PER_PRINCIPAL")
      ->capture_default_str();
  app.add_option("--memory-bytes",
                 limits.memory_bytes,
                 "memory of this process and its journals that clients can occupy, over all "
                 "domains; 0: half of what it may use, at most 1 GiB")
      ->envname("GPUSHM_BROKERD_MEMORY_BYTES")
      ->capture_default_str();
  app.add_option("--max-descriptors",
                 limits.max_descriptors,
                 "file descriptors per domain; 0: this process's limit, which all domains share")
      ->envname("GPUSHM_BROKERD_MAX_DESCRIPTORS")
      ->capture_default_str();
  app.add_option(
         "--fence-delay-ms",
         limits.fence_delay_ms,
         "how long a dead client's memory is kept when nothing proves that its GPU work has "
         "ended")
      ->envname("GPUSHM_BROKERD_FENCE_DELAY_MS")
      ->check(CLI::Range(0, 3'600'000))
      ->capture_default_str();
}

/// CLI11's own transformers print the enumerators.
template <typename Enum>
void add_choice(CLI::App& app,
                const char* name,
                const char* variable,
                Enum& into,
                const std::map<std::string, Enum>& choices,
                const char* help) {
  app.add_option_function<std::string>(
         name,
         [=, &into](const std::string& text) {
           const auto choice = choices.find(text);
           if (choice == choices.end()) {
             std::string all;
             for (const auto& [each, value] : choices) {
               all += (all.empty() ? "" : ", ") + each;
             }
             throw CLI::ValidationError(name, "\"" + text + "\" is none of " + all);
           }
           into = choice->second;
         },
         help)
      ->envname(variable)
      ->type_name("WORD");
}

void add_options(CLI::App& app, options& into) {
  app.add_option("--run-dir",
                 into.domains.run_dir,
                 "directory of the sockets: DIR/d/NAME/socket for each domain, DIR/private/socket "
                 "for gpushmd")
      ->envname("GPUSHM_BROKERD_RUN_DIR")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--domain", into.domains.domains, "a domain that always exists; may be repeated")
      ->envname("GPUSHM_BROKERD_DOMAINS")
      ->type_name("NAME")
      ->delimiter(',');
  app.add_option("--private-group", into.group, "gid that may use the private socket [this one's]")
      ->envname("GPUSHM_BROKERD_PRIVATE_GROUP")
      ->type_name("GID");
  add_choice<gpushm::log_level>(app,
                                "--log-level",
                                "GPUSHM_BROKERD_LOG_LEVEL",
                                into.level,
                                {{"debug", gpushm::log_level::debug},
                                 {"info", gpushm::log_level::info},
                                 {"warning", gpushm::log_level::warning},
                                 {"error", gpushm::log_level::error}},
                                "debug, info, warning or error [info]");
  using gpushm::app::forbidden_call;
  add_choice<forbidden_call>(app,
                             "--forbidden-call",
                             "GPUSHM_BROKERD_FORBIDDEN_CALL",
                             into.at_forbidden_call,
                             {{"refuse", forbidden_call::refuse},
                              {"kill", forbidden_call::kill},
                              {"allow", forbidden_call::allow}},
                             "what happens when this program uses a system call that it does not "
                             "need: refuse (EPERM, and a "
                             "line in the kernel's audit log), kill, or allow [refuse]");
  add_limits(app, into.domains.limits);
  app.add_option(
         "--quotas",
         into.domains.quota_file,
         "file of quotas by domain and uid, read again when it changes; without it they are "
         "set by `gpushm quotas`")
      ->envname("GPUSHM_BROKERD_QUOTAS")
      ->type_name("FILE");
  app.add_option_function<std::uint32_t>(
         "--return-ms",
         [&into](std::uint32_t given) {
           into.domains.return_time = std::chrono::milliseconds(given);
         },
         "how long processes may hand back their segments after this program and its keeper have "
         "died; what is missing then is reported as lost [300000]")
      ->envname("GPUSHM_BROKERD_RETURN_MS")
      ->check(CLI::Range(0, 3'600'000))
      ->type_name("UINT");
  app.add_flag("--accept-fake-chunks", into.domains.accept_fake_chunks, "for tests")->group("");
}

/// Blocks SIGTERM, SIGINT and SIGHUP, also in the threads that are started later.
sigset_t block_signals() {
  sigset_t stop;
  sigemptyset(&stop);
  for (const int each : {SIGTERM, SIGINT, SIGHUP}) {
    sigaddset(&stop, each);
  }
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  return stop;
}

/// Its end is like SIGKILL, as always.
gpushm::domains::orphan_rules rules_without_keeper() {
  struct guarded_store {
    std::mutex mutex;
    std::optional<gpushm::keeper::descriptor_store> store;
  };
  const auto own = std::make_shared<guarded_store>();
  own->store = gpushm::keeper::descriptor_store::from_environment();
  return {[own] {
            const std::lock_guard lock(own->mutex);
            return own->store && own->store->is_keeper_gone();
          },
          [] { ::_exit(0); }};
}

int serve(options chosen) {
  gpushm::app::program_log& log = own_log(chosen.level);
  gpushm::set_log_sink(
      [&log](gpushm::log_level level, std::string_view text) { log.write(level, text); });
  log.write(gpushm::log_level::info, "version " GPUSHM_VERSION);
  gpushm::base::reserve_descriptor_numbers();  // before there are threads
  // A member of the same uid must not read this process's memory, or its descriptors.
  ::prctl(PR_SET_DUMPABLE, 0);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  // Until it is ready, nothing depends on this process: if its keeper dies, the previous keeper
  // starts another one.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const sigset_t stop = block_signals();
  // A journal beyond this process's limit of file sizes is one that is full.
  ::signal(SIGXFSZ, SIG_IGN);
  gpushm::app::limit_system_calls(chosen.at_forbidden_call);
  auto store = gpushm::keeper::descriptor_store::from_environment();
  if (!store) {
    log.write(
        gpushm::log_level::error,
        "NOTIFY_SOCKET is not set: there is no keeper (start it by gpushm-keeper or systemd)");
    return 1;
  }
  const auto watchdog = gpushm::keeper::watchdog_timeout();
  if (chosen.domains.limits.memory_bytes == 0) {
    chosen.domains.limits.memory_bytes =
        gpushm::base::memory_for_members(gpushm::base::memory_limit_bytes());
  }
  limit_descriptors(chosen.domains);
  chosen.domains.version = GPUSHM_VERSION;
  auto before = gpushm::domains::take_predecessor(*store);
  // Neither is destroyed, also not after an exception: everything is for the successor.
  auto& domains =
      *std::make_unique<gpushm::domains::domain_set>(chosen.domains, std::move(before)).release();
  static_cast<void>(std::make_unique<gpushm::domains::service>(
                        domains, chosen.domains.run_dir, chosen.group, rules_without_keeper())
                        .release());
  store->ready(keeper_timeout);
  ::prctl(PR_SET_PDEATHSIG, 0);  // before members depend on this process
  domains.serve();
  domains.count_start(gpushm::keeper::descriptor_store::reason_of_start());
  gpushm::app::report_until(stop, watchdog, *store, domains);
  ::_exit(0);  // like SIGKILL
}

/// Whether the broker of this container serves: while a new pod takes over from another, the socket
/// is that of the other. If not, prints one line with the cause and the next step.
int check_now(const std::string& run_dir) {
  const gpushm::domains::private_socket broker(run_dir);
  using gpushm::domains::keeper_state;
  for (const gpushm::domains::reading& each : broker.read(check_timeout)) {
    if (each.keeper != keeper_state::reads && each.keeper != keeper_state::unknown) {
      print_line("domain " + each.domain + ": the keeper is " + to_string(each.keeper));
    }
  }
  const pid_t pid = broker.listening_process(check_timeout);
  const auto cgroup_of = [](const std::string& process) {
    return gpushm::base::read_small_file("/proc/" + process + "/cgroup");
  };
  const auto own = cgroup_of("self");
  if (pid == 0 || !own || cgroup_of(std::to_string(pid)) != own) {
    print_line("the broker that serves " + run_dir +
               " is of another container: this one has not taken over yet (see the logs of both)");
    return 1;
  }
  return 0;
}

int check(const std::string& run_dir) {
  try {
    return check_now(run_dir);
  } catch (const std::exception& why) {
    print_line(why.what());
    return 1;
  }
}

int run(int argc, char** argv) {
  CLI::App app(
      "The brokers of a node, as a process that can be killed and replaced without loss.\n"
      "Start it by gpushm-keeper, or by systemd with a descriptor store.",
      "gpushm-brokerd");
  options chosen;
  add_options(app, chosen);
  app.set_version_flag("--version", "gpushm-brokerd " GPUSHM_VERSION);
  app.require_subcommand(0, 1);
  app.fallthrough();
  const CLI::App* const prepare =
      app.add_subcommand("prepare", "As root: create the run directory for the broker's uid");
  uid_t uid = 0;
  app.get_subcommand("prepare")
      ->add_option("--uid", uid, "of the broker, and its gid")
      ->required()
      ->check(CLI::Range(1U, std::numeric_limits<uid_t>::max() - 1));
  const CLI::App* const probe = app.add_subcommand(
      "check", "Exit with 0 if the broker of this container, or of this service, serves");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? 0 : 2;
  }
  if (prepare->parsed()) {
    gpushm::domains::prepare_run_directory(chosen.domains.run_dir, uid, uid);
    return 0;
  }
  if (probe->parsed()) {
    return check(chosen.domains.run_dir);
  }
  if (::geteuid() == 0) {
    print_line(
        "it must not run as root (use a uid that no client has: User= of the unit, runAsUser of "
        "the "
        "pod, or setpriv --reuid)");
    return 2;
  }
  return serve(std::move(chosen));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {
    own_log().write(gpushm::log_level::error, gpushm::base::printable(failure.what()));
    // Threads may wait for requests.
    ::_exit(1);
  }
}
