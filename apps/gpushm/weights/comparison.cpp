// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/weights/comparison.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/progress.hpp"
#include "tensors/files/hash.hpp"
#include "tensors/loads/block_buffer.hpp"

namespace gpushm::cli {

namespace {

/// Buffers for both sides, and how far a command is.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class block_reader {
 public:
  block_reader(const char* activity, std::uint64_t total_bytes) : bar_(activity, total_bytes) {
    for (tensors::block_buffer& each : buffers_) {
      each = tensors::make_block_buffer(weight_source::buffer_bytes);
      if (!each) {
        throw error(errc::out_of_memory,
                    "compare weights",
                    {},
                    fmt::format("no memory for {} bytes", weight_source::buffer_bytes),
                    "free memory");
      }
    }
  }

  /// Reads the same bytes of a weight of each source, and of one only if the others are null, block
  /// by block, until `take` returns false.
  template <typename Take>
  void for_each_block(const weight_source& first_source,
                      const weight& first,
                      const weight_source* second_source,
                      const weight* second,
                      Take&& take) {
    for (std::uint64_t at = 0; at != first.size_bytes;) {
      const std::uint64_t bytes = std::min(weight_source::block_bytes, first.size_bytes - at);
      const std::byte* const left = first_source.read(first, at, bytes, buffers_[0].get());
      const std::byte* right = nullptr;
      if (second_source != nullptr && second != nullptr) {
        right = second_source->read(*second, at, bytes, buffers_[1].get());
      }
      at += bytes;
      done_bytes_ += bytes;
      bar_.update(done_bytes_);
      if (!take(left, right, static_cast<std::size_t>(bytes))) {
        return;
      }
    }
  }

 private:
  progress bar_;
  std::uint64_t done_bytes_ = 0;
  std::array<tensors::block_buffer, 2> buffers_;
};

/// Without overflow: another process has written the sizes.
std::uint64_t total_bytes(const weight_source& source) {
  std::uint64_t sum = 0;
  for (const weight& each : source.weights()) {
    if (__builtin_add_overflow(sum, each.size_bytes, &sum)) {
      return std::numeric_limits<std::uint64_t>::max();
    }
  }
  return sum;
}

/// What differs before the contents are looked at.
weight_change layout_change(const weight_source& first_source,
                            const weight& first,
                            const weight_source& second_source,
                            const weight& second) {
  const bool has_framework_dtypes = !first_source.is_file() && !second_source.is_file();
  if (first.dtype != second.dtype ||
      (has_framework_dtypes && first.framework_dtype != second.framework_dtype)) {
    return weight_change::dtype;
  }
  if (!std::equal(
          first.shape.begin(), first.shape.end(), second.shape.begin(), second.shape.end())) {
    return weight_change::shape;
  }
  if (!std::equal(first.strides.begin(),
                  first.strides.end(),
                  second.strides.begin(),
                  second.strides.end())) {
    return weight_change::strides;
  }
  // Of whole segments, which have neither type nor shape.
  return first.size_bytes == second.size_bytes ? weight_change::none : weight_change::shape;
}

bool has_equal_bytes(block_reader& reader,
                     const weight_source& first_source,
                     const weight& first,
                     const weight_source& second_source,
                     const weight& second) {
  bool is_equal = true;
  reader.for_each_block(first_source,
                        first,
                        &second_source,
                        &second,
                        [&](const std::byte* left, const std::byte* right, std::size_t bytes) {
                          is_equal = std::memcmp(left, right, bytes) == 0;
                          return is_equal;
                        });
  return is_equal;
}

/// Verifies the weights of one source.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class verification {
 public:
  verification(const weight_source& source, const weight_source* files)
      : source_(source), files_(files), reader_("verifying", total_bytes(source)) {}

  weight_verification run() {
    for (const weight& each : source_.weights()) {
      add(each);
    }
    if (files_ != nullptr) {
      for (const weight& each : files_->weights()) {
        if (source_.find(each) == nullptr) {
          result_.problems.push_back({weight_verdict::missing, &each, {}});
        }
      }
      files_->check_unchanged();
    }
    return std::move(result_);
  }

 private:
  void add(const weight& subject) {
    if (subject.is_whole_segment) {
      result_.problems.push_back({weight_verdict::no_tensors, &subject, {}});
      return;
    }
    const weight* const in_files = files_ == nullptr ? nullptr : files_->find(subject);
    const bool has_other_layout =
        in_files != nullptr &&
        layout_change(source_, subject, *files_, *in_files) != weight_change::none;
    bool is_different = has_other_layout;
    std::vector<std::uint64_t> pieces;
    reader_.for_each_block(
        source_,
        subject,
        files_,
        has_other_layout ? nullptr : in_files,
        [&](const std::byte* left, const std::byte* right, std::size_t bytes) {
          pieces.push_back(tensors::hash_of({left, bytes}));
          is_different = is_different || (right != nullptr && std::memcmp(left, right, bytes) != 0);
          return true;
        });
    result_.bytes += subject.size_bytes;
    std::string hash = tensors::tensor_hash(pieces);
    const weight_verdict verdict = verdict_for(subject, hash, in_files, is_different);
    if (verdict == weight_verdict::verified) {
      ++result_.verified;
    } else {
      result_.problems.push_back({verdict, &subject, std::move(hash)});
    }
  }

