// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/weights/weight_source.hpp"

namespace gpushm::cli {

/// How two weights of the same key differ.
enum class weight_change : std::uint8_t {
  none,
  added,     ///< only the second source has it
  removed,   ///< only the first one has it
  dtype,     ///< the element types differ
  shape,     ///< the types are equal, and the shapes differ
  strides,   ///< types and shapes are equal, but not how the elements are arranged
  contents,  ///< only the bytes differ
};
/// "added"
[[nodiscard]] std::string_view change_text(weight_change change);

struct weight_difference {
  weight_change change = weight_change::none;
  const weight* first = nullptr;   ///< null if it was added
  const weight* second = nullptr;  ///< null if it was removed
};

/// The result of a comparison of two sources. Refers to their weights.
struct weight_comparison {
  std::vector<weight_difference> differences;  ///< by key
  std::uint64_t equal = 0;
  std::uint64_t by_hashes = 0;  ///< compared by the hashes in both tables
  std::uint64_t by_bytes = 0;

  [[nodiscard]] std::uint64_t count(weight_change change) const;
};

/// Compares by key. Contents are compared by the stored hashes where both sources have them, unless
/// `is_by_bytes`; otherwise by their bytes, which are read in blocks. Throws `error`: as
/// `weight_source::read`, out_of_memory.
[[nodiscard]] weight_comparison compare_weights(const weight_source& first,
                                                const weight_source& second,
                                                bool is_by_bytes);

/// How the bytes of one weight were found.
enum class weight_verdict : std::uint8_t {
  verified,
  damaged,     ///< the bytes do not have the hash in the table
  no_hash,     ///< the table has none, and no file was given
  no_tensors,  ///< a segment without a table
  different,   ///< the files have other contents, or another type or shape
  not_in_files,
  missing,  ///< only the files have it
};
/// "damaged"
[[nodiscard]] std::string_view verdict_text(weight_verdict verdict);

/// A weight that is not verified.
struct weight_problem {
  weight_verdict verdict = weight_verdict::verified;
  const weight* subject = nullptr;  ///< of the files if it is missing
  std::string hash;                 ///< of its bytes; empty: not read
};
struct weight_verification {
  std::vector<weight_problem> problems;  ///< in the order of keys; those that are missing last
  std::uint64_t verified = 0;
  std::uint64_t bytes = 0;  ///< that were hashed

  [[nodiscard]] std::uint64_t count(weight_verdict verdict) const;
};

/// Reads and hashes all bytes of `source`, and compares them with the hashes in its tables and, if
/// `files` is not null, with those of the files. A weight without a stored hash is verified if the
/// files have its bytes. Throws `error` as `compare_weights`.
[[nodiscard]] weight_verification verify_weights(const weight_source& source,
                                                 const weight_source* files);

/// "BF16 [4096, 512]", or of a whole segment its size.
[[nodiscard]] std::string weight_type_text(const weight& weight);
/// The name of a tensor; "(whole segment)" of a segment without tensors.
[[nodiscard]] std::string weight_name_text(const weight& weight);
/// `part` and `tensor`, which is null of a whole segment.
[[nodiscard]] json weight_key_json(const weight& weight);
/// `dtype`, `framework_dtype`, `shape`, `strides`, `size_bytes` and `stored_hash`.
[[nodiscard]] json weight_json(const weight& weight);

/// Calls `compare`, and turns its errors into `not_compared`, so that the exit status tells a
/// failure from a difference.
template <typename Compare>
int with_comparison_status(Compare&& compare) {
  try {
    return compare();
  } catch (const usage_error&) {
    throw;
  } catch (const error& why) {
    throw not_compared(why);
  } catch (const std::bad_alloc&) {
    throw not_compared(
        error(errc::out_of_memory, "compare weights", {}, "this process is out of memory", {}));
  } catch (const std::exception& why) {
    throw not_compared(error(errc::system_error, "compare weights", {}, why.what()));
  }
}

}  // namespace gpushm::cli
