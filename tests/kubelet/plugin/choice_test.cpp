// SPDX-License-Identifier: Apache-2.0
// Preferred allocation: properties of every choice, and comparison with the best of all choices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "kubernetes/device_plugin/plan/plan.hpp"
#include "kubernetes/device_plugin/resources/gpu_choice.hpp"
#include "kubernetes/device_plugin/resources/replica_choice.hpp"
#include "tests/kubelet/plugin/world.hpp"

namespace gpushm::device_plugin {
namespace {

using namespace gpushm_tests;
using ::testing::ElementsAre;
using places = std::vector<std::size_t>;

/// Two islands of four GPUs connected by NVLink, as on machines with NVLink bridges.
inventory two_islands() {
  inventory inventory = whole_gpus(8);
  for (std::size_t a = 0; a < 8; ++a) {
    for (std::size_t b = 0; b < 8; ++b) {
      inventory.closeness[a][b] = a == b ? 0 : a / 4 == b / 4 ? 420 : 10;
    }
  }
  return inventory;
}

planned plan_of(const inventory& inventory,
                const std::string& text = "",
                replica_policy policy = replica_policy::distributed) {
  configuration settings = parse_configuration(text, "config");
  settings.flags.device_list = {device_list_strategy::envvar};
  if (settings.flags.mig == std::nullopt) {
    settings.flags.mig = mig_strategy::mixed;
  }
  plan_options options;
  options.share_replicas = 0;
  options.policy = policy;
  return make_plan(settings, options, inventory);
}

std::vector<std::string> gpus_of(std::initializer_list<unsigned int> indices) {
  std::vector<std::string> ids;
  for (const unsigned int each : indices) {
    ids.push_back(uuid_of_gpu(each));
  }
  return ids;
}

TEST(plugin_choice, linked_gpus_are_chosen_together) {
  const planned plan = plan_of(two_islands());
  const resource& gpus = *plan.resources[0];
  EXPECT_EQ(gpus.prefer(gpus_of({0, 1, 4, 5, 6, 7}), {}, 4), gpus_of({4, 5, 6, 7}));
  EXPECT_EQ(gpus.prefer(gpus_of({0, 1, 2, 4, 5, 6}), gpus_of({5}), 3), gpus_of({4, 5, 6}));
  EXPECT_EQ(gpus.prefer(gpus_of({7, 3, 2}), gpus_of({2}), 2), gpus_of({2, 3}));
}

TEST(plugin_choice, single_gpu_is_taken_from_fragmented_island) {
  const planned plan = plan_of(two_islands());
  // The second island is whole.
  EXPECT_EQ(plan.resources[0]->prefer(gpus_of({4, 5, 6, 7, 2}), {}, 1), gpus_of({2}));
  EXPECT_EQ(plan.resources[0]->prefer(gpus_of({1, 4, 5, 2, 6, 7}), {}, 2), gpus_of({1, 2}));
}

TEST(plugin_choice, numa_node_breaks_link_ties) {
  inventory inventory = whole_gpus(4);  // GPUs 0 and 2 on node 0, 1 and 3 on node 1
  for (std::size_t a = 0; a < 4; ++a) {
    for (std::size_t b = 0; b < 4; ++b) {
      inventory.closeness[a][b] = a == b ? 0 : a % 2 == b % 2 ? 1820 : 1810;
    }
  }
  const planned plan = plan_of(inventory);
  EXPECT_EQ(plan.resources[0]->prefer(gpus_of({0, 1, 3}), {}, 2), gpus_of({1, 3}));
  EXPECT_EQ(plan.resources[0]->prefer(gpus_of({0, 1, 2}), {}, 2), gpus_of({0, 2}));
}

TEST(plugin_choice, replicas_are_distributed_or_packed) {
  const std::string text = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 3}]}}";
  const std::string a = uuid_of_gpu(0);
  const std::string b = uuid_of_gpu(1);
  // One replica of a is in use.
  const std::vector<std::string> available{a + "::1", a + "::2", b + "::0", b + "::1", b + "::2"};
  const planned spread = plan_of(whole_gpus(2), text);
  EXPECT_THAT(spread.resources[0]->prefer(available, {}, 1), ElementsAre(b + "::0"));
  EXPECT_THAT(spread.resources[0]->prefer(available, {}, 3),
              ElementsAre(a + "::1", b + "::0", b + "::1"));
  // Replicas that must be included count as in use.
  EXPECT_THAT(spread.resources[0]->prefer(available, std::vector{b + "::2", b + "::1"}, 3),
              ElementsAre(a + "::1", b + "::1", b + "::2"));
  const planned packed = plan_of(whole_gpus(2), text, replica_policy::packed);
  EXPECT_THAT(packed.resources[0]->prefer(available, {}, 1), ElementsAre(a + "::1"));
  EXPECT_THAT(packed.resources[0]->prefer(available, {}, 3),
              ElementsAre(a + "::1", a + "::2", b + "::0"));
}

