// SPDX-License-Identifier: Apache-2.0
// Brokers of ordinary users, which cannot create /run/gpushm: where they listen, and who finds
// them. In a mount namespace with its own /run and /tmp.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {
namespace {

using gpushm_testing::child;
using gpushm_testing::exited;
using gpushm_testing::run_result;
using gpushm_testing::spawn_options;
using gpushm_testing::stream;
using nlohmann::json;
using std::chrono::seconds;
using ::testing::HasSubstr;

using environment = std::vector<std::pair<std::string, std::string>>;

constexpr const char* user = "64001";
constexpr const char* machine_socket = "/run/gpushm/d/default/socket";
constexpr const char* own_socket = "/run/user/64001/gpushm/d/default/socket";
constexpr const char* next_step =
    " (start a broker with `gpushm serve`, or mount the domain's directory)\n";

class own_broker : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) {
      GTEST_SKIP() << "mount namespaces need root";
    }
    for (const char* program : {"unshare", "nsenter", "setpriv"}) {
      if (!gpushm_testing::find_in_path(program)) {
        GTEST_SKIP() << "no " << program << " in $PATH";
      }
    }
    namespace_.emplace(child::start(
        {.argv = {
             "unshare",
             "--mount",
             "sh",
             "-c",
             "mount -t tmpfs -o mode=755 none /run && mount -t tmpfs -o mode=1777 none /tmp && "
             "mkdir -p /run/user && echo ready && exec sleep 600"}}));
    namespace_->wait_for_line("^ready$", seconds(20));
  }

  [[nodiscard]] spawn_options command(const std::string& uid,
                                      std::vector<std::string> argv,
                                      const environment& set = {}) const {
    spawn_options options;
    options.argv = {"nsenter",
                    "--mount=/proc/" + std::to_string(namespace_->pid()) + "/ns/mnt",
                    "setpriv",
                    "--reuid=" + uid,
                    "--regid=" + uid,
                    "--clear-groups"};
    options.argv.insert(options.argv.end(), argv.begin(), argv.end());
    options.env = {{"GPUSHM_SOCKET", ""}, {"XDG_RUNTIME_DIR", ""}, {"TMPDIR", ""}};
    options.env.insert(options.env.end(), set.begin(), set.end());
    return options;
  }
  [[nodiscard]] run_result gpushm(const std::string& uid,
                                  std::vector<std::string> arguments,
                                  const environment& set = {}) const {
    arguments.insert(arguments.begin(), gpushm_testing::own_program("gpushm"));
    return gpushm_testing::run_program(command(uid, std::move(arguments), set), seconds(60));
  }
  [[nodiscard]] child serve(const std::string& uid,
                            std::vector<std::string> arguments = {},
                            const environment& set = {}) const {
    arguments.insert(arguments.begin(), {gpushm_testing::own_program("gpushm"), "serve"});
    auto broker = child::start(command(uid, std::move(arguments), set));
    broker.wait_for_line("^gpushm: serving domain", seconds(20));
    return broker;
  }
  static void end(child& broker) {
    broker.kill(SIGKILL);
    broker.wait_exit(seconds(20));
  }
  void shell(const std::string& script) const {
    const auto done = gpushm_testing::run_program(command("0", {"sh", "-ec", script}), seconds(20));
    ASSERT_EQ(done.status, exited(0)) << done.err;
  }
  /// As a session of this user begins.
  void log_in(const std::string& uid = user) const {
    shell("mkdir -m 700 /run/user/" + uid + " && chown " + uid + ":" + uid + " /run/user/" + uid);
  }
  void create(const std::string& uid, const std::string& name, const std::string& socket) const {
    const auto created = gpushm(uid,
                                {"create",
                                 name,
                                 "--size",
                                 "4096",
                                 "--device",
                                 "host",
                                 "--lifetime",
                                 "persistent",
                                 "--socket",
                                 socket});
    ASSERT_EQ(created.status, exited(0)) << created.err;
  }
  [[nodiscard]] std::string seen_by(const std::string& uid, const environment& set = {}) const {
    const auto listed = gpushm(uid, {"ls", "--json"}, set);
    return listed.status == exited(0) ? listed.out : listed.err;
  }

  std::optional<child> namespace_;
};

TEST_F(own_broker, of_a_session_is_found_without_settings) {
  log_in();
  log_in("64002");
  EXPECT_EQ(seen_by(user),
            std::string("gpushm: connect \"") + machine_socket +
                "\": the socket does not exist, and this user has no broker at " + own_socket +
                next_step);
  const auto broker = serve(user, {}, {{"XDG_RUNTIME_DIR", "/run/user/64001"}});
  EXPECT_THAT(broker.text(stream::out),
              HasSubstr(std::string("gpushm: serving domain \"default\" at ") + own_socket));
  EXPECT_EQ(broker.text(stream::err).find("another broker"), std::string::npos);
  create(user, "own", own_socket);
  EXPECT_THAT(seen_by(user), HasSubstr("\"own\""));
  EXPECT_THAT(seen_by(user, {{"XDG_RUNTIME_DIR", "/run/user/64001/"}}), HasSubstr("\"own\""));
  EXPECT_THAT(seen_by(user, {{"XDG_RUNTIME_DIR", "/nowhere"}}), HasSubstr("\"own\""));
  EXPECT_THAT(seen_by("64002"), HasSubstr("no broker at /run/user/64002/gpushm/d/default/socket"));
  EXPECT_THAT(seen_by("64002", {{"XDG_RUNTIME_DIR", "/run/user/64001"}}),
              HasSubstr("not used for this user's brokers: /run/user/64001 belongs to uid 64001, "
                        "not to this process's uid 64002"));
  const auto second = gpushm(user, {"serve"});
  EXPECT_EQ(second.status, exited(1));
  EXPECT_THAT(second.err, HasSubstr(own_socket));
}

