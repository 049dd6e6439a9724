// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/api_client/resource_path.hpp"

#include <fmt/core.h>

#include "base/text/text.hpp"

namespace gpushm::api_client {

std::string query_escaped(std::string_view text) {
  constexpr std::string_view plain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~";
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    if (plain.find(c) != std::string_view::npos) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += digits[byte >> 4U];
      out += digits[byte & 0xfU];
    }
  }
  return out;
}

std::string permission_advice(std::string_view verb, std::string_view path) {
  auto words = base::split(path, "/");
  const bool core = !words.empty() && words[0] == "api";
  const std::size_t skipped = core ? 2 : 3;
  if (words.size() <= skipped || (!core && words[0] != "apis")) {
    return "grant this identity the permission (a Role or ClusterRole, and its binding)";
  }
  const std::string_view group = core ? std::string_view() : words[1];
  words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(skipped));
  std::string space;
  if (words.size() > 2 && words[0] == "namespaces") {
    space = words[1];
    words.erase(words.begin(), words.begin() + 2);
  }
  std::string resource(words[0]);
  if (words.size() > 2) {
    resource.append("/").append(words[2]);
  }
  return fmt::format(R"(grant it: a {} with apiGroups ["{}"], resources ["{}"], verbs ["{}"]{}{})",
                     space.empty() ? "ClusterRole" : "Role or ClusterRole",
                     group,
                     resource,
                     verb,
                     space.empty() ? "" : " bound in namespace ",
                     space);
}

}  // namespace gpushm::api_client
