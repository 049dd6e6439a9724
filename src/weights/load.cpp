// SPDX-License-Identifier: Apache-2.0
#include "weights/load.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/cpu_limit.hpp"
#include "base/deadline.hpp"
#include "base/has_gone.hpp"
#include "base/hex.hpp"
#include "base/log.hpp"
#include "base/syscall.hpp"
#include "base/thread.hpp"
#include "gpushm/error.hpp"
#include "gpushm/timeline.hpp"
#include "weights/copy_lane.hpp"
#include "weights/hash.hpp"
#include "weights/layout.hpp"
#include "weights/piece_reader.hpp"
#include "weights/slab.hpp"
#include "weights/tensor_json.hpp"

namespace gpushm::weights {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* operation = "load";
/// Of the timeline's name.
constexpr const char* load_suffix = "/~load";
constexpr milliseconds report_pause{100};
constexpr milliseconds retry_pause{10};
/// How long loads and opens do without a broker.
constexpr std::chrono::seconds without_broker{30};

/// Another process creates the same segment, and has not published it: one that has led before its
/// broker ended, or another program.
class being_created : public error {
 public:
  explicit being_created(const error& why) : error(why) {}
};

/// Errors after the end of a broker that no other one continues: the call is repeated with the next
/// one.
class broker_losses {
 public:
  [[nodiscard]] static bool is_loss(const error& why) {
    return why.code() == errc::broker_gone || why.code() == errc::broker_unreachable ||
           dynamic_cast<const being_created*>(&why) != nullptr;
  }
  /// Whether to repeat the call; not if this has failed for long.
  [[nodiscard]] bool may_repeat_after(const error& why) {
    if (!is_loss(why) || steady_clock::now() >= until_.value_or(steady_clock::time_point::max())) {
      return false;
    }
    if (!until_) {
      until_ = steady_clock::now() + without_broker;
      base::log(log_level::info, why.what());
    }
    return true;
  }
  void end() { until_.reset(); }

 private:
  std::optional<steady_clock::time_point> until_;
};

/// In host memory beside a segment that is filled: what its next loader needs.
struct journal_head {
  slab_id id{};
  std::atomic<std::uint64_t> verified_pieces{0};
};

/// The hashes of parts, and how many pieces are complete. Written before the timeline is signaled.
class load_journal {
 public:
  static std::uint64_t bytes_for(const layout& of) {
    return sizeof(journal_head) + of.parts.size() * sizeof(std::uint64_t);
  }
  explicit load_journal(segment memory) : memory_(std::move(memory)) {}

  [[nodiscard]] journal_head& head() const {
    return *static_cast<journal_head*>(memory_.mutable_data());
  }
  [[nodiscard]] std::uint64_t* hashes() const {
    return reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(memory_.mutable_data()) +
                                            sizeof(journal_head));
  }

 private:
  segment memory_;
};

struct job {
  client& by;
  const std::string& name;
  const load_options& options;
  unsigned threads;
  steady_clock::time_point until;
  std::vector<model_file> files;
  layout plan;
  std::string table_of_zeros;  ///< its length is the table's
  std::string fingerprint;

  [[nodiscard]] std::string load_name() const { return name + load_suffix; }
  [[nodiscard]] std::string journal_name(const slab_info& of) const {
    return name + "/~loaded-" + base::hex_text(of.id);
  }
  [[nodiscard]] error exists(std::string_view what) const {
    return {errc::already_exists,
            operation,
            name,
            what,
            "remove it first (gpushm rm), or load the model under another name"};
  }
  void check_time() const {
    if (options.stop.stop_requested()) {
      throw error(errc::cancelled, operation, name, "the load was stopped", "");
    }
    if (steady_clock::now() >= until) {
      throw error(errc::timed_out,
                  operation,
                  name,
                  "the model was not loaded in time",
                  "allow more time; what is loaded stays, and the next load goes on from there");
    }
  }
  void report(std::uint64_t bytes, std::uint64_t resumed_bytes, bool is_here) const {
    if (options.report) {
      options.report({bytes, plan.tensor_bytes, resumed_bytes, is_here});
    }
  }
};

