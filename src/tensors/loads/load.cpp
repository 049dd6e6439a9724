// SPDX-License-Identifier: Apache-2.0
#include "tensors/loads/load.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/syscall.hpp"
#include "base/process/cpu_limit.hpp"
#include "base/process/deadline.hpp"
#include "base/report/has_gone.hpp"
#include "base/report/log.hpp"
#include "base/segments/versioned_names.hpp"
#include "base/text/quoted.hpp"
#include "gpu/driver/device_text.hpp"
#include "gpu/driver/devices.hpp"
#include "gpushm/error.hpp"
#include "gpushm/timeline.hpp"
#include "gpushm/versions.hpp"
#include "tensors/files/hash.hpp"
#include "tensors/files/layout.hpp"
#include "tensors/files/selection.hpp"
#include "tensors/files/tensor_table.hpp"
#include "tensors/loads/copy_lane.hpp"
#include "tensors/loads/filling.hpp"
#include "tensors/loads/identity.hpp"
#include "tensors/loads/load_job.hpp"
#include "tensors/loads/prepared_lanes.hpp"
#include "tensors/loads/slab.hpp"

namespace gpushm::tensors {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* operation = "load";
constexpr milliseconds retry_pause{10};
/// How long loads and opens wait for a broker.
constexpr std::chrono::seconds without_broker{30};

/// Another process creates the same segment, and has not published it: a loader whose broker has
/// ended, or another program.
class being_created : public error {
 public:
  explicit being_created(const error& why) : error(why) {}
};

/// Errors after the end of a broker without a takeover: the call is repeated with the next broker.
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

struct found_slab {
  segment memory;
  slab_info info;
  bool is_complete = false;
};
/// Returns the segment if it is published, and whether it is complete. Throws already_exists if it
/// has no tensors.
std::optional<found_slab> find(client& client,
                               const std::string& name,
                               const load_options& options,
                               access access) {
  open_options wanted;
  wanted.access = access;
  wanted.device = options.device == "auto" ? std::string() : options.device;
  auto opened = client.try_open(name, wanted);
  if (!opened) {
    return std::nullopt;
  }
  const auto info = info_of(*opened);
  if (!info) {
    throw error(errc::already_exists,
                operation,
                name,
                "there is a segment of this name without tensors",
                "remove it first (gpushm rm), or load the model under another name");
  }
  const bool is_complete = is_sealed(*opened, *info);
  return found_slab{std::move(*opened), *info, is_complete};
}
std::optional<found_slab> find(const job& job, access access) {
  return find(job.client, job.name, job.options, access);
}
/// Whether it has tensors of these names, types, shapes and places.
bool has_layout_of(const job& job, const found_slab& slab) {
  return slab.info.fingerprint == job.fingerprint;
}

// ---- whether a segment has the contents of the files ----

bool is_known(const segment& slab, const slab_info& info, const model_identity& identity) {
  const auto known = sources_of(slab, info).known;
  return std::find(known.begin(), known.end(), identity) != known.end();
}

/// Opens a complete model that was loaded from files of these stamps. Reads no file, and parses
/// nothing.
std::optional<segment> find_known(client& client,
                                  const std::string& name,
                                  const std::vector<std::string>& paths,
                                  const load_options& options) {
  if (options.verify == verify::full) {
    return std::nullopt;
  }
  auto slab = find(client, name, options, access::read);
  if (!slab || !slab->is_complete) {
    return std::nullopt;
  }
  const auto sources = sources_of(slab->memory, slab->info);
  const auto identity = identity_at(paths, sources.names, selection_text(options));
  if (!identity ||
      std::find(sources.known.begin(), sources.known.end(), *identity) == sources.known.end()) {
    return std::nullopt;
  }
  return std::move(slab->memory);
}

/// The file that a tensor of the plan is read from.
const model_file& file_of(const job& job, std::size_t tensor_index) {
  std::size_t first = 0;
  for (const model_file& each : job.files) {
    first += each.contents.all.size();
    if (tensor_index < first) {
      return each;
    }
  }
  return job.files.back();
}

/// Reads and hashes all files. Returns how they differ from a segment of the same layout.
std::optional<std::string> difference(const job& job, const found_slab& slab) {
  const auto table = table_of(slab.memory, slab.info);
  if (!table) {
    return "it is not complete";
  }
  std::vector<std::uint64_t> hashes(job.plan.parts.size());
  filling::target to;
  to.open_lane = [&](copy_lane::done report) {
    return copy_lane::to_nowhere(job.name, std::move(report));
  };
  to.hashes = hashes.data();
  to.on_complete = [](std::size_t, std::uint64_t) {};
  to.is_load = false;
  filling(job, std::move(to)).run();
  job.check_files();
  const tensor_list files = table_with(job.plan, hashes.data());
  if (encode_table(files) == table->words()) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i != files.all.size(); ++i) {
    const tensor& each = files.all[i];
    if (const auto at = table->find(each.name); !at || (*table)[*at].hash != each.hash) {
      const model_file& from = file_of(job, i);
      return "this name has another model, or the file has changed since it was loaded: tensor " +
             base::in_quotes(each.name) + " of " + base::in_quotes(from.path) + " differs (mtime " +
             time_text(from.stamp.mtime_ns) + ')';
    }
  }
  return "this name has another model";
}