TEST(plugin_choice, instances_are_distributed_or_packed) {
  const inventory inventory =
      make_inventory({make_gpu(0, {"1g.5gb", "1g.5gb"}), make_gpu(1, {"1g.5gb", "1g.5gb"})});
  const auto all = ids_of(*plan_of(inventory).resources[0]);
  EXPECT_THAT(plan_of(inventory).resources[0]->prefer(all, {}, 2),
              ElementsAre(uuid_of_instance(0, 0), uuid_of_instance(1, 0)));
  EXPECT_THAT(plan_of(inventory, "", replica_policy::packed).resources[0]->prefer(all, {}, 2),
              ElementsAre(uuid_of_instance(0, 0), uuid_of_instance(0, 1)));
}

TEST(plugin_choice, invalid_requests_are_rejected) {
  const planned plan = plan_of(whole_gpus(4));
  const resource& gpus = *plan.resources[0];
  const auto rejection = [&](const std::vector<std::string>& available,
                             const std::vector<std::string>& must,
                             std::size_t count) {
    return what([&] { static_cast<void>(gpus.prefer(available, must, count)); });
  };
  const std::string start = "choose devices \"nvidia.com/gpu\": ";
  EXPECT_EQ(
      rejection(gpus_of({0, 1}), {}, 3),
      start + "3 devices requested, 0 of them required, and only 2 other healthy ones available");
  EXPECT_EQ(
      rejection(gpus_of({0, 1}), gpus_of({0, 1}), 1),
      start + "1 devices requested, 2 of them required, and only 0 other healthy ones available");
  EXPECT_EQ(rejection(gpus_of({0, 1}), gpus_of({2}), 1),
            start + "device \"" + uuid_of_gpu(2) +
                "\" must be included but is not available (name it among the available ones)");
  EXPECT_EQ(rejection(gpus_of({0, 1}), {"GPU-x"}, 1),
            start +
                "there is no device \"GPU-x\" (the kubelet's list of devices is stale; the plugin "
                "sends the current one"
                ")");
  plan.set_health(uuid_of_gpu(0), false, "Xid 79");
  EXPECT_EQ(
      rejection(gpus_of({0, 1}), {}, 2),
      start + "2 devices requested, 0 of them required, and only 1 other healthy ones available");
  EXPECT_EQ(rejection(gpus_of({0, 1}), gpus_of({0}), 2),
            start + "device \"" + uuid_of_gpu(0) +
                "\" is unhealthy: Xid 79 (the kubelet's list of devices is stale; the plugin sends "
                "the current one"
                ")");
  EXPECT_EQ(gpus.prefer(gpus_of({0, 1}), {}, 0), std::vector<std::string>{});
  // Unknown and duplicate ids are ignored.
  EXPECT_EQ(gpus.prefer(std::vector<std::string>{"x", uuid_of_gpu(3), uuid_of_gpu(3)}, {}, 1),
            gpus_of({3}));
}

