// SPDX-License-Identifier: Apache-2.0
#include "tests/support/agent_node/agent_node.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/files/unique_fd.hpp"
#include "base/text/text.hpp"
#include "tests/support/process/deadline.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_tests {

using gpushm_testing::scaled_timeout;
using nlohmann::json;
using namespace std::chrono_literals;

namespace {

void write_kubeconfig(const std::string& path, const std::string& url) {
  json cluster{{"name", "fake"}};
  cluster["cluster"]["server"] = url;
  json user{{"name", "agent"}};
  user["user"]["token"] = "any";
  json context{{"name", "fake"}};
  context["context"] = {{"cluster", "fake"}, {"user", "agent"}};
  json config{{"apiVersion", "v1"}, {"kind", "Config"}, {"current-context", "fake"}};
  config["clusters"].push_back(cluster);
  config["users"].push_back(user);
  config["contexts"].push_back(context);
  std::ofstream(path) << config.dump(2);
}

}  // namespace

std::string why_no_node() {
  return ::geteuid() == 0 ? std::string() : "fake GPUs of limited size need root";
}

agent_node::agent_node(const cdi_machine& machine) : machine_(machine) {
  api_.put(std::string("/api/v1/nodes/") + node_name);
  write_kubeconfig(path("kubeconfig"), api_.url());
}

void agent_node::start_kubelet(bool with_dra) {
  gpushm_testing::fake_kubelet_options plugins;
  plugins.directory = path("device-plugins");
  kubelet_ = std::make_unique<gpushm_testing::fake_kubelet>(plugins);
  kubelet_->start();
  if (!with_dra) {
    return;
  }
  gpushm_testing::dra_kubelet_options drivers;
  drivers.root = path("kubelet");
  drivers.delete_slices = [this](const std::string&) {
    const std::string slices = "/apis/resource.k8s.io/v1/resourceslices";
    for (const json& slice : api_.items(slices)) {
      api_.erase(slices + "/" + slice.at("metadata").at("name").get<std::string>());
    }
  };
  claims_ = std::make_unique<gpushm_testing::dra_kubelet>(drivers);
}

void agent_node::stop_kubelet() {
  claims_.reset();
  kubelet_.reset();
}

void agent_node::start_broker(const std::vector<std::string>& flags) {
  std::vector<std::string> text = flags;
  if (machine_.is_fake()) {
    text.emplace_back("--accept-fake-chunks");
  }
  broker_ = std::make_unique<gpushm_testing::brokerd>(path("run"), text);
}

void agent_node::start_agent(const std::vector<std::string>& flags) {
  if (!broker_) {
    start_broker();
  }
  gpushm_testing::spawn_options options;
  options.argv = {gpushm_testing::own_program("gpushmd"),
                  "--node-name",
                  node_name,
                  "--run-dir",
                  path("run"),
                  "--kubelet-root",
                  path("kubelet"),
                  "--device-plugin-dir",
                  path("device-plugins"),
                  "--cdi-dir",
                  spec_directory(),
                  "--hook-source",
                  gpushm_testing::own_program("gpushm-cdi-hook"),
                  "--kubeconfig",
                  path("kubeconfig"),
                  "--listen",
                  "127.0.0.1:0"};
  const auto places = machine_.places();
  options.argv.insert(options.argv.end(), places.begin(), places.end());
  if (machine_.is_fake()) {
    options.env = machine_.fake().environment();
  }
  options.argv.insert(options.argv.end(), flags.begin(), flags.end());
  agent_ = std::make_unique<gpushm_testing::child>(gpushm_testing::child::start(options));
  const std::string line = agent_->wait_for_line(
      "/metrics on port ([0-9]+)", scaled_timeout(20s), gpushm_testing::stream::err);
  port_ = std::stoi(line.substr(line.find("on port ") + 8));
}

bool agent_node::wait_ready() {
  const auto deadline = std::chrono::steady_clock::now() + scaled_timeout(30s);
  std::string response;
  while (std::chrono::steady_clock::now() < deadline) {
    response = http_get("/readyz");
    if (response.starts_with("200")) {
      return kubelet_ == nullptr || wait_listed();
    }
    std::this_thread::sleep_for(20ms);
  }
  ADD_FAILURE() << response << agent_->output().all_output();
  return false;
}

bool agent_node::wait_listed() {
  for (const std::string& name : kubelet_->resources()) {
    const auto listed = [](const gpushm_testing::resource_view& view) { return view.listed; };
    if (!kubelet_->wait_for(name, listed, 10s)) {
      ADD_FAILURE() << "the kubelet has no list of devices for " << name << '\n'
                    << agent_->output().all_output();
      return false;
    }
  }
  return true;
}

std::string agent_node::http_get(const std::string& path) const {
  return gpushm_tests::http_get(port_, path);
}

std::string http_get(int port, const std::string& path) {
  const gpushm::base::unique_fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
    return "no connection";
  }
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";  // the response ends the stream
  static_cast<void>(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL));
  std::string text;
  for (std::array<char, 4'096> part{};;) {
    pollfd waiting{socket.get(), POLLIN, 0};
    const bool readable = ::poll(&waiting, 1, 10'000) > 0;
    const ssize_t got = readable ? ::read(socket.get(), part.data(), part.size()) : 0;
    if (got <= 0) {
      break;
    }
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  const std::size_t body = text.find("\r\n\r\n");
  return text.size() < 12 || body == std::string::npos ? "no answer"
                                                       : text.substr(9, 4) + text.substr(body + 4);
}

double agent_node::metric(const std::string& name) const {
  const std::string text = http_get("/metrics");
  for (const std::string_view line : gpushm::base::lines_of(text)) {
    if (line.starts_with(name) && line.substr(name.size()).starts_with(' ')) {
      return std::stod(std::string(line.substr(name.size() + 1)));
    }
  }
  return -1;
}

}  // namespace gpushm_tests