/// Stores the identity of the files, so that later loads of the same files read none of them.
void remember_files(const job& job) {
  base::log(log_level::info,
            "load \"" + job.name + "\": other files, or written again, with the same contents");
  try {
    if (auto slab = find(job, access::read_write);
        slab && slab->is_complete && has_layout_of(job, *slab)) {
      remember(slab->memory, slab->info, job.identity);
    }
  } catch (const error& why) {  // this process may not write it: each of its loads reads the files
    base::log(log_level::info, why.what());
  }
}

/// Returns nullopt if the complete segment has the contents of the files, otherwise the difference.
std::optional<std::string> why_not(const job& job, const found_slab& slab, bool is_loaded_here) {
  if (!has_layout_of(job, slab)) {
    const bool is_selection =
        (job.fingerprint + slab.info.fingerprint).find('+') != std::string::npos;
    std::string result =
        is_selection
            ? "this name has another selection of tensors and slices, or another model, or the "
              "files have changed since they were loaded"
            : "this name has another model, or the files have changed since they were loaded";
    const auto newest = std::max_element(
        job.files.begin(), job.files.end(), [](const model_file& left, const model_file& right) {
          return left.stamp.mtime_ns < right.stamp.mtime_ns;
        });
    if (newest != job.files.end()) {
      result += " (the newest is " + base::in_quotes(newest->path) + ": mtime " +
                time_text(newest->stamp.mtime_ns) + ')';
    }
    return result;
  }
  const bool is_same = is_known(slab.memory, slab.info, job.identity);
  if (is_same && (is_loaded_here || job.options.verify == verify::automatic)) {
    return std::nullopt;
  }
  auto result = difference(job, slab);
  if (!result && !is_same) {
    remember_files(job);
  }
  return result;
}

// ---- one loader, and others that wait ----

