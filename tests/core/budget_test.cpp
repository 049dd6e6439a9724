// SPDX-License-Identifier: Apache-2.0
#include "core/budget.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/core/world.hpp"

namespace gpushm::core {
namespace {

using testing::HasSubstr;
using testing_world::error_of;

constexpr std::uint64_t mib = 1024 * 1024;

budget::amounts only(resource resource, std::uint64_t amount) {
  budget::amounts result{};
  result[static_cast<std::size_t>(resource)] = amount;
  return result;
}

/// Lets each take in turn until none gets more.
std::vector<std::uint64_t> grow(budget& budget,
                                const std::vector<std::shared_ptr<account>>& accounts,
                                resource resource,
                                std::uint64_t step) {
  for (bool any = true; any;) {
    any = false;
    for (const auto& each : accounts) {
      any = budget.try_take(*each, resource, step) || any;
    }
  }
  std::vector<std::uint64_t> result;
  for (const auto& each : accounts) {
    result.push_back(each->used(resource));
  }
  return result;
}

void release_all(budget& budget,
                 const std::vector<std::shared_ptr<account>>& accounts,
                 resource resource) {
  for (const auto& each : accounts) {
    budget.release(*each, resource, each->used(resource));
  }
  EXPECT_EQ(budget.used(resource), 0U);
}

TEST(core_budget, one_gets_nearly_all_and_several_get_equal_shares) {
  for (const resource resource : {resource::memory_bytes,
                                  resource::descriptors,
                                  resource::connections,
                                  resource::subscriptions,
                                  resource::waiting_opens}) {
    const std::uint64_t total = 64 * mib;
    budget whole(only(resource, total), nullptr);
    for (std::size_t n = 1; n <= 5; ++n) {
      std::vector<std::shared_ptr<account>> each_charged;
      for (std::size_t i = 0; i < n; ++i) {
        each_charged.push_back(whole.account_of({"uid " + std::to_string(i), true}));
      }
      const auto got = grow(whole, each_charged, resource, total / 4096);
      const double open = static_cast<double>(total) * 31 / 32;  // without the operator's part
      const double expected = open * 8 / (8 * static_cast<double>(n) + 1);
      for (const std::uint64_t each : got) {
        EXPECT_NEAR(static_cast<double>(each), expected, static_cast<double>(total) / 20)
            << n << " members of resource " << static_cast<int>(resource);
      }
      release_all(whole, each_charged, resource);
    }
  }
}

TEST(core_budget, new_principal_gets_something_from_a_full_budget) {
  budget whole(only(resource::descriptors, 10'000), nullptr);
  const auto first = whole.account_of({"uid 1", true});
  grow(whole, {first}, resource::descriptors, 1);
  const auto second = whole.account_of({"uid 2", true});
  const auto got = grow(whole, {second}, resource::descriptors, 1);
  EXPECT_GT(got[0], 800U);
  EXPECT_FALSE(whole.try_take(*first, resource::descriptors, 1));
  release_all(whole, {first, second}, resource::descriptors);
}

TEST(core_budget, taking_everything_in_one_request_is_refused) {
  budget whole(only(resource::descriptors, 10'000), nullptr);
  const auto who = whole.account_of({"uid 1", true});
  EXPECT_FALSE(whole.try_take(*who, resource::descriptors, 10'000));
  EXPECT_FALSE(whole.try_take(*who, resource::descriptors, 9'900));
  EXPECT_TRUE(whole.try_take(*who, resource::descriptors, 8'000));
  EXPECT_FALSE(whole.try_take(*who, resource::descriptors, ~std::uint64_t{0}));
  release_all(whole, {who}, resource::descriptors);
}

TEST(core_budget, unidentified_processes_share_one_bucket) {
  budget whole(only(resource::connections, 4096), nullptr);
  std::vector<std::shared_ptr<account>> forked;
  for (int i = 0; i < 50; ++i) {
    forked.push_back(whole.account_of({"process " + std::to_string(i), false}));
  }
  const auto honest = whole.account_of({"uid 7", true});
  forked.push_back(honest);
  const auto got = grow(whole, forked, resource::connections, 1);
  const std::uint64_t together = whole.used(resource::connections) - got.back();
  // About half each, regardless of the number of forks.
  EXPECT_GT(got.back(), 4096U * 4 / 10);
  EXPECT_LE(together, 4096U / 2 + 50);
  release_all(whole, forked, resource::connections);
}

TEST(core_budget, operator_gets_its_part_of_a_full_budget) {
  budget whole(only(resource::connections, 4096), nullptr);
  std::vector<std::shared_ptr<account>> each_charged;
  for (int i = 0; i < 300; ++i) {
    each_charged.push_back(whole.account_of({"uid " + std::to_string(i), true}));
  }
  grow(whole, each_charged, resource::connections, 1);
  const auto root = whole.account_of({"uid 0", true});
  EXPECT_FALSE(whole.try_take(*root, resource::connections, 1));
  EXPECT_TRUE(whole.try_take(*root, resource::connections, 1, true));
  each_charged.push_back(root);
  release_all(whole, each_charged, resource::connections);
}

TEST(core_budget, single_member_may_use_the_whole_quota) {
  budget whole(only(resource::host_bytes, 1000), nullptr);
  const auto who = whole.account_of({"uid 1", true});
  EXPECT_TRUE(whole.try_take(*who, resource::host_bytes, 1000));
  whole.release(*who, resource::host_bytes, 1000);
  const auto other = whole.account_of({"uid 2", true});
  EXPECT_TRUE(whole.try_take(*other, resource::host_bytes, 100));
  EXPECT_FALSE(whole.try_take(*who, resource::host_bytes, 900));
  EXPECT_TRUE(whole.try_take(*who, resource::host_bytes, 400));
  whole.release(*who, resource::host_bytes, 400);
  whole.release(*other, resource::host_bytes, 100);
}

/// Charges of an account that hold bytes of one GPU.
charges on_gpu(budget& budget,
               const std::shared_ptr<account>& account,
               std::string_view gpu,
               std::uint64_t amount) {
  charges result(budget, account, false);
  result.take_on(gpu, amount);
  return result;
}

budget::amounts memory_of(std::uint64_t amount) {
  budget::amounts result = only(resource::host_bytes, amount);
  result[static_cast<std::size_t>(resource::gpu_bytes)] = amount;
  return result;
}

TEST(core_budget, each_gpu_and_the_host_have_their_own_capacity) {
  budget whole(memory_of(1000), nullptr);
  const auto who = whole.account_of({"uid 1", true});
  EXPECT_TRUE(whole.try_take(*who, resource::host_bytes, 1000));
  {
    const charges first = on_gpu(whole, who, "GPU-a", 1000);
    const charges second = on_gpu(whole, who, "GPU-b", 600);
    EXPECT_EQ(whole.used(resource::gpu_bytes), 1600U);
    EXPECT_EQ(whole.used_on("GPU-a"), 1000U);
    EXPECT_EQ(whole.used_on("GPU-b"), 600U);
    errc code{};
    EXPECT_EQ(error_of([&] { on_gpu(whole, who, "GPU-b", 401); }, &code),
              "no room for 401 B more segment memory of GPU-b: 600 B of 1000 B are in use in this "
              "domain (remove segments that are not used, or raise the broker's quota)");
    EXPECT_EQ(code, errc::quota_exceeded);
  }
  EXPECT_EQ(whole.used_on("GPU-a"), 0U);
  EXPECT_EQ(whole.used(resource::gpu_bytes), 0U);
  release_all(whole, {who}, resource::host_bytes);
}

TEST(core_budget, members_share_each_gpu_separately) {
  budget whole(memory_of(1000), nullptr);
  const auto one = whole.account_of({"uid 1", true});
  const auto other = whole.account_of({"uid 2", true});
  const charges first = on_gpu(whole, one, "GPU-a", 900);
  const charges second = on_gpu(whole, other, "GPU-b", 900);
  EXPECT_EQ(error_of([&] { on_gpu(whole, other, "GPU-a", 100); }),
            "no room for 100 B more segment memory of GPU-a: uid 2 holds 0 B, all members 900 B of "
            "1000 B, and the rest is reserved for other members (remove segments that are not "
            "used, or raise the broker's quota)");
  const charges third = on_gpu(whole, other, "GPU-a", 50);
  EXPECT_EQ(whole.used_on("GPU-a"), 950U);
}

TEST(core_budget, number_of_gpus_is_limited_to_those_in_use) {
  budget whole(memory_of(0), nullptr);
  const auto who = whole.account_of({"uid 1", true});
  std::vector<charges> each_charged;
  for (std::uint32_t i = 0; i < max_gpus; ++i) {
    each_charged.push_back(on_gpu(whole, who, "GPU-" + std::to_string(i), 1));
  }
  EXPECT_EQ(error_of([&] { on_gpu(whole, who, "GPU-other", 1); }),
            "this domain has segments on 128 GPUs, the limit (remove segments that are not used)");
  charges restored(whole, who, false);
  restored.charge_on("GPU-older", 5);  // of a predecessor
  EXPECT_EQ(whole.used_on("GPU-older"), 5U);
  each_charged[3].reset();
  each_charged[3] = on_gpu(whole, who, "GPU-other", 7);
  EXPECT_EQ(whole.used_on("GPU-3"), 0U);
  EXPECT_EQ(whole.used_on("GPU-other"), 7U);
  each_charged.clear();
  restored.reset();
  EXPECT_EQ(whole.used(resource::gpu_bytes), 0U);
}

TEST(core_budget, quota_of_a_uid_applies_in_all_of_its_containers) {
  budget whole({}, nullptr);
  whole.set_quotas({.domain = {.host_bytes = 2000},
                    .principal = {.host_bytes = 600},
                    .uids = {{7, {.host_bytes = 1000, .gpu_bytes = 10}}}});
  const auto one = whole.account_of({"container 1", true}, 7);
  const auto same_container = whole.account_of({"container 1", true}, 8);
  const auto two = whole.account_of({"container 2", true}, 7);
  EXPECT_TRUE(whole.try_take(*one, resource::host_bytes, 500));
  EXPECT_TRUE(whole.try_take(*two, resource::host_bytes, 450));
  const auto refused = whole.take(*two, resource::host_bytes, 51);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code(), errc::quota_exceeded);
  EXPECT_EQ(refused->cause(),
            "51 B do not fit into the quota of uid 7 in all pods and containers of this domain: "
            "950 B of 1000 B are in use");
  EXPECT_THROW(on_gpu(whole, two, "GPU-a", 11), error);
  EXPECT_FALSE(whole.try_take(*same_container, resource::host_bytes, 101)) << "of the container";
  EXPECT_TRUE(whole.try_take(*same_container, resource::host_bytes, 100));
  whole.release(*same_container, resource::host_bytes, 100);
  whole.release(*one, resource::host_bytes, 500);
  EXPECT_TRUE(whole.try_take(*two, resource::host_bytes, 51));
  whole.release(*two, resource::host_bytes, 501);
  EXPECT_EQ(whole.used(resource::host_bytes), 0U);
}

TEST(core_budget, processes_that_are_not_vouched_for_share_one_quota) {
  budget whole({}, nullptr);
  whole.set_quotas({.principal = {.host_bytes = 1000}});
  const auto one = whole.account_of({"process 1", false});
  const auto forked = whole.account_of({"process 2", false});
  EXPECT_TRUE(whole.try_take(*one, resource::host_bytes, 600));
  const auto refused = whole.take(*forked, resource::host_bytes, 401);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->cause(),
            "401 B do not fit into the quota of unidentified processes: 600 B of 1000 B are in "
            "use");
  EXPECT_TRUE(whole.try_take(*forked, resource::host_bytes, 400));
  release_all(whole, {one, forked}, resource::host_bytes);
}

TEST(core_budget, lower_quota_takes_nothing_away) {
  budget whole({}, nullptr);
  const auto who = whole.account_of({"uid 1", true}, 1);
  charges gpu = on_gpu(whole, who, "GPU-a", 700);
  EXPECT_TRUE(whole.try_take(*who, resource::host_bytes, 700));
  for (const quotas& lower : {quotas{.domain = {500, 500}},
                              quotas{.principal = {500, 500}},
                              quotas{.uids = {{1, {500, 500}}}}}) {
    whole.set_quotas(lower);
    EXPECT_EQ(whole.given_quotas(), lower);
    EXPECT_EQ(who->used(resource::host_bytes), 700U);
    EXPECT_EQ(whole.used_on("GPU-a"), 700U);
    EXPECT_FALSE(whole.try_take(*who, resource::host_bytes, 1));
    EXPECT_THROW(on_gpu(whole, who, "GPU-a", 1), error);
    EXPECT_NO_THROW(on_gpu(whole, who, "GPU-b", 500));
    whole.release(*who, resource::host_bytes, 300);
    EXPECT_TRUE(whole.try_take(*who, resource::host_bytes, 100));
    EXPECT_FALSE(whole.try_take(*who, resource::host_bytes, 1));
    whole.set_quotas({});
    EXPECT_TRUE(whole.try_take(*who, resource::host_bytes, 200));
  }
  gpu.reset();
  release_all(whole, {who}, resource::host_bytes);
}

TEST(core_budget, refusals_report_usage) {
  budget whole(only(resource::descriptors, 1000), nullptr);
  const auto who = whole.account_of({"uid 1", true});
  const auto share = whole.take(*who, resource::descriptors, 900);
  ASSERT_TRUE(share);
  EXPECT_EQ(share->code(), errc::share_exceeded);
  EXPECT_EQ(share->cause(),
            "no room for 900 more descriptors: uid 1 holds 0, all members 0 of 1000, and the rest "
            "is reserved for other members");
  const auto refusal = whole.take(*who, resource::descriptors, 1001);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->code(), errc::too_many_descriptors);
  EXPECT_EQ(refusal->cause(),
            "no room for 1001 more descriptors: 0 of 1000 are in use in this domain");
  EXPECT_THAT(refusal->next_step(), HasSubstr("raise the broker's open file limit"));
  EXPECT_EQ(whole.used(resource::descriptors), 0U);
}

TEST(core_budget, account_is_destroyed_with_its_last_user) {
  budget whole({}, nullptr);
  {
    const auto one = whole.account_of({"process 1", false});
    const auto same = whole.account_of({"process 1", false});
    EXPECT_EQ(one, same);
    EXPECT_EQ(whole.node_count(), 2U);  // and the bucket
  }
  EXPECT_EQ(whole.node_count(), 0U);
}

TEST(core_budget, moved_charges_are_released_once) {
  budget whole(only(resource::memory_bytes, 64 * mib), nullptr);
  const auto who = whole.account_of({"uid 1", true});
  {
    charges first(whole, who, false);
    first.take(resource::memory_bytes, 100);
    charges second(std::move(first));
    first = charges(whole, who, false);
    first.charge(resource::memory_bytes, 7);
    second = std::move(first);
    EXPECT_EQ(who->used(resource::memory_bytes), 7U);
    second.release(resource::memory_bytes, 3);
    EXPECT_EQ(second.held(resource::memory_bytes), 4U);
  }
  EXPECT_EQ(who->used(resource::memory_bytes), 0U);
}

TEST(core_budget, full_domain_leaves_room_for_other_domains) {
  const auto process = std::make_shared<process_budget>(256 * mib, 10'000);
  std::vector<std::unique_ptr<budget>> domains;
  std::vector<std::shared_ptr<account>> members;
  for (int i = 0; i < 5; ++i) {
    domains.push_back(std::make_unique<budget>(only(resource::memory_bytes, 256 * mib), process));
    members.push_back(domains.back()->account_of({"uid 1", true}));
  }
  for (int i = 0; i < 4; ++i) {  // each takes as much as it gets
    while (domains[static_cast<std::size_t>(i)]->try_take(
        *members[static_cast<std::size_t>(i)], resource::memory_bytes, 4096)) {
    }
  }
  EXPECT_LT(process->used(resource::memory_bytes), 256 * mib);
  EXPECT_TRUE(domains[4]->try_take(*members[4], resource::memory_bytes, 16 * 1024));
  for (std::size_t i = 0; i < 5; ++i) {
    domains[i]->release(
        *members[i], resource::memory_bytes, members[i]->used(resource::memory_bytes));
  }
  EXPECT_EQ(process->used(resource::memory_bytes), 0U);
  members.clear();
}

/// Whatever the rule of the process grants its domain.
TEST(core_budget, principal_leaves_room_in_the_share_of_its_domain) {
  const auto process = std::make_shared<process_budget>(0, 1'000);
  budget first(only(resource::descriptors, 1'000), process);
  budget second(only(resource::descriptors, 1'000), process);
  const auto greedy = first.account_of({"uid 1", true});
  const auto other = first.account_of({"uid 2", true});
  const auto neighbour = second.account_of({"uid 1", true});
  while (first.try_take(*greedy, resource::descriptors, 1)) {
  }
  EXPECT_GE(greedy->used(resource::descriptors), 350U);
  EXPECT_TRUE(first.try_take(*other, resource::descriptors, 4));
  EXPECT_TRUE(second.try_take(*neighbour, resource::descriptors, 100));
  first.release(*greedy, resource::descriptors, greedy->used(resource::descriptors));
  first.release(*other, resource::descriptors, 4);
  second.release(*neighbour, resource::descriptors, 100);
  EXPECT_EQ(process->used(resource::descriptors), 0U);
}

TEST(core_budget, concurrent_domains_never_exceed_the_process_budget) {
  const auto process = std::make_shared<process_budget>(0, 10'000);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      budget own(only(resource::descriptors, 10'000), process);
      const auto who = own.account_of({"uid 1", true});
      for (int round = 0; round < 20'000; ++round) {
        if (own.try_take(*who, resource::descriptors, 17)) {
          EXPECT_LE(process->used(resource::descriptors), 10'000U);
          if (round % 3 != 0) {
            own.release(*who, resource::descriptors, 17);
          }
        }
      }
      own.release(*who, resource::descriptors, who->used(resource::descriptors));
    });
  }
  threads.clear();
  EXPECT_EQ(process->used(resource::descriptors), 0U);
}

// ---- use by the domain ----

using namespace testing_world;

constexpr std::uint32_t broker_uid = 42;

class core_share : public testing::Test {
 protected:
  explicit core_share(const limits& bounds = naming_limits)
      : domain_("default", broker_uid, bounds) {}

  session_id join(std::uint32_t uid, std::int32_t pid = 100) {
    domain_.connect(++last_session_, {pid, uid, true});
    return last_session_;
  }
  gpushm::generation make(session_id session,
                          const std::string& name,
                          lifetime kept = lifetime::leased) {
    const auto created = domain_.reserve(session, host_segment(name, 4096, kept)).generation;
    domain_.attach(session, created, 0, 1);
    domain_.publish(session, created, {});
    return created;
  }
  void open(session_id session,
            const std::string& name,
            std::optional<time_point> deadline = std::nullopt) {
    domain_.open(session, {++request_, 0, name, 0, deadline, at_ms(0)});
  }
  void expect_nothing_left() {
    for (session_id session = 1; session <= last_session_; ++session) {
      domain_.disconnect(session, true);
    }
    seen_.settle();
    while (domain_.work()) {
      seen_.settle();
    }
    for (std::size_t i = 0; i < resource_count; ++i) {
      EXPECT_EQ(domain_.budget().used(static_cast<resource>(i)), 0U) << "resource " << i;
    }
    EXPECT_EQ(domain_.budget().node_count(), 0U);
    EXPECT_EQ(domain_.segment_count(), 0U);
    EXPECT_EQ(domain_.lease_count(), 0U);
    EXPECT_EQ(domain_.waiting_count(), 0U);
  }

  domain domain_;
  recorder seen_{domain_};
  session_id last_session_ = 0;
  std::uint64_t request_ = 0;
};

TEST_F(core_share, open_questions_to_an_exporter_are_limited) {
  const session_id exporter = join(1);
  reservation legacy = host_segment("w");
  legacy.backend = backend::cuda_ipc;
  legacy.device.kind = device_kind::gpu;
  legacy.chunk_count = 0;
  legacy.ticket.assign(8, std::byte{1});
  const auto created = domain_.reserve(exporter, legacy).generation;
  domain_.publish(exporter, created, {});
  const session_id importer = join(2);
  for (int i = 0; i < 640; ++i) {
    open(importer, "w");
  }
  const std::size_t most = domain_.bounds().max_confirmations;
  EXPECT_EQ(seen_.questions().size(), most);
  // Timed-out questions to a stopped exporter are not replaced by new ones.
  while (domain_.next_deadline()) {
    domain_.at(at_ms(60'000)).tick();
  }
  EXPECT_EQ(seen_.replies().size(), 640U);
  open(importer, "w");
  EXPECT_EQ(seen_.questions().size(), most);
  // Each reply, even a late one, makes room for a question.
  for (std::size_t i = 0; i < seen_.questions().size(); ++i) {
    domain_.confirmed(exporter, seen_.questions()[i].confirmation, verdict::unchanged);
    domain_.send_questions(exporter);
  }
  EXPECT_EQ(seen_.questions().size(), most + 1);
  EXPECT_EQ(seen_.replies().back().generation, created);
  expect_nothing_left();
}

TEST_F(core_share, many_leases_of_a_dead_session_end_in_turns) {
  const session_id watcher = join(1);
  domain_.subscribe(watcher, 1, "");
  const session_id dying = join(2);
  for (int i = 0; i < 2'000; ++i) {
    make(dying, "s/" + std::to_string(i));
    seen_.settle();
  }
  seen_.notices().clear();
  domain_.disconnect(dying, false);
  EXPECT_GT(domain_.segment_count(), 1'000U);
  EXPECT_LT(domain_.segment_count(), 2'000U);
  int turns = 0;
  seen_.settle();
  while (domain_.work()) {
    seen_.settle();
    ++turns;
    // Other sessions are served meanwhile.
    const auto created = make(watcher, "between");
    domain_.release(watcher, created, 1);
  }
  EXPECT_GE(turns, 5);
  EXPECT_EQ(domain_.segment_count(), 0U);
  const auto deaths =
      std::count_if(seen_.notices().begin(), seen_.notices().end(), [](const notice& each) {
        return each.kind == event_kind::peer_died;
      });
  EXPECT_EQ(deaths, 2'000);
  expect_nothing_left();
}

TEST_F(core_share, end_of_leases_limits_events_per_turn) {
  for (std::uint32_t uid = 1; uid <= 40; ++uid) {
    const session_id watcher = join(uid);
    for (std::uint64_t number = 1; number <= 50; ++number) {
      domain_.subscribe(watcher, number, "");
    }
  }
  const session_id dying = join(50);
  for (int i = 0; i < 20; ++i) {
    make(dying, "s/" + std::to_string(i));
  }
  const std::size_t most = 2 * 2'000;  // a death and a removal of one segment
  seen_.notices().clear();
  domain_.disconnect(dying, false);
  EXPECT_LE(seen_.notices().size(), most);
  for (bool more = true; more;) {
    seen_.notices().clear();
    more = domain_.work();
    EXPECT_LE(seen_.notices().size(), most);
  }
  expect_nothing_left();
}

TEST_F(core_share, many_opens_of_one_name_get_replies_in_turns) {
  std::vector<session_id> waiters;
  for (int i = 0; i < 20; ++i) {
    waiters.push_back(join(static_cast<std::uint32_t>(10 + i)));
    for (int k = 0; k < 100; ++k) {
      open(waiters.back(), "w", at_ms(1'000'000));
      seen_.settle();
    }
  }
  EXPECT_EQ(domain_.waiting_count(), 2'000U);
  const session_id creator = join(1);
  const auto created = make(creator, "w", lifetime::persistent);
  EXPECT_GT(domain_.waiting_count(), 1'000U);
  EXPECT_FALSE(seen_.replies().empty());
  seen_.settle();
  while (domain_.work()) {
    seen_.settle();
  }
  EXPECT_EQ(domain_.waiting_count(), 0U);
  EXPECT_EQ(seen_.replies().size(), 2'000U);
  EXPECT_TRUE(std::all_of(seen_.replies().begin(), seen_.replies().end(), [&](const reply& each) {
    return each.generation == created;
  }));
  domain_.remove(creator, "w");
  expect_nothing_left();
}

TEST_F(core_share, waiting_opens_do_not_get_a_removed_segment) {
  const session_id waiter = join(10);
  for (int k = 0; k < 1'000; ++k) {
    open(waiter, "w", at_ms(1'000'000));
  }
  const session_id creator = join(1);
  make(creator, "w");
  const std::size_t replied = seen_.replies().size();
  domain_.remove(creator, "w");
  seen_.settle();
  while (domain_.work()) {
    seen_.settle();
  }
  EXPECT_EQ(seen_.replies().size(), replied);
  EXPECT_EQ(domain_.waiting_count(), 1'000U - replied);
  domain_.at(at_ms(2'000'000)).tick();
  while (domain_.next_deadline()) {
    domain_.at(at_ms(2'000'000)).tick();
  }
  EXPECT_EQ(seen_.replies().size(), 1'000U);
  expect_nothing_left();
}

TEST_F(core_share, muted_session_gets_no_events_and_keeps_its_leases) {
  const session_id watcher = join(1);
  domain_.subscribe(watcher, 1, "");
  const auto created = make(watcher, "mine");
  domain_.mute(watcher);
  seen_.notices().clear();
  make(join(2), "w");
  EXPECT_TRUE(seen_.notices().empty());
  EXPECT_EQ(domain_.held(watcher, created).name, "mine");
  EXPECT_EQ(domain_.budget().used(resource::subscriptions), 0U);
  expect_nothing_left();
}

TEST_F(core_share, list_skips_segments_of_others) {
  const session_id other = join(1);
  for (int i = 0; i < 1'000; ++i) {
    domain_.reserve(other, host_segment("hidden/" + std::to_string(i)));
  }
  const session_id me = join(2);
  domain_.reserve(me, host_segment("hidden/mine"));
  make(me, "b");
  make(other, "a");
  make(other, "z");
  std::vector<std::string> seen;
  domain_.list(me, "", "", [&](const segment& segment) {
    seen.push_back(segment.name);
    return true;
  });
  EXPECT_EQ(seen, (std::vector<std::string>{"a", "b", "hidden/mine", "z"}));
  seen.clear();
  domain_.list(me, "", "b", [&](const segment& segment) {
    seen.push_back(segment.name);
    return seen.size() < 1;
  });
  EXPECT_EQ(seen, (std::vector<std::string>{"hidden/mine"}));
  expect_nothing_left();
}

TEST_F(core_share, creator_is_charged_once_however_often_it_opens_its_segment) {
  const session_id creator = join(1);
  const gpushm::generation made = make(creator, "kept", lifetime::persistent);
  const std::uint64_t before = domain_.budget().used(resource::memory_bytes);
  for (int i = 0; i < 1'000; ++i) {
    domain_.release(creator, made, 1);
    open(creator, "kept");
    seen_.settle();
  }
  EXPECT_EQ(domain_.lease_count(), 1U);
  EXPECT_EQ(domain_.budget().used(resource::memory_bytes), before);
  domain_.remove(creator, "kept");
  expect_nothing_left();
}

TEST_F(core_share, metadata_is_charged_while_referenced) {
  const session_id creator = join(1);
  const auto created = domain_.reserve(creator, host_segment("w")).generation;
  domain_.attach(creator, created, 0, 1);
  const std::vector<std::byte> most(max_metadata_bytes);
  domain_.publish(creator, created, most);
  auto packet = domain_.stat(creator, "w").metadata;
  domain_.remove(creator, "w");
  domain_.release(creator, created, 1);
  EXPECT_EQ(domain_.segment_count(), 0U);
  EXPECT_GT(domain_.budget().used(resource::memory_bytes), max_metadata_bytes);
  packet.reset();
  EXPECT_LT(domain_.budget().used(resource::memory_bytes), max_metadata_bytes);
  expect_nothing_left();
}

TEST_F(core_share, device_texts_and_sizes_are_checked) {
  const session_id creator = join(1);
  for (const std::string text : {"GPU\x1b]0;x\x07", "GPU\n", "GPU 1", "\xc2\x9b"}) {
    reservation wanted = host_segment("w");
    wanted.device.uuid = text;
    EXPECT_EQ(error_of([&] { domain_.reserve(creator, wanted); }),
              "the device's description has characters other than printable ASCII (report this as "
              "a bug)");
    std::swap(wanted.device.uuid, wanted.device.pci_address);
    errc code{};
    error_of([&] { domain_.reserve(creator, wanted); }, &code);
    EXPECT_EQ(code, errc::invalid_argument);
  }
  for (const std::uint64_t bytes :
       {(std::uint64_t{1} << 48U) + 1, std::uint64_t{1} << 63U, ~std::uint64_t{0}}) {
    EXPECT_EQ(error_of([&] { domain_.reserve(creator, host_segment("w", bytes)); }),
              "the segment is larger than an address space (256 TiB) (create a smaller one)");
  }
  expect_nothing_left();
}

class core_small : public core_share {
 protected:
  static limits bounds() {
    limits result;
    result.max_descriptors = 10'000;
    result.max_memory_bytes = 64 * mib;
    result.max_connections = 4'096;
    return result;
  }
  core_small() : core_share(bounds()) {}
};

TEST_F(core_small, one_reservation_cannot_take_all_descriptors) {
  const session_id greedy = join(1);
  errc code{};
  error_of([&] { domain_.reserve(greedy, host_segment("w", 4096, lifetime::leased, 9'900)); },
           &code);
  EXPECT_EQ(code, errc::share_exceeded);
  domain_.reserve(greedy, host_segment("w", 4096, lifetime::leased, 8'500));
  const session_id honest = join(2);
  make(honest, "mine");
  make(join(broker_uid), "the operator's");
  expect_nothing_left();
}

TEST_F(core_small, reservations_without_chunks_are_bounded_by_memory) {
  const session_id greedy = join(1);
  int created = 0;
  errc code{};
  try {
    for (;; ++created) {
      domain_.reserve(greedy, host_segment("s/" + std::to_string(created)));
    }
  } catch (const error& why) {
    code = why.code();
  }
  EXPECT_EQ(code, errc::share_exceeded);
  EXPECT_LT(static_cast<std::uint64_t>(created), 64 * mib / cost::segment);
  make(join(2), "mine");
  expect_nothing_left();
}

TEST_F(core_small, refused_request_takes_nothing) {
  const session_id one = join(1);
  const auto before = domain_.budget().used(resource::memory_bytes);
  error_of([&] { domain_.reserve(one, host_segment("w", 4096, lifetime::leased, 9'999)); });
  error_of([&] { domain_.subscribe(one, 1, std::string(256, 'x')); });
  EXPECT_EQ(domain_.budget().used(resource::memory_bytes), before);
  EXPECT_EQ(domain_.budget().used(resource::segments), 0U);
  EXPECT_EQ(domain_.budget().used(resource::host_bytes), 0U);
  EXPECT_EQ(domain_.budget().used(resource::subscriptions), 0U);
  expect_nothing_left();
}

TEST_F(core_small, connections_of_one_uid_leave_room_for_another) {
  errc code{};
  try {
    for (;;) {
      join(1);
    }
  } catch (const error& why) {
    code = why.code();
    --last_session_;
  }
  EXPECT_EQ(code, errc::share_exceeded);
  for (int i = 0; i < 100; ++i) {
    join(2);
  }
  expect_nothing_left();
}

}  // namespace
}  // namespace gpushm::core
