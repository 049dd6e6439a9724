// SPDX-License-Identifier: Apache-2.0
#include "client/lease/handback.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/report/log.hpp"

namespace gpushm::client_detail {

namespace {

using std::chrono::milliseconds;

/// Intervals between opens of what another process has to hand back; no event reports that it has.
constexpr milliseconds first_poll{5};
constexpr milliseconds longest_poll{500};
/// A process that begins to hand back and does not continue has 3 s, then the broker lets others do
/// so.
constexpr milliseconds late_time{5'000};

void attach_all(connection& connection,
                gpushm::generation generation,
                const segment_lease::kept_chunks& chunks,
                const subject& about,
                milliseconds timeout) {
  const std::size_t count = chunks.files.size();
  for (std::size_t first = 0; first < count;) {
    const std::size_t end = std::min(count, first + wire::max_batch);
    wire::attach batch{generation, static_cast<std::uint32_t>(first), {}};
    std::vector<int> numbers;
    for (; first < end; ++first) {
      batch.chunk_bytes.push_back(chunks.bytes[first]);
      numbers.push_back(chunks.files[first].get());
    }
    static_cast<void>(
        connection.request(std::move(batch), about, base::deadline_after(timeout), numbers));
  }
}

void hand_back_one(lease_table& leases,
                   const std::shared_ptr<segment_lease>& lease,
                   const std::shared_ptr<connection>& connection,
                   milliseconds timeout) {
  const auto handback = lease->to_hand_back();
  if (!handback) {
    return;
  }
  const auto& [offer, chunks] = *handback;
  const subject about{"hand back", offer.name};
  // From here on an exception releases the grant, which ends the reservation.
  reply got = connection->request(offer, about, base::deadline_after(timeout));
  const auto* const reserved = std::get_if<wire::reserved>(&got.body);
  if (reserved == nullptr || reserved->generation != offer.generation) {
    throw unexpected_reply(about);  // an older broker has reserved another segment
  }
  attach_all(*connection, offer.generation, *chunks, about, timeout);
  lease->reply_on(*connection);  // an opener may ask as soon as it is published
  if (lease->published()) {
    const auto metadata = lease->metadata();
    static_cast<void>(
        connection->request(wire::publish{offer.generation, {metadata.begin(), metadata.end()}},
                            about,
                            base::deadline_after(timeout)));
  }
  leases.renew(lease, connection, {reserved->slot, reserved->receipt});
  got.granted.keep();
}

/// Whether its signaler must hand it back: a reader does so when the signaler does not reconnect.
bool is_of_another_signaler(const segment_lease& lease) {
  return lease.info().backend == backend::signals && !lease.is_creator();
}

/// Returns false if another process may still hand it back.
bool open_one(lease_table& leases,
              const std::shared_ptr<segment_lease>& lease,
              const std::shared_ptr<connection>& connection,
              const std::stop_token& stop,
              milliseconds timeout) {
  const std::string& name = lease->info().name;
  const gpushm::generation generation = lease->generation();
  reply got = connection->open(
      {name, 0, 0, generation}, {"open", name}, base::deadline_after(timeout), stop);
  if (const auto* const opened = std::get_if<wire::opened>(&got.body);
      opened != nullptr && opened->segment.generation == generation) {
    leases.renew(lease, connection, {opened->segment.slot, opened->receipt});
    got.granted.keep();
    return true;
  }
  const auto* const failure = std::get_if<wire::failure>(&got.body);
  if (failure != nullptr &&
      (failure->code == errc::no_such_segment || failure->code == errc::writer_ending)) {
    return false;
  }
  lease->give_up();
  return true;
}

/// Hands back segments that their creators have not handed back in time: of a page whose signaler
/// has not reconnected the broker ends the words. Returns false if another process is at it.
bool hand_back_late(lease_table& leases,
                    const std::shared_ptr<segment_lease>& lease,
                    const std::shared_ptr<connection>& connection,
                    const std::stop_token& stop,
                    milliseconds timeout) {
  try {
    hand_back_one(leases, lease, connection, timeout);
  } catch (const error& why) {
    if (connection->broken() || why.code() == errc::timed_out) {
      throw;
    }
    base::log(log_level::debug, why.what());
    if (why.code() == errc::already_exists) {  // another reader was faster
      return open_one(leases, lease, connection, stop, timeout);
    }
  }
  if (lease->is_lost()) {
    lease->give_up();
  }
  return true;
}

}  // namespace

void hand_back(lease_table& leases,
               const std::shared_ptr<connection>& connection,
               milliseconds timeout) noexcept {
  try {
    for (const auto& lease : leases.lost()) {
      if (is_of_another_signaler(*lease)) {
        continue;
      }
      try {
        hand_back_one(leases, lease, connection, timeout);
      } catch (const error& why) {
        if (connection->broken() || why.code() == errc::timed_out) {
          return;
        }
        // Another process was faster; or its segment ended, which `open_again` finds.
        const bool is_usual =
            why.code() == errc::already_exists || why.code() == errc::gone_or_replaced;
        base::log(is_usual ? log_level::debug : log_level::warning, why.what());
      }
    }
  } catch (const std::exception& why) {
    base::log(log_level::warning, why.what());
  }
}

void open_again(lease_table& leases,
                const std::shared_ptr<connection>& connection,
                const std::stop_token& stop,
                milliseconds timeout,
                steady_time deadline) {
  auto left = leases.lost();
  for (milliseconds pause = first_poll; !left.empty() && !stop.stop_requested();
       pause = std::min(pause * 2, longest_poll)) {
    std::erase_if(left, [&](const auto& each) {
      return each.use_count() == 1 || open_one(leases, each, connection, stop, timeout);
    });
    if (!left.empty()) {
      if (std::chrono::steady_clock::now() >= deadline) {
        break;
      }
      base::pause_before_retry(pause);
    }
  }
  const auto last = base::deadline_after(late_time);
  while (!left.empty() && !stop.stop_requested()) {
    std::erase_if(left, [&](const auto& each) {
      return stop.stop_requested() || hand_back_late(leases, each, connection, stop, timeout);
    });
    if (left.empty() || std::chrono::steady_clock::now() >= last) {
      break;
    }
    base::pause_before_retry(longest_poll);
  }
  if (!stop.stop_requested()) {
    for (const auto& each : left) {
      each->give_up();
    }
  }
}

}  // namespace gpushm::client_detail