/// Creates a load journal. `is_kept`: it stays for the next loader; else it ends with this process.
load_journal make_load_journal(const job& job, const slab_info& info, bool is_kept) {
  create_options wanted;
  wanted.size_bytes = load_journal::bytes_for(job.plan);
  wanted.device = "host";
  wanted.lifetime = is_kept ? lifetime::persistent : lifetime::leased;
  segment made = job.client.create(job.load_journal_name(info), wanted);  // contents are zero
  auto* const head = static_cast<load_journal_head*>(made.mutable_data());
  head->id = info.id;
  head->identity = job.identity;
  if (is_kept) {
    made.publish();
  }
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

/// Finds the load journal of the previous loader, if it can be used.
std::optional<load_journal> find_load_journal(const job& job, const slab_info& info) {
  open_options wanted;
  wanted.access = access::read_write;
  auto opened = job.client.try_open(job.load_journal_name(info), wanted);
  if (!opened || opened->size_bytes() != load_journal::bytes_for(job.plan)) {
    return std::nullopt;
  }
  load_journal result(std::move(*opened));
  if (result.head().id != info.id ||
      result.head().verified_pieces.load(std::memory_order_acquire) > job.plan.pieces.size()) {
    return std::nullopt;
  }
  if (result.head().identity !=
      job.identity) {  // the files may have other contents: read all of them again
    result.head().verified_pieces.store(0, std::memory_order_release);
    result.head().identity = job.identity;
  }
  return result;
}

/// Removes all load journals of the model, even those of slabs that were removed incomplete. If
/// another process begins to load the model meanwhile, its successor would read all of it again.
/// Throws as a client, except for journals that cannot be removed.
void remove_load_journals(client& client, const std::string& name) {
  for (const auto& each : client.list(load_journal_prefix(name))) {
    try {
      client.remove(each.name, each.generation);
    } catch (const error& why) {
      if (broker_losses::is_loss(why)) {
        throw;
      }
      base::log(log_level::debug, why.what());
    }
  }
}

/// Removes the load journals of a complete model, in case its loader was killed first. Returns
/// false if the broker has ended: repeat the load, because no later one removes them.
bool remove_load_journals_of_complete(client& client,
                                      const std::string& name,
                                      broker_losses& losses) {
  try {
    remove_load_journals(client, name);
  } catch (const error& why) {
    if (losses.may_repeat_after(why)) {
      return false;
    }
    base::log(log_level::debug, why.what());
  }
  return true;
}

/// Cleans up after a failed load: removes the model unless another process has it open, which may
/// then continue the load.
void remove_unless_awaited(const job& job, generation slab) noexcept {
  try {
    if (job.client.stat(job.name, slab).leases <= 1) {
      remove_load_journals(job.client, job.name);
      job.client.remove(job.name, slab);
    }
  } catch (const std::exception& why) {
    base::log(log_level::debug, why.what());
  }
}

/// What a load knows of its pieces.
struct load_progress_record {
  std::uint64_t* hashes;  ///< of all parts
  std::size_t first;      ///< all pieces before it are complete
  /// As `filling::target::on_complete`.
  std::function<void(std::size_t complete, std::uint64_t bytes)> on_complete;
};

load_progress_record record_in(const job& job, const load_journal& journal, timeline& progress) {
  return {journal.hashes(),
          journal.head().verified_pieces.load(std::memory_order_acquire),
          [&job, &journal, &progress](std::size_t complete, std::uint64_t bytes) {
            journal.head().verified_pieces.store(complete, std::memory_order_release);
            if (complete != job.plan.pieces.size()) {  // the last signal shows that it is sealed
              progress.signal(bytes);
            }
          }};
}

/// Measures each part of a load, to find out why one is slow.
class phases {
 public:
  explicit phases(const job& job) : of_(job), last_(job.begin) {}
  void end(const char* step, steady_clock::time_point now = steady_clock::now()) {
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(now - last_);
    text_ += std::string(", ") + step + ' ' + std::to_string(took.count());
    last_ = now;
  }
  /// As `end`, for a part that runs beside the next one.
  void note(const char* step, steady_clock::time_point now) {
    const auto before = last_;
    end(step, now);
    last_ = before;
  }
  void log() const {
    base::log(log_level::debug, "load \"" + of_.name + "\": microseconds" + text_);
  }

 private:
  const job& of_;
  steady_clock::time_point last_;
  std::string text_;
};

/// Copies the tensors into the slab, and seals it.
void fill(const job& job,
          found_slab& slab,
          load_progress_record record,
          prepared_lanes& lanes,
          phases& took) {
  took.end("memory");
  job.check_files();  // it may have waited long for another loader
  filling::target target;
  target.open_lane = [&slab, &lanes](copy_lane::done report) {
    return lanes.take(slab.memory, std::move(report));
  };
  target.hashes = record.hashes;
  target.first = record.first;
  target.on_complete = std::move(record.on_complete);
  filling work(job, std::move(target));
  work.run();
  if (work.first_complete() != steady_clock::time_point()) {
    took.end("first lane", work.first_lane());
    took.note("last lane", work.last_lane());  // the other lanes read meanwhile
    took.end("first piece", work.first_complete());
    took.end("other pieces", work.last_complete());
  }
  took.end("end of the threads");
  job.check_files();  // the files did not change while they were read
  seal(slab.memory, slab.info, encode_table(table_with(job.plan, record.hashes)), job.sources);
}

/// Signals waiting processes before this process unmaps the segment, which takes long.
void tell_complete(const job& job, timeline& progress, phases& took) {
  if (job.plan.tensor_bytes != 0) {
    progress.signal(job.plan.tensor_bytes);
  }
  took.end("seal");
}

/// Creates a slab without publishing it. `replaces`: the generation that has the name until then;
/// 0: none.
found_slab make_slab(const job& job, generation replaces) {
  const slab_info info = new_slab(
      job.fingerprint, job.plan.table_offset, job.table_bytes, sources_bytes_for(job.sources));
  create_options wanted;
  wanted.size_bytes = slab_bytes(info);
  wanted.device = job.options.device;
  wanted.lifetime = lifetime::persistent;
  wanted.replaces = replaces;
  try {
    return {make_or_await([&] { return job.client.create(job.name, wanted); }), info, false};
  } catch (const being_created& why) {
    if (base::is_versioned_name(job.name) || !list_versions(job.client, job.name).empty()) {
      throw error(why.code(),
                  operation,
                  job.name,
                  why.cause(),
                  "create a version of this name, and let one process load each part of it");
    }
    throw;
  }
}

[[nodiscard]] bool is_shortage(const error& why) {
  return why.code() == errc::out_of_memory || why.code() == errc::quota_exceeded ||
         why.code() == errc::share_exceeded;
}

/// Loads the model beside the segment of another one, which has the name until this one is
/// complete. A failed load leaves nothing behind. Returns false if the name has another segment by
/// now.
bool load_beside(
    const job& job, generation replaced, timeline& progress, prepared_lanes& lanes, phases& took) {
  std::optional<found_slab> slab;
  try {
    slab = make_slab(job, replaced);
  } catch (const error& why) {
    if (why.code() == errc::gone_or_replaced) {
      return false;
    }
    if (!is_shortage(why)) {
      throw;
    }
    throw error(why.code(),
                operation,
                job.name,
                why.cause() + "; the model that has the name stays until this one is complete",
                "remove that one first (gpushm rm), or " + why.next_step());
  }
  const load_journal journal = make_load_journal(job, slab->info, false);
  fill(job, *slab, record_in(job, journal, progress), lanes, took);
  slab->memory.publish(to_metadata(slab->info));
  tell_complete(job, progress, took);
  return true;
}

/// The result of a leader.
struct leading {
  bool has_loaded = false;
  bool has_replaced = false;
};

/// Continues the slab of a previous loader, or makes a new one. Returns false if the name has a
/// segment of another kind.
bool load_or_continue(const job& job, timeline& progress, prepared_lanes& lanes, phases& took) {
  auto slab = find(job, access::read_write);
  if (slab && (slab->is_complete || !has_layout_of(job, *slab))) {
    return false;  // by the previous loader
  }
  const bool is_new = !slab;
  if (is_new) {
    slab = make_slab(job, 0);
    slab->memory.publish(to_metadata(slab->info));
  }
  const generation loaded = slab->memory.generation();
  try {
    // After the slab, whose next loader removes the journal: without a slab it would never end.
    auto journal = is_new ? std::nullopt : find_load_journal(job, slab->info);
    if (!journal) {
      remove_load_journals(job.client, job.name);
      journal.emplace(make_or_await([&] { return make_load_journal(job, slab->info, true); }));
    }
    fill(job, *slab, record_in(job, *journal, progress), lanes, took);
  } catch (const error& why) {
    if (!broker_losses::is_loss(why)) {  // after a loss this continues
      remove_unless_awaited(job, loaded);
    }
    throw;
  } catch (...) {
    remove_unless_awaited(job, loaded);
    throw;
  }
  tell_complete(job, progress, took);
  return true;
}

/// Loads a part of a version that is being made, and returns it: nobody can open it before the
/// version is published. Nobody continues it: it ends with this process, and the version with it.
/// So it needs neither an election nor a journal. A failure ends the version.
segment load_part(const job& job, prepared_lanes& lanes) {
  phases took(job);
  took.end("files and name");
  found_slab slab = make_slab(job, 0);
  std::vector<std::uint64_t> hashes(job.plan.parts.size());
  fill(job, slab, {hashes.data(), 0, [](std::size_t, std::uint64_t) {}}, lanes, took);
  job.check_time();  // the last report may have ended the load
  slab.memory.publish(to_metadata(slab.info));
  took.end("seal");
  took.log();
  return std::move(slab.memory);
}

/// Leads a load. `progress`: no other process loads as long as this process has it. `replaced`: the
/// segment of another model that this one replaces; 0: none. `lanes`: unused, of this call or a
/// previous one.
leading lead(const job& job,
             timeline progress,
             generation replaced,
             std::optional<prepared_lanes>& lanes) {
  phases took(job);
  took.end("files and name");
  if (!lanes) {
    lanes.emplace(job.options.device, job.lanes(), job.name);
  }
  leading result;
  if (replaced != 0) {
    job.check_files();
    result.has_loaded = result.has_replaced = load_beside(job, replaced, progress, *lanes, took);
  } else {
    result.has_loaded = load_or_continue(job, progress, *lanes, took);
  }
  if (result.has_loaded) {
    took.end("unmap");
    took.log();
  }
  return result;
}

/// Waits until the loader is done or has ended. `held`: the segment, so that a failing loader does
/// not remove it, and this process can hand it back to the next broker. It is not the segment of
/// another model that the loader replaces (`replaced`; 0: none).
///
/// A loader that dies together with the broker and its keeper leaves a timeline that ends late, or
/// never if the next broker accepts no hand-back. So this also ends when a broker has started
/// without a takeover: either the loader's name was handed back to it, or there is no loader.
void follow(const job& job, generation replaced, std::optional<found_slab>& held) {
  const auto find_slab = [&]() -> std::optional<found_slab> {
    auto now = replaced == 0 ? find(job, access::read_write) : std::nullopt;
    return now && has_layout_of(job, *now) ? std::move(now) : std::nullopt;
  };
  try {
    const epoch followed = job.client.broker().epoch;
    if (auto now = find_slab()) {
      held = std::move(now);
    }
    const timeline progress =
        timeline::open(job.client, load_name(job.name), report_pause, job.options.stop);
    bool is_complete = false;
    while (!is_complete) {
      job.check_time();
      if (!held) {
        held = find_slab();
      }
      job.report(progress.value(), 0, false);
      is_complete = progress.wait(job.plan.tensor_bytes, report_pause, job.options.stop);
      if (!is_complete && job.client.broker().epoch != followed) {
        return;
      }
    }
  } catch (const error& why) {
    if (!base::has_gone(why)) {
      throw;
    }
  }
}

/// Returns nullopt if another process loads.
std::optional<timeline> try_to_lead(const job& job) {
  try {
    return timeline::create(job.client, load_name(job.name));
  } catch (const error& why) {
    if (why.code() != errc::already_exists && why.code() != errc::writer_ending) {
      throw;
    }
    return std::nullopt;
  }
}

/// At least eight even on few CPUs, because threads wait for disks.
unsigned automatic_threads() {
  constexpr double fewest = 8;
  constexpr double most = 16;
  return static_cast<unsigned>(std::clamp(std::ceil(base::cpu_limit()), fewest, most));
}

/// Whether it is of a version. Throws `error`: invalid_argument.
bool is_part_of_version(const std::string& name, const load_options& options) {
  if (!base::is_versioned_name(name)) {
    return false;
  }
  const auto refuse = [&](const char* cause) {
    return error(errc::invalid_argument,
                 operation,
                 name,
                 cause,
                 "create the next version, and load into its number, or into a part of it");
  };
  if (base::parse_versioned_name(operation, name).number == 0) {
    throw refuse("an alias refers to a version that is published");
  }
  if (options.replace) {
    throw refuse("a part of a version is not replaced");
  }
  return true;
}

void check_options(const std::string& name, const load_options& options) {
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
}

/// A model has one device, that of its first load. Other devices use it from there, more slowly and
/// without an error.
segment on_device(segment loaded, const load_options& options) {
  if (options.device == "auto") {
    return loaded;
  }
  const device_id place = loaded.device();
  bool is_there = (place.kind == device_kind::host) == (options.device == "host");
  if (is_there && place.kind != device_kind::host) {
    const driver::gpu* const gpu = driver::find_visible(place);
    is_there = gpu != nullptr && gpu->ordinal == loaded.ordinal();
  }
  if (!is_there) {
    base::log(log_level::warning,
              "load \"" + loaded.name() + "\": the model is on " + place.text() + ", not on " +
                  options.device + ", which uses it from there; load it under another name to " +
                  "have it on both");
  }
  return loaded;
}

/// Throws `error`: invalid_file.
table_words encoded(const std::string& name, const tensor_list& table) {
  try {
    return encode_table(table);
  } catch (const invalid_table& why) {
    throw error(errc::invalid_file,
                operation,
                name,
                std::string("the table of its tensors is too large: ") + why.what(),
                "load it as several segments (tensors in the options)");
  }
}

job describe(client& client,
             const std::string& name,
             const std::vector<std::string>& paths,
             const load_options& options,
             steady_clock::time_point until) {
  const unsigned threads = options.threads == 0 ? automatic_threads() : options.threads;
  job result{client, name, options, threads, until, {}, {}, {}, {}, {}, {}, {}};
  result.index = index_of(paths);
  result.files = open_model(paths);
  const std::string selection = apply_selection(result.files, options);
  result.plan = plan(result.files);
  const table_words table = encoded(name, result.plan.table);
  result.table_bytes = bytes_in(table).size();
  result.fingerprint = hash_text(bytes_in(table));
  if (!selection.empty()) {
    result.fingerprint += '+' + selection;
  }
  result.identity = identity_of(result.index, result.files, selection_text(options));
  result.sources = {names_of(result.index, result.files), {result.identity}};
  return result;
}

}  // namespace

