// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/weights/weight_source.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/near_match.hpp"
#include "apps/gpushm/weights/version_names.hpp"
#include "base/segments/versioned_names.hpp"
#include "base/text/quoted.hpp"
#include "gpushm/versions.hpp"
#include "tensors/files/file_stamp.hpp"
#include "tensors/files/model_files.hpp"
#include "tensors/files/tensor_table.hpp"
#include "tensors/loads/piece_reader.hpp"
#include "tensors/loads/slab.hpp"

namespace gpushm::cli {

namespace {

constexpr const char* open_operation = "read weights";

/// Whether strides are those of an array as in C, which tables need not have.
bool is_contiguous(std::span<const std::uint64_t> shape, std::span<const std::int64_t> strides) {
  std::uint64_t expected = 1;
  for (std::size_t i = shape.size(); i != 0; --i) {
    const std::uint64_t count = shape[i - 1];
    if (count != 1 && static_cast<std::uint64_t>(strides[i - 1]) != expected) {
      return false;
    }
    expected *= count;
  }
  return true;
}

/// A segment that was opened, and its table if it has tensors.
struct opened_segment {
  segment memory;
  std::string part;
  std::optional<tensors::tensor_table> table;
};

/// Throws `error`: invalid_argument, protocol_error, unsupported_version.
std::optional<tensors::tensor_table> table_in(const segment& memory) {
  const auto info = tensors::info_of(memory);
  if (!info) {
    return std::nullopt;
  }
  auto table = tensors::table_of(memory, *info);
  if (!table) {
    throw error(errc::invalid_argument,
                open_operation,
                memory.name(),
                "its tensors are not complete: they are still loaded, or their loader has died",
                "wait until they are, or load them again");
  }
  return table;
}

class segment_source : public weight_source {
 public:
  segment_source(std::string text, bool is_version, std::vector<opened_segment> segments)
      : weight_source(std::move(text)), is_version_(is_version), segments_(std::move(segments)) {
    std::vector<weight> weights;
    for (std::size_t i = 0; i != segments_.size(); ++i) {
      add_weights(i, weights);
    }
    set_weights(std::move(weights));
  }

  [[nodiscard]] bool is_version() const noexcept override { return is_version_; }
  [[nodiscard]] const std::byte* read(const weight& weight,
                                      std::uint64_t first,
                                      std::uint64_t bytes,
                                      std::byte* buffer) const override {
    segments_[weight.memory].memory.read(weight.offset + first, {buffer, bytes});
    return buffer;
  }

 private:
  void add_weights(std::size_t index, std::vector<weight>& weights) const {
    const opened_segment& from = segments_[index];
    weight added;
    added.part = from.part;
    added.memory = index;
    if (!from.table) {
      added.is_whole_segment = true;
      added.size_bytes = from.memory.size_bytes();
      weights.push_back(added);
      return;
    }
    for (std::size_t i = 0; i != from.table->size(); ++i) {
      const tensors::table_entry entry = (*from.table)[i];
      added.name = entry.name;
      added.dtype = entry.type.name;
      added.framework_dtype = entry.framework_dtype;
      added.stored_hash = entry.hash;
      added.shape = entry.shape;
      added.strides = entry.strides;
      if (!entry.strides.empty() && is_contiguous(entry.shape, entry.strides)) {
        added.strides = {};
      }
      added.offset = entry.begin;
      added.size_bytes = entry.end - entry.begin;
      weights.push_back(added);
    }
  }

  bool is_version_;
  std::vector<opened_segment> segments_;
};

class file_source : public weight_source {
 public:
  file_source(std::string text, std::vector<tensors::model_file> files)
      : weight_source(std::move(text)),
        files_(std::move(files)),
        reader_(files_, reading::automatic) {
    std::vector<weight> weights;
    for (std::size_t i = 0; i != files_.size(); ++i) {
      for (const tensors::tensor& each : files_[i].contents.all) {
        weight added;
        added.name = each.name;
        added.dtype = each.type.name;
        added.shape = each.shape;
        added.size_bytes = each.end - each.begin;
        added.memory = i;
        added.offset = files_[i].data_begin + each.begin;
        weights.push_back(added);
      }
    }
    set_weights(std::move(weights));
  }

  [[nodiscard]] bool is_file() const noexcept override { return true; }
  [[nodiscard]] const std::byte* read(const weight& weight,
                                      std::uint64_t first,
                                      std::uint64_t bytes,
                                      std::byte* buffer) const override {
    return reader_.read({static_cast<std::uint32_t>(weight.memory), weight.offset + first, bytes},
                        buffer);
  }
  void check_unchanged() const override {
    for (const tensors::model_file& each : files_) {
      tensors::check_unchanged(each.file.get(), each.path, each.stamp);
    }
  }