/// The segment if it is published, and whether it is complete. Throws already_exists: it has
/// something else.
struct found_slab {
  segment memory;
  slab_info info;
  bool is_complete = false;
};
std::optional<found_slab> find(const job& of, access how) {
  open_options wanted;
  wanted.access = how;
  wanted.device = of.options.device == "auto" ? std::string() : of.options.device;
  auto opened = of.by.try_open(of.name, wanted);
  if (!opened) {
    return std::nullopt;
  }
  const auto info = info_of(*opened);
  if (!info) {
    throw of.exists("there is a segment of this name without tensors");
  }
  if (info->fingerprint != of.fingerprint) {
    throw of.exists("this name has another model, or the same one from other files");
  }
  const bool is_complete = is_sealed(*opened, *info);
  return found_slab{std::move(*opened), *info, is_complete};
}

// ---- reading ----

/// Fills a segment, from the first piece that is not complete.
class filling {
 public:
  filling(const job& of, segment& into, const load_journal& journal, timeline& progress)
      : job_(of),
        into_(into),
        journal_(journal),
        progress_(progress),
        reader_(of.files, of.options.reading),
        first_(journal.head().verified_pieces.load(std::memory_order_acquire)),
        next_(first_),
        complete_(first_),
        is_done_(of.plan.pieces.size()) {
    for (std::size_t i = 0; i != first_; ++i) {
      complete_bytes_ += of.plan.pieces[i].bytes;
    }
    resumed_bytes_ = complete_bytes_;
    if (complete_bytes_ != 0 && first_ != of.plan.pieces.size()) {
      progress_.signal(complete_bytes_);
    }
  }