// ---- properties ----

class plugin_choice_property : public ::testing::TestWithParam<unsigned int> {
 protected:
  std::mt19937 random_{GetParam()};  // NOLINT(cert-msc51-cpp): the same numbers in each run
  std::size_t up_to(std::size_t max) {
    return std::uniform_int_distribution<std::size_t>(0, max)(random_);
  }
};

TEST_P(plugin_choice_property, every_choice_is_complete_healthy_and_unique) {
  const unsigned int gpus = static_cast<unsigned int>(1 + up_to(6));
  const std::size_t replicas = up_to(5);
  std::vector<gpu_info> gpu_infos;
  for (unsigned int i = 0; i < gpus; ++i) {
    gpu_infos.push_back(up_to(3) == 0 ? make_gpu(i, {"1g.5gb", "1g.5gb", "2g.10gb"}) : make_gpu(i));
  }
  const std::string text = replicas < 2
                               ? ""
                               : "sharing: {timeSlicing: {resources: [{name: gpu, replicas: " +
                                     std::to_string(replicas) +
                                     "}, {name: mig-1g.5gb, devices: 1, replicas: 2}]}}";
  const planned plan =
      plan_of(make_inventory(gpu_infos),
              text,
              up_to(1) == 0 ? replica_policy::packed : replica_policy::distributed);
  for (int round = 0; round < 20; ++round) {
    for (unsigned int i = 0; i < gpus; ++i) {
      plan.set_health(uuid_of_gpu(i), up_to(3) != 0, "by chance");
    }
    for (const auto& each : plan.resources) {
      std::vector<std::string> available;
      std::set<std::string> healthy;
      for (const device& one : each->devices()) {
        if (up_to(4) != 0) {
          available.push_back(one.id);
          if (one.healthy) {
            healthy.insert(one.id);
          }
        }
      }
      std::shuffle(available.begin(), available.end(), random_);
      std::vector<std::string> must;
      for (const std::string& id : healthy) {
        if (up_to(5) == 0) {
          must.push_back(id);
        }
      }
      const std::size_t count = must.size() + up_to(healthy.size() - must.size());
      const auto chosen = each->prefer(available, must, count);
      const std::set<std::string> as_set(chosen.begin(), chosen.end());
      EXPECT_EQ(chosen.size(), count);
      EXPECT_EQ(as_set.size(), count) << "the same device twice";
      EXPECT_TRUE(std::includes(healthy.begin(), healthy.end(), as_set.begin(), as_set.end()));
      for (const std::string& id : must) {
        EXPECT_EQ(as_set.count(id), 1U);
      }
      if (count > 0) {
        EXPECT_EQ(each->allocate(std::vector<std::vector<std::string>>{chosen}).size(), 1U);
      }
    }
  }
}

closeness_table random_table(std::size_t size, std::mt19937& random) {
  closeness_table table(size, std::vector<unsigned int>(size, 0));
  constexpr std::array<unsigned int, 6> values{10, 20, 30, 120, 220, 420};
  for (std::size_t a = 0; a < size; ++a) {
    for (std::size_t b = a + 1; b < size; ++b) {
      table[a][b] = table[b][a] = values[random() % values.size()];
    }
  }
  return table;
}

// Tries every subset, encoded as bits.
choice_score best_of_all(const closeness_table& table,
                         const places& candidates,
                         const places& taken,
                         std::size_t count) {
  std::optional<choice_score> best;
  for (unsigned int bits = 0; bits < (1U << candidates.size()); ++bits) {
    places chosen;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if ((bits & (1U << i)) != 0) {
        chosen.push_back(candidates[i]);
      }
    }
    if (chosen.size() != count) {
      continue;
    }
    const choice_score score = score_of(table, chosen, candidates, taken);
    if (!best || score.better_than(*best)) {
      best = score;
    }
  }
  return best.value();
}

