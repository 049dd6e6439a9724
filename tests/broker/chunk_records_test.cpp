// SPDX-License-Identifier: Apache-2.0
// The journal's records of a segment with thousands of chunks.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "broker/hub/closer.hpp"
#include "succession/journal/journal.hpp"
#include "succession/recorder/recorder.hpp"
#include "succession/recorder/takeover_state.hpp"
#include "succession/records/records.hpp"
#include "tests/broker/hub_world.hpp"
#include "tests/broker/unread_keeper.hpp"
#include "tests/support/process/deadline.hpp"

namespace gpushm::broker_detail {
namespace {

using namespace std::chrono_literals;
using testing_world::memfd;

class chunk_records : public testing::Test {
 protected:
  static constexpr std::uint64_t chunk_bytes = 4'096;
  static constexpr std::size_t part_size = records::files_record::part_size;

  chunk_records() {
    member_ = std::make_shared<session>(1);
    hub_.accept(member_, {10, 1'000, true});
    ask(wire::hello{});
  }

  void ask(wire::body body, std::vector<succession::kept_fd> files = {}) {
    EXPECT_TRUE(hub_.receive(*member_,
                             wire::encode({++request_, std::move(body)}),
                             std::move(files),
                             core::time_point(std::chrono::hours(1))));
  }
  [[nodiscard]] gpushm::generation reserve(const std::string& name, std::uint32_t chunks) {
    wire::reserve wanted{};
    wanted.name = name;
    wanted.size_bytes = wanted.allocated_bytes = chunks * chunk_bytes;
    wanted.chunk_count = chunks;
    ask(wanted);
    return hub_.domain().stat(1, name).generation;
  }
  /// Numbers in the keeper from 1 on.
  void attach(gpushm::generation generation, std::uint32_t first, std::uint32_t count) {
    std::vector<succession::kept_fd> files;
    for (std::uint32_t i = 0; i < count; ++i) {
      files.emplace_back(base::unique_fd(::fcntl(chunk_.get(), F_DUPFD_CLOEXEC, 0)), ++stored_);
    }
    ask(wire::attach{generation, first, std::vector<std::uint64_t>(count, chunk_bytes)},
        std::move(files));
  }
  void collect() {
    hub_.collect_freed();
    hub_.tick(core::time_point(std::chrono::hours(1)));  // records it
  }
  [[nodiscard]] journal::journal journal_now() const {
    return journal::journal::open(base::unique_fd(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0)));
  }
  /// Number of chunks in a record; nullopt: there is no such record.
  [[nodiscard]] std::optional<std::size_t> recorded(gpushm::generation generation,
                                                    std::uint64_t part) const {
    const journal::journal now = journal_now();
    const auto entry = now.find(records::key_of(records::kind::files, generation, part));
    if (!entry) {
      return std::nullopt;
    }
    return std::get<records::files_record>(records::decode(records::kind::files, *entry))
        .chunks.size();
  }

 private:
  [[nodiscard]] succession::recorder make_recorder() {
    journal::journal log = journal::journal::create();
    records::encoder encoder;
    log.put(records::key_of(records::kind::broker),
            encoder.encode(records::broker_record{"default", {}, 0, "/none", 0, 0, 0, 0, 0}));
    log.commit();
    file_ = base::unique_fd(::fcntl(log.descriptor(), F_DUPFD_CLOEXEC, 0));
    return {std::move(log), keeper_.shelf(), 1};
  }

  testing_world::unread_keeper keeper_;
  base::unique_fd file_;  ///< the journal
  base::unique_fd chunk_ = memfd(chunk_bytes);
  base::unique_fd table_ = memfd(chunk_bytes, 0);
  succession::recorder recorder_ = make_recorder();
  testing_world::recorded_outbox out_;
  hub hub_{{{"default", 42, {1, 2, 3}, false, table_.get()},
            {.names_changes = true},
            nullptr,
            std::make_shared<closer>(std::nullopt),
            &recorder_},
           out_,
           [](void* /*context*/,
              std::uint32_t /*slot*/,
              gpushm::generation /*generation*/,
              std::optional<segment_state> /*state*/) {},
           nullptr};
  std::shared_ptr<session> member_;
  std::uint64_t request_ = 0;
  std::uint64_t stored_ = 0;
};

/// What an Attach records depends on the packet, not on how many chunks came before.
TEST_F(chunk_records, are_in_parts_that_a_successor_puts_together) {
  constexpr std::uint32_t more = 40;
  constexpr std::uint32_t chunks = part_size + more;
  const auto other = reserve("one chunk", 1);
  attach(other, 0, 1);
  const auto many = reserve("many chunks", chunks);
  for (std::uint32_t first = 0; first < chunks;) {
    const auto count = std::min<std::uint32_t>(wire::max_batch, chunks - first);
    attach(many, first, count);
    first += count;
    EXPECT_EQ(recorded(many, 0), std::min<std::size_t>(first, part_size));
    EXPECT_EQ(recorded(many, 1),
              first > part_size ? std::optional(first - part_size) : std::nullopt);
  }
  EXPECT_EQ(recorded(many, 2), std::nullopt);
  {
    const succession::takeover_state successor(journal_now(), {});
    const records::files_record& record = successor.files.at(many);
    std::vector<records::descriptor_id> expected(chunks);
    std::iota(expected.begin(), expected.end(), 2);
    EXPECT_EQ(record.chunks, expected);
    EXPECT_EQ(record.chunk_bytes, std::vector<std::uint64_t>(chunks, chunk_bytes));
    EXPECT_EQ(successor.files.at(other).chunks, std::vector<records::descriptor_id>{1});
  }
  const std::uint64_t used_bytes = journal_now().used_bytes();
  ask(wire::release{many, 1, false});
  EXPECT_LT(journal_now().used_bytes(), used_bytes + 16 * part_size / 2) << "they stay as they are";
  EXPECT_EQ(recorded(many, 0), part_size) << "they are charged until they are closed";
  EXPECT_EQ(recorded(many, 1), more);
  EXPECT_TRUE(gpushm_testing::eventually(
      [&] {
        collect();
        return !recorded(many, 0);
      },
      60s));
  EXPECT_EQ(recorded(many, 1), std::nullopt);
  EXPECT_EQ(recorded(other, 0), 1U);
}

/// Which is one record, however many there are.
TEST_F(chunk_records, of_an_earlier_version_are_complete) {
  constexpr std::size_t chunks = part_size + 2;
  journal::journal log = journal_now();
  records::encoder encoder;
  records::files_record record;
  record.chunks.resize(chunks);
  std::iota(record.chunks.begin(), record.chunks.end(), 1);
  record.chunk_bytes.assign(chunks, chunk_bytes);
  log.put(records::key_of(records::kind::files, 7), encoder.encode(record));
  log.commit();
  const succession::takeover_state successor(std::move(log), {});
  EXPECT_EQ(successor.files.at(7), record);
}

TEST_F(chunk_records, without_a_part_are_refused) {
  journal::journal log = journal_now();
  records::encoder encoder;
  log.put(records::key_of(records::kind::files, 7, 1),
          encoder.encode(records::files_record{{1}, {chunk_bytes}}));
  log.commit();
  try {
    const succession::takeover_state successor(std::move(log), {});
    ADD_FAILURE() << "not refused";
  } catch (const error& why) {
    EXPECT_EQ(why.code(), errc::invalid_argument);
    EXPECT_EQ(why.cause(), "a part of a segment's chunks is missing");
  }
}

}  // namespace
}  // namespace gpushm::broker_detail
