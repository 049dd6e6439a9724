// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/node/pod_names.hpp"

#include <cstddef>
#include <vector>

#include "apps/gpushm/input_file.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

constexpr const char* operation = "read the names of pods";
/// Suffices for 100,000 pods.
constexpr std::size_t max_bytes = 16UL << 20U;

}  // namespace

pod_names::pod_names(const std::string& file) {
  const std::string text =
      read_input(operation, file, max_bytes, "pass the pods of this node only (--field-selector)");
  std::size_t line = 0;
  for (const std::string_view each : base::lines_of(text)) {
    ++line;
    const std::vector<std::string_view> words = base::split(each, " \t\r");
    if (words.size() != 3) {
      throw error(errc::invalid_file,
                  operation,
                  file,
                  "line " + std::to_string(line) + " is not a uid, a namespace and a name",
                  "pass what `kubectl get pods -A -o custom-columns=UID:.metadata.uid,"
                  "NS:.metadata.namespace,NAME:.metadata.name` prints");
    }
    by_principal_["pod " + std::string(words[0])] =
        std::string(words[1]) + '/' + std::string(words[2]);
  }
}

std::string_view pod_names::name_of(std::string_view principal) const {
  const auto at = by_principal_.find(principal);
  return at == by_principal_.end() ? std::string_view() : std::string_view(at->second);
}

std::string pod_names::text_of(std::string_view principal) const {
  const std::string_view name = name_of(principal);
  return name.empty() ? std::string(principal) : "pod " + std::string(name);
}

}  // namespace gpushm::cli
