// SPDX-License-Identifier: Apache-2.0
// The fake API server as a process. Prints its URL, then executes one command per line of standard
// input and replies to each with one line. Exits at the end of the input.

#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "base/text/text.hpp"
#include "tests/support/fake_kube_api/fake_kube_api.hpp"

namespace {

using gpushm::testing::fake_kube_api;
using gpushm::testing::fake_kube_options;
using gpushm::testing::kube_failure;
using nlohmann::json;

constexpr const char* usage =
    "usage: fake-kube-api [--address A] [--port N] [--versions v1,v1beta1] [--token T]...\n"
    "                     [--tls DIR]   writes DIR/ca.pem, DIR/kubeconfig and DIR/token\n"
    "commands: put PATH JSON | erase PATH | get PATH | items PATH | requests | clear-requests\n"
    "          end-watches | cut-watches | bookmarks | expire | tokens T... | versions V...\n"
    "          fail JSON | clear-failures | watches | stop | start | quit\n";

std::vector<std::string> words_of(std::string_view text, std::string_view separators) {
  const auto parts = gpushm::base::split(text, separators);
  return {parts.begin(), parts.end()};
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) {
    throw std::runtime_error("cannot write " + path);
  }
}

struct settings {
  fake_kube_options options;
  std::string directory;
};

settings settings_of(const std::vector<std::string>& arguments) {
  settings read;
  for (std::size_t at = 0; at < arguments.size(); at += 2) {
    if (at + 1 == arguments.size()) {
      throw std::runtime_error(usage);
    }
    const std::string& name = arguments[at];
    const std::string& value = arguments[at + 1];
    if (name == "--address") {
      read.options.address = value;
    } else if (name == "--port") {
      read.options.port = std::stoi(value);
    } else if (name == "--versions") {
      read.options.resource_versions = words_of(value, ",");
    } else if (name == "--token") {
      read.options.tokens.push_back(value);
    } else if (name == "--tls") {
      read.options.tls = true;
      read.directory = value;
    } else {
      throw std::runtime_error(usage);
    }
  }
  return read;
}

/// For clients that are configured only by files.
void write_access(const fake_kube_api& server, const settings& settings) {
  const std::string& directory = settings.directory;
  write(directory + "/ca.pem", server.authority_pem());
  write(directory + "/token",
        settings.options.tokens.empty() ? "any" : settings.options.tokens.front());
  const json config{
      {"apiVersion", "v1"},
      {"kind", "Config"},
      {"current-context", "fake"},
      {"contexts", {{{"name", "fake"}, {"context", {{"cluster", "fake"}, {"user", "fake"}}}}}},
      {"clusters",
       {{{"name", "fake"},
         {"cluster",
          {{"server", server.url()}, {"certificate-authority", directory + "/ca.pem"}}}}}},
      {"users", {{{"name", "fake"}, {"user", {{"tokenFile", directory + "/token"}}}}}}};
  write(directory + "/kubeconfig", config.dump(2));
}

json to_json(const gpushm::testing::kube_request& request) {
  return {{"method", request.method},
          {"path", request.path},
          {"query", request.query},
          {"status", request.status},
          {"authorization", request.authorization},
          {"user_agent", request.user_agent},
          {"body", request.body}};
}

kube_failure failure_of(const json& from) {
  kube_failure failure;
  failure.method = from.value("method", "");
  failure.path_prefix = from.value("path_prefix", "");
  failure.query_part = from.value("query_part", "");
  failure.times = from.value("times", 1);
  failure.delay = std::chrono::milliseconds(from.value("delay_ms", 0));
  failure.status = from.value("status", 0);
  failure.reason = from.value("reason", "");
  failure.message = from.value("message", "");
  failure.retry_after_seconds = from.value("retry_after_seconds", 0);
  failure.cut = from.value("cut", false);
  failure.lose_answer = from.value("lose_answer", false);
  return failure;
}

json requests_of(const fake_kube_api& server) {
  json all = json::array();
  for (const auto& each : server.requests()) {
    all.push_back(to_json(each));
  }
  return all;
}

json execute(fake_kube_api& server, const std::string& command, const std::string& rest) {
  const std::size_t blank = std::min(rest.find(' '), rest.size());
  const std::string path = rest.substr(0, blank);
  using action = std::function<json()>;
  const auto ok = [](auto&& act) {
    act();
    return json("ok");
  };
  const std::map<std::string, action> actions{
      {"put", [&] { return server.put(path, json::parse(rest.substr(blank))); }},
      {"erase", [&] { return json(server.erase(path)); }},
      {"get", [&] { return server.find(path).value_or(json()); }},
      {"items", [&] { return json(server.items(path)); }},
      {"requests", [&] { return requests_of(server); }},
      {"clear-requests", [&] { return ok([&] { server.clear_requests(); }); }},
      {"end-watches", [&] { return ok([&] { server.end_watches(); }); }},
      {"cut-watches", [&] { return ok([&] { server.cut_watches(); }); }},
      {"bookmarks", [&] { return ok([&] { server.send_bookmarks(); }); }},
      {"expire", [&] { return ok([&] { server.expire_history(); }); }},
      {"tokens", [&] { return ok([&] { server.set_tokens(words_of(rest, " ")); }); }},
      {"versions", [&] { return ok([&] { server.set_resource_versions(words_of(rest, " ")); }); }},
      {"fail", [&] { return ok([&] { server.fail(failure_of(json::parse(rest))); }); }},
      {"clear-failures", [&] { return ok([&] { server.clear_failures(); }); }},
      {"watches", [&] { return json(server.watches()); }},
      {"stop", [&] { return ok([&] { server.stop(); }); }},
      {"start", [&] { return ok([&] { server.start(); }); }}};
  const auto found = actions.find(command);
  return found == actions.end() ? json{{"error", "no such command"}} : found->second();
}

int serve(const settings& settings) {
  fake_kube_api server(settings.options);
  if (!settings.directory.empty()) {
    write_access(server, settings);
  }
  std::cout << "serving " << server.url() << std::endl;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    const std::size_t blank = std::min(line.find(' '), line.size());
    json answer;
    try {
      answer = execute(server,
                       line.substr(0, blank),
                       blank < line.size() ? line.substr(blank + 1) : std::string());
    } catch (const std::exception& failure) {
      answer = {{"error", failure.what()}};
    }
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return serve(settings_of({argv + 1, argv + argc}));
  } catch (const std::exception& failure) {
    std::cerr << failure.what() << '\n';
    return 2;
  }
}
