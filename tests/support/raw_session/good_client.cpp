// SPDX-License-Identifier: Apache-2.0
#include "tests/support/raw_session/good_client.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <new>
#include <vector>

#include "tests/support/process/deadline.hpp"
#include "tests/support/process/harness_error.hpp"
#include "tests/support/raw_session/raw_session.hpp"

namespace gpushm_testing {
namespace wire = gpushm::wire;
using std::chrono::nanoseconds;

namespace {

constexpr const char* segment_name = "good/segment";
constexpr std::size_t max_samples = 1UL << 20U;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<nanoseconds>(clock::now().time_since_epoch()).count());
}

}  // namespace

/// Shared by both processes; the child writes all but `window`.
struct good_client::record {
  std::atomic<std::uint64_t> replies{0};
  std::atomic<std::uint64_t> failures{0};
  std::atomic<std::uint64_t> sent_at{0};  ///< start of the open in flight; 0: none
  std::atomic<bool> dropped{false};
  std::uint64_t window_replies = 0;
  std::uint64_t window_failures = 0;
  std::uint64_t window_start = 0;
  /// Waits in nanoseconds, reply number n at index n modulo the size.
  std::array<std::atomic<std::uint64_t>, max_samples> waits;
};

namespace {

/// One open and release. False when the broker has disconnected.
template <typename Record>
bool open_once(raw_session& session, Record& record) {
  const auto sent = now_ns();
  record.sent_at.store(sent);
  if (!session.send(wire::open{segment_name, 0, 0})) {
    return false;
  }
  raw_reply reply;
  do {
    reply = session.receive(std::chrono::hours(1));
    if (!reply.message) {
      return false;
    }
  } while (std::holds_alternative<wire::event>(reply.message->body));
  const auto number = record.replies.load();
  record.waits[number % max_samples].store(now_ns() - sent);
  if (const auto* opened = body_of<wire::opened>(reply)) {
    record.replies.store(number + 1);
    session.send(wire::release{opened->segment.generation, 1});
  } else {
    record.failures.fetch_add(1);
  }
  record.sent_at.store(0);
  return true;
}

}  // namespace

void good_client::unmap::operator()(record* mapped) const noexcept {
  ::munmap(mapped, sizeof(record));
}

std::unique_ptr<good_client::record, good_client::unmap> good_client::make_record() {
  void* const memory =
      ::mmap(nullptr, sizeof(record), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw harness_error("mmap: no memory for the good client's record");
  }
  return std::unique_ptr<record, unmap>(::new (memory) record);
}

good_client::good_client(const std::string& socket_path, const good_client_options& options)
    : record_(make_record()),
      process_(forked_process::start(
          options.process,
          [this, socket_path, pace = options.pace](forked_process::parent_link& parent) {
            auto session = raw_session::greeted(socket_path);
            if (publish_segment(session, reserve_pages(segment_name, 1)) == 0 ||
                !open_once(session, *record_)) {
              throw harness_error("the good client could not start");
            }
            parent.send_line("ready");
            while (open_once(session, *record_)) {
              sleep_for(pace);
            }
            record_->dropped.store(true);
          })) {
  (void)process_.wait_line(std::chrono::seconds(20));
}

good_client::good_client(good_client&&) noexcept = default;
good_client::~good_client() = default;

void good_client::begin() {
  record_->window_replies = record_->replies.load();
  record_->window_failures = record_->failures.load();
  record_->window_start = now_ns();
}

good_figures good_client::end() {
  good_figures result;
  const auto last = record_->replies.load();
  result.replies = last - record_->window_replies;
  result.failures = record_->failures.load() - record_->window_failures;
  result.dropped = record_->dropped.load();
  std::vector<std::uint64_t> waits;
  for (auto i = std::max(record_->window_replies, last > max_samples ? last - max_samples : 0);
       i < last;
       ++i) {
    waits.push_back(record_->waits[i % max_samples].load());
  }
  // An open in flight is measured as if it ended now.
  const auto sent = record_->sent_at.load();
  const auto now = now_ns();
  if (sent != 0 && now > sent) {
    waits.push_back(now - sent);
  }
  std::sort(waits.begin(), waits.end());
  if (!waits.empty()) {
    result.p50 = nanoseconds(waits[waits.size() / 2]);
    result.p99 = nanoseconds(waits[waits.size() * 99 / 100]);
    result.worst = nanoseconds(waits.back());
  }
  return result;
}

good_figures good_client::measure(std::chrono::milliseconds window) {
  begin();
  sleep_for(window);
  return end();
}

}  // namespace gpushm_testing
