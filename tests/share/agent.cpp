// SPDX-License-Identifier: Apache-2.0
#include "tests/share/agent.hpp"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {

using gpushm_testing::child;
using gpushm_testing::own_program;

agent::agent(const agent_settings& settings) {
  gpushm_testing::spawn_options options;
  if (settings.own_pid_namespace) {
    options.argv = {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"};
  }
  options.argv.push_back(own_program(settings.program));
  options.env = settings.env;
  options.open_files = settings.open_files;
  process_.emplace(child::start(options));
}

agent::agent(gpushm_testing::container inside) {
  container_.emplace(std::move(inside));
}

void agent::send(const std::string& order) {
  if (process_) {
    process_->write(order + "\n");
  } else {
    container_->write(order + "\n");
  }
}

std::string agent::reply(std::chrono::milliseconds timeout) {
  return process_ ? process_->wait_for_line("^(ok|error) ", timeout)
                  : container_->wait_for_line("^(ok|error) ", timeout);
}

std::string agent::request(const std::string& order) {
  send(order);
  const std::string got = reply();
  EXPECT_TRUE(got.starts_with("ok ")) << order << ": " << got;
  return got.starts_with("ok ") ? got.substr(3) : std::string();
}

std::string agent::fails(const std::string& order) {
  send(order);
  const std::string got = reply();
  EXPECT_TRUE(got.starts_with("error ")) << order << ": " << got;
  return got.starts_with("error ") ? got.substr(6) : std::string();
}

std::string agent::code(const std::string& order) {
  const std::string text = fails(order);
  return text.substr(0, text.find(' '));
}

void agent::kill(int signal_number) {
  if (process_) {
    process_->kill(signal_number);
  } else {
    container_->kill(signal_number);
  }
}

void agent::stop() {
  process_->kill(SIGSTOP);
  const std::string path = "/proc/" + std::to_string(process_->pid()) + "/status";
  EXPECT_TRUE(gpushm_testing::eventually(
      [&] {
        std::ifstream status(path);
        const std::string text{std::istreambuf_iterator<char>(status), {}};
        return text.find("State:\tT") != std::string::npos;
      },
      std::chrono::seconds(20)));
}

void agent::kill_and_wait() {
  // The process that the test started may be `unshare`, whose child is the agent.
  pid_t inner = 0;
  if (process_) {
    const std::string pid = std::to_string(process_->pid());
    std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
    children >> inner;
  }
  kill(SIGKILL);
  static_cast<void>(process_ ? process_->wait_exit(std::chrono::seconds(30))
                             : container_->wait_exit(std::chrono::seconds(30)));
  if (inner > 0) {
    EXPECT_TRUE(gpushm_testing::eventually(
        [&] { return !std::filesystem::exists("/proc/" + std::to_string(inner)); },
        std::chrono::seconds(30)));
  }
}

}  // namespace gpushm_tests