segment load(client& client,
             const std::string& name,
             const std::vector<std::string>& paths,
             const load_options& requested) {
  check_options(name, requested);
  const bool is_part = is_part_of_version(name, requested);
  load_options options = requested;
  options.device = driver::normal_device(requested.device);
  const auto until = base::deadline_after(options.timeout);
  std::optional<job> job;
  std::optional<found_slab> held;
  std::optional<prepared_lanes> lanes;
  broker_losses losses;
  bool is_loaded_here = false;
  bool may_replace = options.replace;
  generation replaced = 0;  // differs from the files: compared once
  for (;;) {
    try {
      if (!job) {
        if (auto known = find_known(client, name, paths, options);
            known && remove_load_journals_of_complete(client, name, losses)) {
          return on_device(*std::move(known), options);
        }
        job.emplace(describe(client, name, paths, options, until));
      }
      if (auto loaded = find(*job, access::read);
          loaded && loaded->memory.generation() != replaced &&
          (loaded->is_complete || !has_layout_of(*job, *loaded))) {
        const auto reason = why_not(*job, *loaded, is_loaded_here);
        if (!reason && remove_load_journals_of_complete(client, name, losses)) {
          return on_device(std::move(loaded->memory), options);
        }
        if (reason && is_part) {
          throw job->exists(*reason, "create the next version, and load into that");
        }
        if (reason && !may_replace) {
          throw job->exists(*reason);
        }
        replaced = reason ? loaded->memory.generation() : 0;
        held.reset();
      }
      job->check_time();
      if (is_part) {
        return load_part(*job, lanes.emplace(job->options.device, job->lanes(), job->name));
      }
      if (auto progress = try_to_lead(*job)) {
        const leading done = lead(*job, std::move(*progress), replaced, lanes);
        is_loaded_here = is_loaded_here || done.has_loaded;
        // Only once: two loads that replace each other's model would never end.
        may_replace = may_replace && !done.has_replaced;
        replaced = 0;
        losses.end();
        continue;
      }
      lanes.reset();
      follow(*job, replaced, held);
      losses.end();
    } catch (const error& why) {
      if (!losses.may_repeat_after(why)) {
        throw;
      }
      if (dynamic_cast<const being_created*>(&why) == nullptr) {
        replaced = 0;  // another broker may give its generation to another segment
      }
      if (job) {
        job->check_time();
      }
    }
    base::pause_before_retry(retry_pause);
  }
}

namespace {

/// Blocks until the loader is done or has ended, at most `timeout`; for a pause if there is none.
void await_loader(client& client,
                  const std::string& name,
                  milliseconds timeout,
                  const std::stop_token& stop) {
  try {
    const timeline progress = timeline::open(client, load_name(name), timeout, stop);
    static_cast<void>(progress.wait(max_timeline_value, timeout, stop));
  } catch (const error& why) {
    base::log(log_level::debug, why.what());
    base::pause_before_retry(retry_pause);
  }
}

}  // namespace

segment open_complete(client& client, const std::string& name, const open_options& options) {
  const auto until = base::deadline_after(options.timeout);
  open_options wanted = options;
  wanted.access = access::read;
  broker_losses losses;
  for (;;) {
    wanted.timeout = base::time_left(until);
    segment opened;
    try {
      opened = client.open(name, wanted);
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
    await_loader(client, name, std::min(report_pause, base::time_left(until)), options.stop);
  }
}

}  // namespace gpushm::tensors