TEST_F(own_broker, without_a_session_is_in_the_temporary_directory) {
  const auto broker = serve(user);
  EXPECT_THAT(broker.text(stream::out), HasSubstr("at /tmp/gpushm-64001/d/default/socket"));
  create(user, "own", "/tmp/gpushm-64001/d/default/socket");
  EXPECT_THAT(seen_by(user), HasSubstr("\"own\""));
  // Another user's directory of that name, created first.
  shell("mkdir -m 777 /tmp/gpushm-64002");
  const auto refused = gpushm("64002", {"serve"});
  EXPECT_EQ(refused.status, exited(1));
  EXPECT_EQ(
      refused.err,
      "gpushm: serve \"/tmp/gpushm-64002/d\": /tmp/gpushm-64002 belongs to uid 0, not to this "
      "process's uid 64002 (remove it, set XDG_RUNTIME_DIR to a directory of this user, or "
      "pass a socket)\n");
  EXPECT_THAT(seen_by("64002"), HasSubstr("/tmp/gpushm-64002 belongs to uid 0"));
}

TEST_F(own_broker, is_not_placed_where_others_can_write) {
  shell("mkdir -m 777 /run/open && chown 64001 /run/open");
  const environment open{{"XDG_RUNTIME_DIR", "/run/open"}};
  const auto refused = gpushm(user, {"serve"}, open);
  EXPECT_EQ(refused.status, exited(1));
  EXPECT_EQ(refused.err,
            "gpushm: serve \"/run/open/gpushm/d\": /run/open is writable by others (unset "
            "XDG_RUNTIME_DIR, or set it to a directory of this user (0700))\n");
  shell("test -z \"$(ls -A /run/open)\" && test ! -e /tmp/gpushm-64001");
  EXPECT_THAT(seen_by(user, open),
              HasSubstr("; not used for this user's brokers: /run/open is writable by others ("));
}

TEST_F(own_broker, is_found_by_a_client_that_waits) {
  log_in();
  auto waiting = child::start(command(
      user, {gpushm_testing::own_program("gpushm"), "ls", "--json", "--connect-timeout", "60s"}));
  const auto broker = serve(user);
  EXPECT_EQ(waiting.wait_exit(seconds(60)), exited(0)) << waiting.output().all_output();
}

TEST_F(own_broker, comes_after_the_machines) {
  log_in();
  auto machine = serve("0", {"--mode", "0666"});
  EXPECT_THAT(machine.text(stream::out), HasSubstr(std::string("at ") + machine_socket));
  auto own = serve(user);
  own.wait_for_line(std::string("another broker listens at ") + machine_socket +
                        ", so tell clients which one to use: export GPUSHM_SOCKET=" + own_socket,
                    seconds(20),
                    stream::err);
  create(user, "of-machine", machine_socket);
  create(user, "own", own_socket);
  EXPECT_THAT(seen_by(user), HasSubstr("\"of-machine\""));
  EXPECT_THAT(seen_by(user, {{"GPUSHM_SOCKET", own_socket}}), HasSubstr("\"own\""));

  const auto doctor = gpushm(user, {"doctor", "--json"});
  const json seen = json::parse(doctor.out);
  json broker;
  for (const json& check : seen["checks"]) {
    if (check["id"] == "broker") {
      broker = check;
    }
  }
  const std::string text = broker.dump();
  EXPECT_EQ(broker["verdict"], "note") << text;
  EXPECT_THAT(text, HasSubstr(std::string("domain \\\"default\\\" at ") + machine_socket));
  EXPECT_THAT(text, HasSubstr(std::string("not used: the broker at ") + own_socket));
  EXPECT_THAT(text, HasSubstr(std::string("export GPUSHM_SOCKET=") + own_socket));

  end(machine);
  EXPECT_THAT(seen_by(user), HasSubstr("\"own\"")) << "the machine's broker has ended";
  machine = serve("0", {"--mode", "0600"});
  EXPECT_THAT(seen_by(user), HasSubstr("\"own\"")) << "the machine's broker is not for this user";
  end(own);
  EXPECT_THAT(
      seen_by(user),
      HasSubstr(std::string("this uid may not write to the socket or reach its directory; at ") +
                own_socket + ": no broker listens on this socket: its broker has exited ("));
}

TEST_F(own_broker, of_several_domains_must_be_named) {
  log_in();
  auto first = serve(user, {"--domain", "a"});
  create(user, "of-a", "/run/user/64001/gpushm/d/a/socket");
  EXPECT_THAT(seen_by(user), HasSubstr("\"of-a\"")) << "the only one";
  auto second = serve(user, {"--domain", "b"});
  EXPECT_EQ(
      seen_by(user),
      "gpushm: connect \"/run/user/64001/gpushm/d\": this user has brokers of several domains: "
      "a, b (name one, for instance GPUSHM_SOCKET=/run/user/64001/gpushm/d/a/socket)\n");
  end(second);
  EXPECT_THAT(seen_by(user), HasSubstr("\"of-a\"")) << "the only one that is alive";
}

}  // namespace
}  // namespace gpushm_tests
