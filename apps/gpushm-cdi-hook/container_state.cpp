// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-cdi-hook/container_state.hpp"

#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cdi_hook {

namespace {

constexpr std::size_t max_state_bytes = std::size_t{1} << 20U;
constexpr std::size_t max_config_bytes = std::size_t{16} << 20U;

[[noreturn]] void throw_no_root(std::string_view object, std::string_view cause) {
  throw error(errc::invalid_argument,
              "find the container's root",
              object,
              cause,
              "run hooks from a container engine, which passes the OCI state");
}

std::string text_member(const nlohmann::json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() && found->is_string()
             ? found->get<std::string>()
             : std::string();
}

}  // namespace

std::string read_state() {
  std::string text(max_state_bytes, '\0');
  std::size_t used = 0;
  while (used < text.size()) {
    const auto got = base::checked("read the container's state", {}, "read", [&] {
      return ::read(STDIN_FILENO, text.data() + used, text.size() - used);
    });
    if (got == 0) {
      break;
    }
    used += static_cast<std::size_t>(got);
  }
  text.resize(used);
  return text;
}

std::string root_of_container(std::string_view state) {
  const std::string bundle = text_member(nlohmann::json::parse(state, nullptr, false), "bundle");
  if (!bundle.starts_with('/')) {
    throw_no_root({}, "standard input is not the state of a container with an absolute bundle");
  }
  const std::string path = std::string(bundle).append("/config.json");
  const auto config = base::read_small_file(path, max_config_bytes + 1);
  if (!config) {
    throw_no_root(path, std::generic_category().message(errno));
  }
  if (config->size() > max_config_bytes) {
    throw_no_root(path, "it is larger than 16 MiB");
  }
  const nlohmann::json parsed = nlohmann::json::parse(*config, nullptr, false);
  const bool has_root = parsed.is_object() && parsed.contains("root");
  std::string root = has_root ? text_member(parsed.at("root"), "path") : std::string();
  if (root.empty()) {
    throw_no_root(path, "root.path is missing");
  }
  if (root.front() != '/') {
    root = std::string(bundle).append("/").append(root);
  }
  if (root.find_first_not_of('/') == std::string::npos) {
    throw_no_root(path, "root.path is the host's root directory");
  }
  return root;
}

}  // namespace gpushm::cdi_hook
