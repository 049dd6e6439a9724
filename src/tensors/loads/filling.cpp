// SPDX-License-Identifier: Apache-2.0
#include "tensors/loads/filling.hpp"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "base/process/thread.hpp"
#include "tensors/files/hash.hpp"
#include "tensors/files/layout.hpp"

namespace gpushm::tensors {

filling::filling(const job& job, target into)
    : job_(job),
      into_(std::move(into)),
      reader_(job.files, job.options.reading),
      first_(into_.first),
      next_(first_),
      complete_(first_),
      is_done_(job.plan.pieces.size()) {
  for (std::size_t i = 0; i != first_; ++i) {
    complete_bytes_ += job.plan.pieces[i].bytes;
  }
  resumed_bytes_ = complete_bytes_;
  if (complete_bytes_ != 0) {
    into_.on_complete(first_, complete_bytes_);
  }
}

void filling::run() {
  const std::size_t left = job_.plan.pieces.size() - first_;
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i != std::min<std::size_t>(job_.threads, left); ++i) {
    {
      const std::lock_guard lock(mutex_);
      ++running_;
    }
    try {
      threads.push_back(base::start_thread("gpushm-load", [this] { work(); }));
    } catch (...) {
      // Those that run end before they have loaded everything: their owner is not complete.
      fail();
      const std::lock_guard lock(mutex_);
      --running_;
      break;
    }
  }
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, report_pause, [this] { return running_ == 0; })) {
    const std::uint64_t bytes = complete_bytes_;
    lock.unlock();
    try {
      job_.report(bytes, resumed_bytes_, into_.is_load);
      job_.check_time();
    } catch (...) {
      fail();
    }
    lock.lock();
  }
  lock.unlock();
  threads.clear();
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  job_.report(complete_bytes_, resumed_bytes_, into_.is_load);
}

void filling::work() noexcept {
  try {
    const auto lane = into_.open_lane([this](std::size_t piece) { complete(piece); });
    run_reader runs(reader_, job_.plan);
    note_lane();
    while (!has_failed_.load(std::memory_order_relaxed)) {
      const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= job_.plan.pieces.size()) {
        break;
      }
      copy_piece(*lane, runs, index);
    }
    lane->finish();
  } catch (...) {
    fail();
  }
  const std::lock_guard lock(mutex_);
  if (--running_ == 0) {
    ended_.notify_all();
  }
}

void filling::note_lane() {
  const std::lock_guard lock(mutex_);
  last_lane_ = std::chrono::steady_clock::now();
  if (first_lane_ == std::chrono::steady_clock::time_point()) {
    first_lane_ = last_lane_;
  }
}

void filling::copy_piece(copy_lane& lane, run_reader& runs, std::size_t index) {
  const piece& piece = job_.plan.pieces[index];
  const part* next = job_.plan.parts.data() + piece.first_part;
  std::uint64_t* hash = into_.hashes + piece.first_part;
  std::uint64_t of_next = 0;  // bytes of it that were read
  running_hash running;
  std::vector<part> parts;
  std::byte* target = lane.buffer();
  for (std::uint64_t at = 0; at != piece.bytes;) {
    if (has_failed_.load(std::memory_order_relaxed)) {
      return;  // its piece is not complete
    }
    const bool is_strided = piece.strided != piece::contiguous;
    const std::uint64_t offset = piece.file_offset + at;
    const std::uint64_t bytes = is_strided ? std::min(step_bytes, piece.bytes - at)
                                           : piece_reader::step(offset, piece.bytes - at);
    const std::byte* const first = is_strided ? runs.read(piece, at, bytes, target)
                                              : reader_.read({piece.file, offset, bytes}, target);
    at += bytes;
    target += bytes + static_cast<std::size_t>(first - target);
    parts.clear();
    for (std::uint64_t done = 0; done != bytes;) {
      const std::uint64_t count = std::min(next->bytes - of_next, bytes - done);
      running.add({first + done, count});
      parts.push_back({next->segment_offset + of_next, count});
      done += count;
      of_next += count;
      if (of_next == next->bytes) {
        *hash++ = running.value();
        running.restart();
        ++next;
        of_next = 0;
      }
    }
    lane.add(first, parts);
  }
  lane.end_piece(index);
}

void filling::complete(std::size_t index) {
  const std::lock_guard lock(mutex_);
  is_done_[index] = true;
  const std::size_t before = complete_;
  while (complete_ != is_done_.size() && is_done_[complete_]) {
    complete_bytes_ += job_.plan.pieces[complete_++].bytes;
  }
  if (complete_ != before) {
    last_complete_ = std::chrono::steady_clock::now();
    if (before == first_) {
      first_complete_ = last_complete_;
    }
    into_.on_complete(complete_, complete_bytes_);
  }
}

void filling::fail() noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) {
    failure_ = std::current_exception();
  }
  has_failed_ = true;
}

}  // namespace gpushm::tensors
