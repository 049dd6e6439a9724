// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/hex.hpp"
#include "gpushm/error.hpp"
#include "gpushm/tensors.hpp"
#include "tensors/files/layout.hpp"
#include "tensors/files/model_files.hpp"
#include "tensors/loads/identity.hpp"
#include "tensors/loads/slab.hpp"

namespace gpushm::tensors {

/// How often a load reports, and looks whether it is to stop.
inline constexpr std::chrono::milliseconds report_pause{100};

/// In host memory beside a segment that is filled: what its next loader needs.
struct load_journal_head {
  slab_id id{};
  model_identity identity{};  ///< of the files that the complete pieces are from
  std::atomic<std::uint64_t> verified_pieces{0};
};

/// The hashes of parts, and how many pieces are complete. Written before the timeline is signaled.
class load_journal {
 public:
  static std::uint64_t bytes_for(const layout& layout) {
    return sizeof(load_journal_head) + layout.parts.size() * sizeof(std::uint64_t);
  }
  explicit load_journal(segment memory) : memory_(std::move(memory)) {}

  [[nodiscard]] load_journal_head& head() const {
    return *static_cast<load_journal_head*>(memory_.mutable_data());
  }
  [[nodiscard]] std::uint64_t* hashes() const {
    return reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(memory_.mutable_data()) +
                                            sizeof(load_journal_head));
  }

 private:
  segment memory_;
};

/// Returns the name of the timeline whose signaler is the loader.
[[nodiscard]] inline std::string load_name(const std::string& name) {
  return name + "/~load";
}

/// The prefix of the names of all load journals of a model.
[[nodiscard]] inline std::string load_journal_prefix(const std::string& name) {
  return name + "/~loaded-";
}

/// What is loaded, and how.
struct job {
  gpushm::client& client;
  const std::string& name;
  const load_options& options;
  unsigned threads;
  std::chrono::steady_clock::time_point until;
  std::optional<index_file> index;
  std::vector<model_file> files;
  layout plan;
  std::uint64_t table_bytes;
  std::string fingerprint;  ///< of the layout, and of the selection if it is not everything
  model_identity identity;
  model_sources sources;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();

  [[nodiscard]] std::string load_journal_name(const slab_info& slab) const {
    return load_journal_prefix(name) + base::hex_text(slab.id);
  }
  [[nodiscard]] error exists(std::string_view subject,
                             std::string_view next_step =
                                 "replace it (gpushm load --replace; replace in the options), or "
                                 "load the model under another name") const {
    return {errc::already_exists, "load", name, subject, next_step};
  }
  /// At most one for each piece.
  [[nodiscard]] unsigned lanes() const {
    return static_cast<unsigned>(std::min<std::size_t>(threads, plan.pieces.size()));
  }
  /// Throws `error` (invalid_file) if a file is not what it was when it was opened.
  void check_files() const {
    if (index && stamp_at(index->path) != index->stamp) {
      throw error(errc::invalid_file,
                  "load",
                  index->path,
                  "it has changed since this load has opened it",
                  std::string(when_written));
    }
    for (const model_file& each : files) {
      check_unchanged(each.file.get(), each.path, each.stamp);
    }
  }
  void check_time() const {
    if (options.stop.stop_requested()) {
      throw error(errc::cancelled, "load", name, "the load was stopped", "");
    }
    if (std::chrono::steady_clock::now() >= until) {
      throw error(errc::timed_out,
                  "load",
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

}  // namespace gpushm::tensors
