// SPDX-License-Identifier: Apache-2.0
#include "weights/load.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "base/cpu_limit.hpp"
#include "base/deadline.hpp"
#include "base/has_gone.hpp"
#include "base/log.hpp"
#include "base/syscall.hpp"
#include "gpushm/error.hpp"
#include "gpushm/timeline.hpp"
#include "weights/filling.hpp"
#include "weights/hash.hpp"
#include "weights/layout.hpp"
#include "weights/load_job.hpp"
#include "weights/slab.hpp"
#include "weights/tensor_json.hpp"

namespace gpushm::weights {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* operation = "load";
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

/// Removes all notes beside the model, also of slabs that were removed before they were complete.
/// If another process begins to load the model meanwhile, its successor would read all of it again.
/// Throws what a client throws, but for notes that cannot be removed.
void remove_notes(const job& of) {
  for (const auto& each : of.by.list(of.notes_name())) {
    try {
      of.by.remove(each.name);
    } catch (const error& why) {
      if (broker_losses::is_loss(why)) {
        throw;
      }
      base::log(log_level::debug, why.what());
    }
  }
}

/// Of a model that is complete: its loader may have been killed before it has done this. False: its
/// broker has ended, and no other load would do it.
bool remove_notes_of_complete(const job& of, broker_losses& losses) {
  try {
    remove_notes(of);
  } catch (const error& why) {
    if (losses.may_repeat_after(why)) {
      return false;
    }
    base::log(log_level::debug, why.what());
  }
  return true;
}

/// After a failure: others may wait, and go on; what no other process has open is not left behind.
void remove_unless_awaited(const job& of) noexcept {
  try {
    if (of.by.stat(of.name).leases <= 1) {
      remove_notes(of);
      of.by.remove(of.name);
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

/// How long each part of a load has taken: what to look at when one is slow.
class phases {
 public:
  explicit phases(const job& of) : of_(of), last_(of.begin) {}
  void end(const char* what, steady_clock::time_point now = steady_clock::now()) {
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(now - last_);
    text_ += std::string(", ") + what + ' ' + std::to_string(took.count());
    last_ = now;
  }
  void log() const {
    base::log(log_level::debug, "load \"" + of_.name + "\": microseconds" + text_);
  }

 private:
  const job& of_;
  steady_clock::time_point last_;
  std::string text_;
};

/// `progress`: no other process loads as long as this process has it.
void lead(const job& of, timeline progress) {
  phases took(of);
  took.end("files and name");
  auto slab = find(of, access::read_write);
  if (slab && slab->is_complete) {
    return;  // by the loader before
  }
  const bool is_new = !slab;
  if (is_new) {
    const slab_info info = new_slab(of.fingerprint, of.plan.table_offset, of.table_of_zeros.size());
    create_options wanted;
    wanted.size_bytes = slab_bytes(info);
    wanted.device = of.options.device;
    wanted.lifetime = lifetime::persistent;
    segment memory = make_or_await([&] { return of.by.create(of.name, wanted); });
    memory.publish(to_metadata(info));
    slab = found_slab{std::move(memory), info, false};
  }
  try {
    // After the slab, whose next loader removes it: without a slab nothing would end it.
    auto journal = is_new ? std::nullopt : find_journal(of, slab->info);
    if (!journal) {
      remove_notes(of);
      journal.emplace(make_or_await([&] { return make_journal(of, slab->info); }));
    }
    took.end("memory");
    of.check_files();  // it may have waited long for another loader
    filling work(of, slab->memory, *journal, progress);
    work.run();
    if (work.first_complete() != steady_clock::time_point()) {
      took.end("first piece", work.first_complete());
      took.end("other pieces", work.last_complete());
    }
    took.end("end of the threads");
    of.check_files();  // what was read is one content of them
    seal(slab->memory, slab->info, complete_table(of, *journal));
  } catch (const error& why) {
    if (!broker_losses::is_loss(why)) {  // after which this goes on
      remove_unless_awaited(of);
    }
    throw;
  } catch (...) {
    remove_unless_awaited(of);
    throw;
  }
  if (of.plan.tensor_bytes != 0) {
    progress.signal(of.plan.tensor_bytes);
  }
  took.end("seal");
  slab.reset();
  took.end("unmap");
  took.log();
}

/// Until the loader is done, or has ended. `held`: the segment, so that its loader does not remove
/// it when it fails, and the next broker gets it if this one ends.
///
/// A loader that dies together with the broker and its keeper leaves a timeline that is ended late,
/// or, with a broker that takes nothing back, never. So this ends, too, with another broker that
/// does not continue the first one: that one has been given the loader's name again, or there is no
/// loader.
void follow(const job& of, std::optional<found_slab>& held) {
  try {
    const epoch followed = of.by.broker().epoch;
    if (auto now = find(of, access::read_write)) {
      held = std::move(now);
    }
    const timeline progress =
        timeline::open(of.by, load_name(of.name), report_pause, of.options.stop);
    bool is_complete = false;
    while (!is_complete) {
      of.check_time();
      if (!held) {
        held = find(of, access::read_write);
      }
      of.report(progress.value(), 0, false);
      is_complete = progress.wait(of.plan.tensor_bytes, report_pause, of.options.stop);
      if (!is_complete && of.by.broker().epoch != followed) {
        return;
      }
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
    return timeline::create(of.by, load_name(of.name));
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
        if (remove_notes_of_complete(of, losses)) {
          return std::move(found->memory);
        }
        base::pause_before_retry(retry_pause);
        continue;
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
    const timeline progress = timeline::open(by, load_name(name), timeout, stop);
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
