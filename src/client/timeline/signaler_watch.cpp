// SPDX-License-Identifier: Apache-2.0
#include "client/timeline/signaler_watch.hpp"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/process/thread.hpp"
#include "sync/timeline_page_file.hpp"

namespace gpushm::client_detail {

namespace {

using std::chrono::steady_clock;

pollfd end_of(const base::guarded_fd& file, bool has_ended) {
  return {has_ended ? -1 : file.get(), POLLIN, 0};
}

int milliseconds_until(steady_clock::time_point when) {
  if (when == steady_clock::time_point::max()) {
    return -1;
  }
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(when - steady_clock::now()).count() + 1;
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

}  // namespace

signaler_watch::signaler_watch() : changed_("watch signalers") {
  thread_ = base::start_thread("gpushm-watch", [this] { run(); });
}

signaler_watch::~signaler_watch() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.signal();
}

std::uint64_t signaler_watch::add(signaler signaler) {
  auto added = std::make_shared<watched>();
  added->who = std::move(signaler);
  const std::lock_guard lock(mutex_);
  added->number = ++last_number_;
  all_.push_back(std::move(added));
  changed_.signal();
  return last_number_;
}

void signaler_watch::remove(std::uint64_t number) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [&](const auto& each) { return each->number == number; });
  changed_.signal();
}

void signaler_watch::run() {
  while (poll_once()) {
  }
}

/// Returns false at the end.
bool signaler_watch::poll_once() {
  std::vector<std::shared_ptr<watched>> signalers;
  {
    const std::lock_guard lock(mutex_);
    if (is_ending_) {
      return false;
    }
    signalers = all_;
  }
  std::vector<pollfd> files{{changed_.fd(), POLLIN, 0}};
  auto wake_at = steady_clock::time_point::max();
  for (const auto& each : signalers) {
    files.push_back(end_of(each->who.process, each->process_has_ended));
    files.push_back(end_of(each->who.life, each->life_has_ended));
    wake_at = std::min(wake_at, each->certain_at);
  }
  if (::poll(files.data(), files.size(), milliseconds_until(wake_at)) < 0) {
    return true;  // interrupted: only signals of the whole process reach this thread
  }
  static_cast<void>(changed_.take());
  const auto now = steady_clock::now();
  for (std::size_t i = 0; i != signalers.size(); ++i) {
    watched& each = *signalers[i];
    each.process_has_ended = each.process_has_ended || files[2 * i + 1].revents != 0;
    each.life_has_ended = each.life_has_ended || files[2 * i + 2].revents != 0;
    if (each.life_has_ended && !each.process_has_ended &&
        each.certain_at == steady_clock::time_point::max()) {
      each.certain_at = now + end_of_executed;
    }
    if (each.life_has_ended && (each.process_has_ended || now >= each.certain_at)) {
      sync::end_signals(each.who.page->get(), sync::holes::fill);
      remove(each.number);
    }
  }
  return true;
}

}  // namespace gpushm::client_detail
