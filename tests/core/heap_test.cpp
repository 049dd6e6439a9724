// SPDX-License-Identifier: Apache-2.0
// Heap use per segment, and behaviour when an allocation fails.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/files/sanitizers.hpp"
#include "base/files/unique_fd.hpp"
#include "succession/journal/journal.hpp"
#include "succession/recorder/recorder.hpp"
#include "tests/broker/hub_world.hpp"
#include "tests/broker/unread_keeper.hpp"
#include "tests/core/counting_new.hpp"
#include "tests/core/world.hpp"
#include "tests/support/process/environment.hpp"

namespace gpushm {
namespace {

using namespace core::testing_world;
using gpushm_testing::fail_allocation;
using gpushm_testing::heap_bytes_in_use;

// A typical name and GPU.
core::reservation typical_segment(std::size_t number) {
  auto wanted = host_segment("models/llama-70b/layer-" + std::to_string(number), 1 << 21);
  wanted.backend = backend::cuda_vmm;
  wanted.lifetime = lifetime::persistent;
  wanted.device = {device_kind::gpu, "GPU-5fd4f087-1cf9-7b9d-1a9a-5d3e0a6e4f77", "0000:18:00.0", 3};
  return wanted;
}

void print(const char* name, std::size_t count, std::chrono::steady_clock::duration took) {
  std::cout << name << ": "
            << std::chrono::duration<double, std::micro>(took).count() / static_cast<double>(count)
            << " us per segment\n";
}

TEST(core_heap, segment_uses_less_than_1_kib_of_heap) {
  const auto count =
      gpushm_testing::number_from_environment<std::uint32_t>("GPUSHM_HEAP_SEGMENTS", 20'000);
  core::domain domain("default", 42, {.max_segments = 2 * count});
  domain.connect(1, {101, 1000, true});
  domain.connect(2, {201, 2000, true});
  const std::size_t before = heap_bytes_in_use();
  auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    const auto generation = domain.reserve(1, typical_segment(i)).generation;
    domain.attach(1, generation, 0, 1);
    domain.publish(1, generation, {});
    domain.open(2, {i, 0, domain.stat(1, typical_segment(i).name).name, 0, {}});
    domain.pending().clear();
  }
  print("reserve, attach, publish, open", count, std::chrono::steady_clock::now() - start);
  EXPECT_EQ(domain.segment_count(), count);
  const std::size_t each = (heap_bytes_in_use() - before) / count;
  std::cout << "heap: " << each << " bytes per segment\n";
  EXPECT_LE(each, 1024U);
  start = std::chrono::steady_clock::now();
  domain.disconnect(2, false);
  domain.disconnect(1, false);
  while (domain.work()) {
    domain.pending().clear();
  }
  domain.pending().clear();
  print("disconnect", count, std::chrono::steady_clock::now() - start);
  domain.connect(3, {301, 42, true});
  start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    domain.remove(3, typical_segment(i).name);
    domain.pending().clear();
  }
  print("remove", count, std::chrono::steady_clock::now() - start);
  EXPECT_EQ(domain.segment_count(), 0U);
  EXPECT_EQ(domain.allocated_bytes(), 0U);
}

/// An exporter that does not answer: what opens leave in its queue ends with them.
TEST(core_heap, opens_that_have_ended_leave_no_questions) {
  core::domain domain("default", 42, {});
  domain.connect(1, {101, 1000, true});
  domain.connect(2, {201, 2000, true});
  auto wanted = host_segment("kv");
  wanted.backend = backend::cuda_ipc;
  wanted.device = {device_kind::gpu, "GPU-0", "0000:00:00.0", 0};
  wanted.chunk_count = 0;
  wanted.ticket.resize(8);
  const auto shared = domain.reserve(1, wanted).generation;
  domain.publish(1, shared, {});
  domain.pending().clear();
  std::uint64_t request = 0;
  const auto open_and_cancel = [&](std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) {
      domain.open(2, {++request, 0, "kv", 0, {}});
      EXPECT_TRUE(domain.cancel(2, request));
      domain.pending().clear();
    }
  };
  const auto open_and_wait = [&](std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) {
      domain.open(2, {++request, 0, "kv", 0, {}});
      domain.at(at_ms(1'000'000)).tick();
      domain.pending().clear();
    }
  };
  open_and_cancel(200);  // as many questions as the exporter gets without a reply
  open_and_wait(2);
  const std::size_t before = heap_bytes_in_use();
  open_and_cancel(20'000);
  open_and_wait(2'000);
  EXPECT_EQ(heap_bytes_in_use(), before);
}

class hub_heap : public broker_detail::testing_world::hub_test {};

TEST_F(hub_heap, segment_uses_less_than_1_kib_of_heap) {
  constexpr std::size_t count = 4'000;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &raised), 0);
  if (limit.rlim_max < 2 * count + 100) {
    GTEST_SKIP() << "the hard limit of open files is " << limit.rlim_max;
  }
  const auto creator = greet();
  const auto reader = greet({201, 2000, true});
  make(creator, "first", lifetime::persistent);
  const std::size_t before = heap_bytes_in_use();
  for (std::size_t i = 0; i < count; ++i) {
    make(creator, "models/llama-70b/layer-" + std::to_string(i), lifetime::persistent);
    send_request(reader, wire::open{"models/llama-70b/layer-" + std::to_string(i), 0, 0});
    take(reader);
  }
  const std::size_t each = (heap_bytes_in_use() - before) / count;
  std::cout << "heap: " << each << " bytes per segment\n";
  EXPECT_EQ(hub_.domain().segment_count(), count + 1);
  EXPECT_LE(each, 1024U);
  const auto owner = greet({301, broker_uid, true});
  for (std::size_t i = 0; i < count; ++i) {
    expect<wire::done>(
        round_trip(owner, wire::remove{"models/llama-70b/layer-" + std::to_string(i)}));
  }
  expect<wire::done>(round_trip(owner, wire::remove{"first"}));
  expect_nothing_left();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/// A recorder with a journal.
class own_journal {
 protected:
  own_journal() {
    auto log = journal::journal::create(std::uint64_t{1} << 30U);
    journal_ = base::unique_fd(::fcntl(log.descriptor(), F_DUPFD_CLOEXEC, 0));
    records_ = succession::recorder(std::move(log), keeper_.shelf(), 1);
  }
  [[nodiscard]] std::uint64_t journal_bytes() const {
    struct stat status {};
    EXPECT_EQ(::fstat(journal_.get(), &status), 0);
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
  }

  broker_detail::testing_world::unread_keeper keeper_;
  base::unique_fd journal_;
  succession::recorder records_;
};

/// What members make the broker keep is charged, and with a journal not much more than that: else a
/// container's memory is not used.
class hub_charges : own_journal,
                    public broker_detail::testing_world::hub_test,
                    public testing::WithParamInterface<std::tuple<bool, std::size_t>> {
 protected:
  hub_charges()
      : hub_test(has_journal() ? core::limits{.memory_copies = 2,
                                              .max_subscriptions = count,
                                              .names_changes = true}
                               : core::limits{.max_subscriptions = count},
                 nullptr,
                 has_journal() ? &records_ : nullptr) {}
  [[nodiscard]] static bool has_journal() { return std::get<0>(GetParam()); }

  struct amounts {
    std::uint64_t kept = 0;
    std::uint64_t charged = 0;
  };
  [[nodiscard]] amounts now() {
    slots_.clear();  // of this test
    out_.sent.clear();
    return {heap_bytes_in_use() + journal_bytes(),
            hub_.domain().budget().used(core::resource::memory_bytes)};
  }
  /// Of what `make` makes, in all.
  template <typename Make>
  amounts of(const char* name, Make&& make) {
    const amounts before = now();
    for (std::size_t i = 0; i < count; ++i) {
      make(i);
    }
    const amounts after = now();
    const amounts result{after.kept - before.kept, after.charged - before.charged};
    std::cout << name << ": " << result.kept / count << " bytes kept, " << result.charged / count
              << " charged\n";
    EXPECT_GE(result.charged, result.kept) << name;
    return result;
  }

  static constexpr std::uint32_t count = 4'000;
};

TEST_P(hub_charges, cover_what_is_kept) {
  const auto creator = greet();
  const auto reader = greet({201, 2000, true});
  const std::string prefix(std::get<1>(GetParam()), 'n');
  const auto name_of = [&](std::size_t i) { return prefix + typical_segment(i).name; };
  std::vector<amounts> measured;
  measured.push_back(of("segments", [&](std::size_t i) {
    wire::reserve wanted;
    static_cast<core::reservation&>(wanted) = typical_segment(i);
    wanted.name = name_of(i);
    wanted.backend = backend::cuda_ipc;
    wanted.lifetime = lifetime::leased;
    wanted.chunk_count = 0;
    wanted.ticket.resize(64);
    const auto made = expect<wire::reserved>(round_trip(creator, wanted));
    expect<wire::done>(round_trip(creator, wire::publish{made.generation, {}}));
  }));
  measured.push_back(of("opens that their exporter confirms", [&](std::size_t i) {
    send_request(reader, wire::open{name_of(i), 0, 0});
  }));
  measured.push_back(of("opens that wait", [&](std::size_t i) {
    send_request(reader, wire::open{"not there/" + name_of(i), 0, 100'000});
  }));
  measured.push_back(of("subscriptions", [&](std::size_t i) {
    send_request(reader, wire::subscribe{"prefixes/" + name_of(i)});
  }));
  amounts sum;
  for (const amounts& each : measured) {
    sum.kept += each.kept;
    sum.charged += each.charged;
  }
  if (has_journal() && !base::under_sanitizer) {  // their allocators do not round up
    EXPECT_LE(sum.charged, sum.kept / 2 * 3);
  }
  of("sessions", [&](std::size_t) { greet(); });
}

INSTANTIATE_TEST_SUITE_P(names,
                         hub_charges,
                         testing::Combine(testing::Bool(), testing::Values(0U, 200U)),
                         [](const auto& test) {
                           return std::string(std::get<1>(test.param) != 0 ? "long" : "short") +
                                  (std::get<0>(test.param) ? "_with_journal" : "");
                         });

/// Runs `work` repeatedly on a new domain, each time with a later allocation failing, until none
/// fails.
template <typename Prepare, typename Work, typename Check>
std::size_t with_every_allocation_failing(Prepare&& prepare, Work&& work, Check&& check) {
  for (std::size_t k = 1; k < 1'000; ++k) {
    SCOPED_TRACE("allocation " + std::to_string(k));
    core::domain domain("default", 42, {.quota_bytes_per_principal = 10'000});
    prepare(domain);
    bool failed = false;
    fail_allocation(k);
    try {
      work(domain);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    fail_allocation(0);
    for (const core::open_reply& each : domain.pending().replies) {
      failed = failed || !each.found;
    }
    domain.pending().clear();
    check(domain, failed);
    for (core::session_id session = 1; session <= 3; ++session) {
      domain.disconnect(session, false);
    }
    EXPECT_EQ(domain.segment_count(), 0U);
    EXPECT_EQ(domain.waiting_count(), 0U);
    EXPECT_EQ(domain.allocated_bytes(), 0U);
    EXPECT_EQ(domain.descriptors(), 0U);
    if (!failed) {
      return k - 1;
    }
  }
  ADD_FAILURE() << "it never succeeded";
  return 0;
}

const auto two_sessions = [](core::domain& domain) {
  domain.connect(1, {101, 1000, true});
  domain.connect(2, {201, 2000, true});
};

TEST(out_of_memory, failed_reserve_changes_nothing) {
  const auto failures = with_every_allocation_failing(
      two_sessions,
      [](core::domain& domain) { domain.reserve(1, host_segment(std::string(100, 'n'), 9'000)); },
      [](core::domain& domain, bool failed) {
        EXPECT_EQ(domain.segment_count(), failed ? 0U : 1U);
        EXPECT_EQ(domain.allocated_bytes(), failed ? 0U : 9'000U);
        if (failed) {
          // Neither quota nor name is taken.
          domain.reserve(1, host_segment(std::string(100, 'n'), 10'000));
        }
      });
  EXPECT_GT(failures, 4U);
}

TEST(out_of_memory, failed_reserve_on_a_gpu_changes_nothing) {
  const auto on_gpu = [](std::uint64_t bytes) {
    auto wanted = host_segment(std::string(100, 'n'), bytes);
    wanted.backend = backend::cuda_vmm;
    wanted.device = {device_kind::gpu, "GPU-" + std::string(36, '0'), "0000:18:00.0", 0};
    return wanted;
  };
  const auto failures = with_every_allocation_failing(
      two_sessions,
      [&](core::domain& domain) { domain.reserve(1, on_gpu(9'000)); },
      [&](core::domain& domain, bool failed) {
        EXPECT_EQ(domain.segment_count(), failed ? 0U : 1U);
        EXPECT_EQ(domain.allocated_bytes(), failed ? 0U : 9'000U);
        if (failed) {
          domain.reserve(1, on_gpu(10'000));
        }
      });
  EXPECT_GT(failures, 4U);
}

TEST(out_of_memory, failed_waiting_open_changes_nothing) {
  const auto failures = with_every_allocation_failing(
      two_sessions,
      [](core::domain& domain) {
        domain.open(2, {1, 0, std::string(100, 'n'), 0, at_ms(10)});
      },
      [](core::domain& domain, bool failed) {
        EXPECT_EQ(domain.waiting_count(), failed ? 0U : 1U);
        EXPECT_EQ(domain.next_deadline().has_value(), !failed);
        const auto created = domain.reserve(1, host_segment(std::string(100, 'n'))).generation;
        domain.attach(1, created, 0, 1);
        domain.publish(1, created, {});
        domain.at(at_ms(20)).tick();
        EXPECT_EQ(domain.waiting_count(), 0U);
      });
  EXPECT_GT(failures, 3U);
}

TEST(out_of_memory, failed_open_subscribe_connect_change_nothing) {
  const auto prepare = [](core::domain& domain) {
    two_sessions(domain);
    const auto created = domain.reserve(1, host_segment(std::string(100, 'n'))).generation;
    domain.attach(1, created, 0, 1);
    domain.publish(1, created, {});
  };
  with_every_allocation_failing(
      prepare,
      [](core::domain& domain) {
        domain.open(2, {1, 0, std::string(100, 'n'), 0, {}});
      },
      [](core::domain& domain, bool) {
        EXPECT_LE(domain.stat(1, std::string(100, 'n')).leases.size(), 2U);
      });
  EXPECT_GT(with_every_allocation_failing(
                prepare,
                [](core::domain& domain) { domain.subscribe(2, 1, std::string(100, 'p')); },
                [](core::domain& domain, bool failed) {
                  if (failed) {
                    domain.subscribe(2, 1, "");
                  }
                }),
            0U);
  EXPECT_GT(with_every_allocation_failing(
                prepare,
                [](core::domain& domain) {
                  domain.connect(3, {301, 42, true});
                },
                [](core::domain& domain, bool failed) {
                  EXPECT_EQ(domain.session_count(), failed ? 2U : 3U);
                }),
            0U);
}

}  // namespace
}  // namespace gpushm