  /// Blocks. Throws what a thread has thrown.
  void run() {
    const std::size_t left = job_.plan.pieces.size() - first_;
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i != std::min<std::size_t>(job_.threads, left); ++i) {
      {
        const std::lock_guard lock(mutex_);
        ++running_;
      }
      threads.push_back(base::start_thread("gpushm-load", [this] { work(); }));
    }
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, report_pause, [this] { return running_ == 0; })) {
      const std::uint64_t bytes = complete_bytes_;
      lock.unlock();
      try {
        job_.report(bytes, resumed_bytes_, true);
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
    job_.report(complete_bytes_, resumed_bytes_, true);
  }

 private:
  void work() noexcept {
    try {
      const auto lane = copy_lane::open(into_, [this](std::size_t piece) { complete(piece); });
      while (!has_failed_.load(std::memory_order_relaxed)) {
        const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
        if (index >= job_.plan.pieces.size()) {
          break;
        }
        copy_piece(*lane, index);
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

  /// In steps, so that what is hashed is still in the cache of the core that has read it.
  void copy_piece(copy_lane& lane, std::size_t index) {
    const piece& what = job_.plan.pieces[index];
    const part* next = job_.plan.parts.data() + what.first_part;
    std::uint64_t* hash = journal_.hashes() + what.first_part;
    std::uint64_t of_next = 0;  // bytes of it that were read
    running_hash running;
    std::vector<part> parts;
    for (std::uint64_t at = 0; at != what.bytes;) {
      const std::uint64_t offset = what.file_offset + at;
      const std::uint64_t bytes = piece_reader::step(offset, what.bytes - at);
      const std::byte* const first = reader_.read({what.file, offset, bytes}, lane.buffer());
      at += bytes;
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
      lane.copy(first, parts, at == what.bytes ? std::optional(index) : std::nullopt);
    }
  }

  /// All pieces before it are complete, too: readers of the journal need no list.
  void complete(std::size_t index) {
    const std::lock_guard lock(mutex_);
    is_done_[index] = true;
    const std::size_t before = complete_;
    while (complete_ != is_done_.size() && is_done_[complete_]) {
      complete_bytes_ += job_.plan.pieces[complete_++].bytes;
    }
    if (complete_ != before) {
      journal_.head().verified_pieces.store(complete_, std::memory_order_release);
      if (complete_ != is_done_.size()) {  // the last signal says that the segment is sealed
        progress_.signal(complete_bytes_);
      }
    }
  }

  void fail() noexcept {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_ = std::current_exception();
    }
    has_failed_ = true;
  }

  const job& job_;
  segment& into_;
  const load_journal& journal_;
  timeline& progress_;
  piece_reader reader_;
  const std::size_t first_;
  std::atomic<std::size_t> next_;
  std::atomic<bool> has_failed_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  unsigned running_ = 0;
  std::size_t complete_;
  std::uint64_t complete_bytes_ = 0;
  std::uint64_t resumed_bytes_ = 0;
  std::vector<bool> is_done_;
  std::exception_ptr failure_;
};

// ---- one loader, and others that wait ----

load_journal make_journal(const job& of, const slab_info& info) {
  create_options wanted;
  wanted.size_bytes = load_journal::bytes_for(of.plan);
  wanted.device = "host";
  wanted.lifetime = lifetime::persistent;
  segment made = of.by.create(of.journal_name(info), wanted);  // contents are zero
  static_cast<journal_head*>(made.mutable_data())->id = info.id;
  made.publish();
  return load_journal(std::move(made));
}

/// Throws what `make` throws; being_created for already_exists.
template <typename Make>
auto make_or_await(const Make& make) {
  try {
    return make();
  } catch (const error& why) {
    if (why.code() == errc::already_exists) {
      throw being_created(why);
    }
    throw;
  }
}

/// That of the loader before, if it can be used.
std::optional<load_journal> find_journal(const job& of, const slab_info& info) {
  open_options wanted;
  wanted.access = access::read_write;
  auto opened = of.by.try_open(of.journal_name(info), wanted);
  if (!opened || opened->size_bytes() != load_journal::bytes_for(of.plan)) {
    return std::nullopt;
  }
  load_journal result(std::move(*opened));
  if (result.head().id != info.id ||
      result.head().verified_pieces.load(std::memory_order_acquire) > of.plan.pieces.size()) {
    return std::nullopt;
  }
  return result;
}

void remove_quietly(const job& of, const std::string& name) {
  try {
    of.by.remove(name);
  } catch (const error& why) {
    base::log(log_level::debug, why.what());
  }
}

/// After a failure: others may wait, and go on; what nobody has open is not left behind.
void remove_unless_awaited(const job& of, const slab_info& slab) noexcept {
  try {
    if (of.by.stat(of.name).leases <= 1) {
      remove_quietly(of, of.name);
      remove_quietly(of, of.journal_name(slab));
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
}

std::string complete_table(const job& of, const load_journal& journal) {
  tensors table = of.plan.table;
  const std::uint64_t* const hashes = journal.hashes();
  for (std::size_t i = 0; i != table.all.size(); ++i) {
    const std::size_t first = of.plan.first_part[i];
    table.all[i].hash = tensor_hash({hashes + first, of.plan.first_part[i + 1] - first});
  }
  return write_tensors(table);
}

/// `progress`: nobody else loads as long as this process has it.
void lead(const job& of, timeline progress) {
  auto slab = find(of, access::read_write);
  if (slab && slab->is_complete) {
    return;  // by the loader before
  }
  std::optional<load_journal> journal;
  if (slab) {
    journal = find_journal(of, slab->info);
    if (!journal) {
      remove_quietly(of, of.journal_name(slab->info));
      journal.emplace(make_or_await([&] { return make_journal(of, slab->info); }));
    }
  } else {
    const slab_info info = new_slab(of.fingerprint, of.plan.table_offset, of.table_of_zeros.size());
    create_options wanted;
    wanted.size_bytes = slab_bytes(info);
    wanted.device = of.options.device;
    wanted.lifetime = lifetime::persistent;
    segment memory = make_or_await([&] { return of.by.create(of.name, wanted); });
    journal.emplace(make_journal(of, info));
    memory.publish(to_metadata(info));
    slab = found_slab{std::move(memory), info, false};
  }
  try {
    filling(of, slab->memory, *journal, progress).run();
    seal(slab->memory, slab->info, complete_table(of, *journal));
  } catch (const error& why) {
    if (!broker_losses::is_loss(why)) {  // after which this goes on
      remove_unless_awaited(of, slab->info);
    }
    throw;
  } catch (...) {
    remove_unless_awaited(of, slab->info);
    throw;
  }
  if (of.plan.tensor_bytes != 0) {
    progress.signal(of.plan.tensor_bytes);
  }
}

/// Until the loader is done, or has ended. `held`: the segment, so that its loader does not remove
/// it when it fails, and the next broker gets it if this one ends.
void follow(const job& of, std::optional<found_slab>& held) {
  try {
    if (auto now = find(of, access::read_write)) {
      held = std::move(now);
    }
    const timeline progress = timeline::open(of.by, of.load_name(), report_pause, of.options.stop);
    bool is_complete = false;
    while (!is_complete) {
      of.check_time();
      if (!held) {
        held = find(of, access::read_write);
      }
      of.report(progress.value(), 0, false);
      is_complete = progress.wait(of.plan.tensor_bytes, report_pause, of.options.stop);
    }
  } catch (const error& why) {
    if (!base::has_gone(why)) {
      throw;
    }
  }
}

/// Nothing: another process loads.
std::optional<timeline> try_to_lead(const job& of) {
  try {
    return timeline::create(of.by, of.load_name());
  } catch (const error& why) {
    if (why.code() != errc::already_exists && why.code() != errc::writer_ending) {
      throw;
    }
    return std::nullopt;
  }
}

/// At least eight also on few CPUs, because threads wait for disks.
unsigned automatic_threads() {
  constexpr double fewest = 8;
  constexpr double most = 16;
  return static_cast<unsigned>(std::clamp(std::ceil(base::cpu_limit()), fewest, most));
}

job describe(client& by,
             const std::string& name,
             const std::vector<std::string>& paths,
             const load_options& options) {
  constexpr unsigned max_threads = 64;
  constexpr std::size_t longest_name = max_name_bytes - 48;  // names beside it are longer
  if (options.threads > max_threads || name.size() > longest_name) {
    throw error(errc::invalid_argument,
                operation,
                name,
                name.size() > longest_name ? "a name of " + std::to_string(name.size()) + " bytes"
                                           : std::to_string(options.threads) + " threads",
                "use 1 to " + std::to_string(max_threads) + " threads and a name of at most " +
                    std::to_string(longest_name) + " bytes");
  }
  const unsigned threads = options.threads == 0 ? automatic_threads() : options.threads;
  job result{by, name, options, threads, base::deadline_after(options.timeout), {}, {}, {}, {}};
  result.files = open_model(paths);
  result.plan = plan(result.files);
  result.table_of_zeros = write_tensors(result.plan.table);
  result.fingerprint = fingerprint_of(result.files);
  return result;
}

}  // namespace

segment load(client& by,
             const std::string& name,
             const std::vector<std::string>& paths,
             const load_options& options) {
  const job of = describe(by, name, paths, options);
  std::optional<found_slab> held;
  broker_losses losses;
  for (;;) {
    try {
      if (auto found = find(of, access::read); found && found->is_complete) {
        try {
          // Its loader may have been killed before it has done this.
          of.by.remove(of.journal_name(found->info));
        } catch (const error& why) {
          if (losses.may_repeat_after(why)) {
            base::pause_before_retry(retry_pause);
            continue;  // nobody else would remove it
          }
          base::log(log_level::debug, why.what());
        }
        return std::move(found->memory);
      }
      of.check_time();
      if (auto progress = try_to_lead(of)) {
        lead(of, std::move(*progress));
        losses.end();
        continue;
      }
      follow(of, held);
      losses.end();
    } catch (const error& why) {
      if (!losses.may_repeat_after(why)) {
        throw;
      }
      of.check_time();
    }
    base::pause_before_retry(retry_pause);
  }
}

namespace {

/// Blocks until the loader is done or has ended, at most `timeout`; for a pause if there is none.
void await_loader(client& by,
                  const std::string& name,
                  milliseconds timeout,
                  const std::stop_token& stop) {
  try {
    const timeline progress = timeline::open(by, name + load_suffix, timeout, stop);
    static_cast<void>(progress.wait(max_timeline_value, timeout, stop));
  } catch (const error& why) {
    base::log(log_level::debug, why.what());
    base::pause_before_retry(retry_pause);
  }
}

}  // namespace

segment open_complete(client& by, const std::string& name, const open_options& options) {
  const auto until = base::deadline_after(options.timeout);
  open_options wanted = options;
  wanted.access = access::read;
  broker_losses losses;
  for (;;) {
    wanted.timeout = base::time_left(until);
    segment opened;
    try {
      opened = by.open(name, wanted);
      losses.end();
    } catch (const error& why) {
      if (steady_clock::now() >= until || options.stop.stop_requested() ||
          !losses.may_repeat_after(why)) {
        throw;
      }
      base::pause_before_retry(retry_pause);
      continue;
    }
    const auto info = info_of(opened);
    if (!info) {
      throw error(errc::invalid_argument,
                  "open tensors",
                  name,
                  "it is a segment without tensors",
                  "open it as memory, or pass the name of loaded weights");
    }
    if (is_sealed(opened, *info)) {
      return opened;
    }
    if (options.stop.stop_requested()) {
      throw error(errc::cancelled, "open tensors", name, "the wait was stopped", "");
    }
    if (steady_clock::now() >= until) {
      throw error(errc::timed_out,
                  "open tensors",
                  name,
                  "it is not complete: it is still loaded, or its loader has died",
                  "allow more time, or load it again: the load goes on where it ended");
    }
    opened.reset();
    await_loader(by, name, std::min(report_pause, base::time_left(until)), options.stop);
  }
}

}  // namespace gpushm::weights
