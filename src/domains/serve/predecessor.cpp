// SPDX-License-Identifier: Apache-2.0
#include "domains/serve/predecessor.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>
#include <vector>

#include "base/report/log.hpp"
#include "succession/descriptor_store/inherited_descriptors.hpp"
#include "succession/recorder/descriptor_shelf.hpp"

namespace gpushm::domains {

namespace {

using succession::descriptor_shelf;
using succession::takeover_state;

constexpr std::chrono::milliseconds keeper_timeout{5'000};

}  // namespace

std::map<std::string, succession::takeover_state> take_predecessor(
    keeper::descriptor_store& store) {
  auto inherited = keeper::take_inherited_descriptors();
  std::vector<std::string> names(inherited.size());
  std::transform(inherited.begin(), inherited.end(), names.begin(), [](const auto& each) {
    return each.name;
  });
  std::map<std::string, succession::takeover_state> result;
  auto inheritances = succession::read_takeover_states(std::move(inherited));
  for (auto& [short_name, inheritance] : inheritances) {
    if (inheritance) {
      result.emplace(short_name, std::move(*inheritance));
    }
  }
  std::set<std::string> lost;
  for (const std::string& name : names) {
    const auto label = succession::descriptor_shelf::parse(name);
    if (!label || result.count(label->domain) == 0) {
      lost.insert(label ? label->domain : name);
      store.remove(name, keeper_timeout);
    } else if (label->is_journal && label->number != result.at(label->domain).log.sequence()) {
      store.remove(name, keeper_timeout);
    }
  }
  store.barrier(keeper_timeout);
  if (!lost.empty()) {
    base::log(log_level::error,
              "domains of which nothing can be continued (their clients connect again): " +
                  std::to_string(lost.size()));
  }
  return result;
}

}  // namespace gpushm::domains