 private:
  std::vector<tensors::model_file> files_;
  tensors::piece_reader reader_;
};

/// The names of the segments of a version, in their order.
std::vector<std::string> segments_of(client& broker, const std::string& version) {
  std::vector<std::string> names;
  for (const segment_info& each : broker.list(version)) {
    if (each.published && (each.name == version || each.name.starts_with(version + "/")) &&
        internal_text(each.name).empty()) {
      names.push_back(each.name);
    }
  }
  return names;
}

/// All segments of one version, or nullopt if it has ended.
std::optional<std::vector<opened_segment>> try_open_version(client& broker,
                                                            const std::string& version) {
  const std::vector<std::string> names = segments_of(broker, version);
  std::vector<opened_segment> segments;
  for (open_result& each : broker.open_many(names)) {
    if (const error* const why = each.failure()) {
      if (why->code() == errc::no_such_segment) {
        return std::nullopt;
      }
      throw error(*why);
    }
    segments.push_back({std::move(each).value(), {}, {}});
  }
  if (segments.empty()) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i != segments.size(); ++i) {
    segments[i].part = names[i].substr(std::min(version.size() + 1, names[i].size()));
    segments[i].table = table_in(segments[i].memory);
  }
  return segments;
}

/// An alias may move, and what it referred to may end, between the requests: then it is resolved
/// again.
std::unique_ptr<weight_source> open_version(client& broker,
                                            const std::string& name,
                                            const base::versioned_name& parsed) {
  constexpr int attempts = 16;
  for (int i = 0; i != attempts; ++i) {
    std::string version = version_text(parsed.base, resolve_version(broker, name));
    if (auto segments = try_open_version(broker, version)) {
      return std::make_unique<segment_source>(std::move(version), true, *std::move(segments));
    }
  }
  throw error(errc::no_such_segment,
              open_operation,
              name,
              "the versions that it referred to have ended before they were opened",
              "pin a version (`gpushm weights pin`), and pass its alias");
}

std::unique_ptr<weight_source> open_segment(client& broker, const std::string& name) {
  std::vector<opened_segment> segments;
  segments.push_back({broker.open(name), {}, {}});
  segments.back().table = table_in(segments.back().memory);
  std::string text(segments.back().memory.name());
  return std::make_unique<segment_source>(std::move(text), false, std::move(segments));
}

/// Two tensors of different parts that cannot be joined.
[[noreturn]] void refuse_join(const std::string& text, const std::string& cause) {
  throw error(errc::invalid_argument,
              "compare weights",
              text,
              cause,
              fmt::format("name one part: {}/PART", text));
}

std::string path_list(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& each : paths) {
    text += (text.empty() ? "" : ", ") + each;
  }
  return text;
}

}  // namespace

const weight* weight_source::find(const weight& other) const noexcept {
  const auto at = std::lower_bound(
      weights_.begin(), weights_.end(), other, [](const weight& left, const weight& right) {
        return left.key() < right.key();
      });
  return at != weights_.end() && at->key() == other.key() ? &*at : nullptr;
}

void weight_source::set_weights(std::vector<weight> weights) {
  std::sort(weights.begin(), weights.end(), [](const weight& left, const weight& right) {
    return left.key() < right.key();
  });
  weights_ = std::move(weights);
}

void weight_source::join_parts() {
  std::vector<weight> joined = weights_;
  for (weight& each : joined) {
    if (each.is_whole_segment && joined.size() > 1) {
      refuse_join(text_, fmt::format("its part {} has no tensors", base::in_quotes(each.part)));
    }
    each.part = {};
  }
  std::sort(joined.begin(), joined.end(), [](const weight& left, const weight& right) {
    return left.key() < right.key();
  });
  const auto twice =
      std::adjacent_find(joined.begin(), joined.end(), [](const weight& left, const weight& right) {
        return left.key() == right.key();
      });
  if (twice != joined.end()) {
    refuse_join(text_,
                fmt::format("several of its parts have a tensor {}", base::in_quotes(twice->name)));
  }
  weights_ = std::move(joined);
}

bool is_weights_path(std::string_view argument) noexcept {
  return argument.starts_with('/') || argument.starts_with("./") || argument.starts_with("../") ||
         argument == "." || argument == ".." || argument.ends_with(".safetensors") ||
         argument.ends_with(".index.json");
}

std::unique_ptr<weight_source> open_weights(client& broker,
                                            const connection_arguments& connection,
                                            const std::string& name) {
  base::versioned_name parsed;
  if (base::is_versioned_name(name)) {
    parsed = parse_version_argument(open_operation, name);
  }
  return with_hint(connection, name, [&] {
    const bool is_whole_version = !parsed.base.empty() && parsed.part.empty();
    return is_whole_version ? open_version(broker, name, parsed) : open_segment(broker, name);
  });
}

std::unique_ptr<weight_source> open_weight_files(const std::vector<std::string>& paths) {
  try {
    return std::make_unique<file_source>(path_list(paths), tensors::open_model(paths));
  } catch (const error& why) {
    throw why.in(open_operation, why.object());
  }
}

void match_parts(weight_source& first, weight_source& second) {
  if (first.is_version() != second.is_version()) {
    (first.is_version() ? first : second).join_parts();
  }
}

}  // namespace gpushm::cli
