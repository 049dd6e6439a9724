// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/server/socket_name.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>

#include "base/process/process.hpp"
#include "base/text/hex.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/kubelet_api/unix_path.hpp"

namespace gpushm::device_plugin {

namespace {

constexpr std::size_t random_byte_count = 4;

std::string unique_number() {
  static std::atomic<unsigned> next{0};
  const auto process = base::this_process();
  std::string text;
  for (std::size_t at = 0; at < random_byte_count; ++at) {
    base::append_hex(text, process.epoch.at(at));
  }
  return text.append(std::to_string(next.fetch_add(1)));
}

}  // namespace

std::string unique_socket_name(std::string_view directory,
                               std::string_view prefix,
                               std::string_view resource) {
  const std::string end = fmt::format("-{}-{}.sock", ::getpid(), unique_number());
  const std::size_t fixed = directory.size() + 1 + prefix.size() + 1 + end.size();
  if (fixed >= kubelet::max_socket_path_bytes) {
    throw error(errc::invalid_argument,
                "serve",
                resource,
                fmt::format("a socket in {} would have a path of more than {} bytes",
                            directory,
                            kubelet::max_socket_path_bytes),
                "use a directory with a shorter path");
  }
  std::string middle(resource.substr(0, kubelet::max_socket_path_bytes - fixed));
  std::replace_if(
      middle.begin(),
      middle.end(),
      [](unsigned char letter) {
        return std::isalnum(letter) == 0 && letter != '.' && letter != '-';
      },
      '_');
  return fmt::format("{}-{}{}", prefix, middle, end);
}

}  // namespace gpushm::device_plugin