  [[nodiscard]] weight_verdict verdict_for(const weight& subject,
                                           const std::string& hash,
                                           const weight* in_files,
                                           bool is_different) const {
    if (!subject.stored_hash.empty() && subject.stored_hash != hash) {
      return weight_verdict::damaged;
    }
    if (files_ != nullptr) {
      return in_files == nullptr ? weight_verdict::not_in_files
             : is_different      ? weight_verdict::different
                                 : weight_verdict::verified;
    }
    return subject.stored_hash.empty() ? weight_verdict::no_hash : weight_verdict::verified;
  }

  const weight_source& source_;
  const weight_source* files_;
  block_reader reader_;
  weight_verification result_;
};

}  // namespace

std::string_view change_text(weight_change change) {
  switch (change) {
    case weight_change::none:
      return "equal";
    case weight_change::added:
      return "added";
    case weight_change::removed:
      return "removed";
    case weight_change::dtype:
      return "dtype";
    case weight_change::shape:
      return "shape";
    case weight_change::strides:
      return "strides";
    case weight_change::contents:
      return "contents";
  }
  return "unknown";
}

std::string_view verdict_text(weight_verdict verdict) {
  switch (verdict) {
    case weight_verdict::verified:
      return "verified";
    case weight_verdict::damaged:
      return "damaged";
    case weight_verdict::no_hash:
      return "no-hash";
    case weight_verdict::no_tensors:
      return "no-tensors";
    case weight_verdict::different:
      return "different";
    case weight_verdict::not_in_files:
      return "not-in-files";
    case weight_verdict::missing:
      return "missing";
  }
  return "unknown";
}

std::uint64_t weight_comparison::count(weight_change change) const {
  return static_cast<std::uint64_t>(
      std::count_if(differences.begin(), differences.end(), [&](const weight_difference& each) {
        return each.change == change;
      }));
}

std::uint64_t weight_verification::count(weight_verdict verdict) const {
  return static_cast<std::uint64_t>(
      std::count_if(problems.begin(), problems.end(), [&](const weight_problem& each) {
        return each.verdict == verdict;
      }));
}

weight_comparison compare_weights(const weight_source& first,
                                  const weight_source& second,
                                  bool is_by_bytes) {
  weight_comparison result;
  block_reader reader("comparing", total_bytes(first));
  auto left = first.weights().begin();
  auto right = second.weights().begin();
  while (left != first.weights().end() || right != second.weights().end()) {
    const bool is_removed = right == second.weights().end() ||
                            (left != first.weights().end() && left->key() < right->key());
    if (is_removed) {
      result.differences.push_back({weight_change::removed, &*left++, nullptr});
      continue;
    }
    if (left == first.weights().end() || right->key() < left->key()) {
      result.differences.push_back({weight_change::added, nullptr, &*right++});
      continue;
    }
    weight_change change = layout_change(first, *left, second, *right);
    if (change == weight_change::none) {
      const bool has_hashes = !left->stored_hash.empty() && !right->stored_hash.empty();
      const bool is_by_hash = has_hashes && !is_by_bytes;
      ++(is_by_hash ? result.by_hashes : result.by_bytes);
      const bool is_equal = is_by_hash ? left->stored_hash == right->stored_hash
                                       : has_equal_bytes(reader, first, *left, second, *right);
      change = is_equal ? weight_change::none : weight_change::contents;
    }
    if (change == weight_change::none) {
      ++result.equal;
    } else {
      result.differences.push_back({change, &*left, &*right});
    }
    ++left;
    ++right;
  }
  first.check_unchanged();
  second.check_unchanged();
  return result;
}

weight_verification verify_weights(const weight_source& source, const weight_source* files) {
  return verification(source, files).run();
}

std::string weight_type_text(const weight& weight) {
  if (weight.is_whole_segment) {
    return exact_size_text(weight.size_bytes);
  }
  const auto list = [](const auto& numbers) {
    std::string text;
    for (const auto each : numbers) {
      text += (text.empty() ? "" : ", ") + std::to_string(each);
    }
    return "[" + text + "]";
  };
  std::string text(weight.dtype);
  if (!weight.framework_dtype.empty()) {
    text += fmt::format(" ({})", weight.framework_dtype);
  }
  text += " " + list(weight.shape);
  if (!weight.strides.empty()) {
    text += " strides " + list(weight.strides);
  }
  return text;
}

std::string weight_name_text(const weight& weight) {
  return weight.is_whole_segment ? "(whole segment)" : std::string(weight.name);
}

json weight_key_json(const weight& weight) {
  return {{"part", weight.part},
          {"tensor", weight.is_whole_segment ? json(nullptr) : json(weight.name)}};
}

json weight_json(const weight& weight) {
  const auto text_or_null = [](std::string_view text) {
    return text.empty() ? json(nullptr) : json(text);
  };
  json result{{"dtype", text_or_null(weight.dtype)},
              {"framework_dtype", text_or_null(weight.framework_dtype)},
              {"shape", nullptr},
              {"strides", nullptr},
              {"size_bytes", weight.size_bytes},
              {"stored_hash", text_or_null(weight.stored_hash)}};
  if (!weight.is_whole_segment) {
    result["shape"] = std::vector<std::uint64_t>(weight.shape.begin(), weight.shape.end());
  }
  if (!weight.strides.empty()) {
    result["strides"] = std::vector<std::int64_t>(weight.strides.begin(), weight.strides.end());
  }
  return result;
}

}  // namespace gpushm::cli