TEST_P(plugin_choice_property, gpu_choice_is_optimal) {
  for (int round = 0; round < 20; ++round) {
    const std::size_t size = 2 + up_to(8);
    const closeness_table table = random_table(size, random_);
    places candidates;
    places taken;
    for (std::size_t i = 0; i < size; ++i) {
      (up_to(4) == 0 ? taken : candidates).push_back(i);
    }
    const std::size_t count = up_to(candidates.size());
    const places chosen = choose_gpus(table, candidates, taken, count);
    ASSERT_EQ(chosen.size(), count);
    EXPECT_EQ(score_of(table, chosen, candidates, taken),
              best_of_all(table, candidates, taken, count));
  }
}

TEST_P(plugin_choice_property, many_gpus_are_chosen_near_optimally) {
  // There are too many combinations of 12 of 24 to try all; the search must find the islands of
  // four.
  const std::size_t size = 24;
  closeness_table table(size, std::vector<unsigned int>(size, 10));
  places order(size);
  for (std::size_t i = 0; i < size; ++i) {
    order[i] = i;
  }
  std::shuffle(order.begin(), order.end(), random_);
  for (std::size_t a = 0; a < size; ++a) {
    for (std::size_t b = 0; b < size; ++b) {
      table[order[a]][order[b]] = a == b ? 0 : a / 4 == b / 4 ? 420 : 10;
    }
  }
  places candidates(size);
  std::iota(candidates.begin(), candidates.end(), std::size_t{0});
  const places chosen = choose_gpus(table, candidates, {}, 12);
  // Three whole islands: 18 pairs with links, 48 without.
  EXPECT_EQ(score_of(table, chosen, candidates, {}).inside, 18U * 420 + 48U * 10);
  EXPECT_EQ(std::set<std::size_t>(chosen.begin(), chosen.end()).size(), 12U);
}

// Distributed: no other choice leaves the fullest GPU emptier.
TEST_P(plugin_choice_property, distributed_replicas_fill_gpus_evenly) {
  const std::size_t replicas = 6;
  std::vector<device_group> groups(1 + up_to(4));
  std::size_t next = 0;
  std::size_t free_count = 0;
  for (device_group& each : groups) {
    each.total = replicas;
    const std::size_t count = up_to(replicas);
    for (std::size_t i = 0; i < count; ++i) {
      each.candidates.push_back(next++);
    }
    free_count += count;
  }
  const std::size_t count = up_to(free_count);
  const auto fullest = [&](const std::vector<std::size_t>& taken) {
    std::size_t max = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      max = std::max(max,
                     taken[i] == 0 ? 0 : groups[i].total - groups[i].candidates.size() + taken[i]);
    }
    return max;
  };
  const auto chosen = choose_replicas(groups, replica_policy::distributed, count);
  std::vector<std::size_t> taken(groups.size(), 0);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (const std::size_t each : groups[i].candidates) {
      taken[i] += static_cast<std::size_t>(std::count(chosen.begin(), chosen.end(), each));
    }
  }
  // Tries all ways to choose `count` replicas.
  std::size_t best = replicas;
  std::vector<std::size_t> other(groups.size(), 0);
  const std::function<void(std::size_t, std::size_t)> try_all = [&](std::size_t at,
                                                                    std::size_t left) {
    if (at == groups.size()) {
      if (left == 0) {
        best = std::min(best, fullest(other));
      }
      return;
    }
    for (other[at] = 0; other[at] <= std::min(left, groups[at].candidates.size()); ++other[at]) {
      try_all(at + 1, left - other[at]);
    }
  };
  try_all(0, count);
  EXPECT_EQ(fullest(taken), best);
  EXPECT_EQ(std::set<std::size_t>(chosen.begin(), chosen.end()).size(), count);
}

INSTANTIATE_TEST_SUITE_P(seeds, plugin_choice_property, ::testing::Range(1U, 41U));

}  // namespace
}  // namespace gpushm::device_plugin
