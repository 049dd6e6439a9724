// SPDX-License-Identifier: Apache-2.0
// The functions of tensors.h.
#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/report/c_interface.hpp"
#include "base/text/quoted.hpp"
#include "client/c/c_handles.hpp"
#include "gpushm/tensors.hpp"
#include "tensors/files/layout.hpp"
#include "tensors/files/tensor_json.hpp"
#include "tensors/files/tensor_table.hpp"
#include "tensors/loads/load.hpp"
#include "tensors/loads/slab.hpp"

using gpushm::base::c_call;
using gpushm::base::c_text;
using gpushm::base::out;
using gpushm::base::result_out;
using gpushm::base::text_in;
using gpushm::base::throw_invalid;
namespace tensors = gpushm::tensors;

struct gpushm_tensors_table {
  explicit gpushm_tensors_table(tensors::tensor_table checked) : content(std::move(checked)) {}

  tensors::tensor_table content;
  /// Made at the first request: programs do not need it.
  mutable std::once_flag has_text;
  mutable std::string text;
};

namespace {

/// A client of its own, with the same connection.
gpushm::client client_in(gpushm_client* client, const char* operation, std::string_view name) {
  static_cast<void>(gpushm::client_detail::usable(client, operation, name));
  return gpushm::client(std::make_unique<gpushm_client>(*client).release());
}

/// Not owning.
class borrowed {
 public:
  explicit borrowed(gpushm_segment* handle) : segment_(handle) {
    static_cast<void>(gpushm::client_detail::filled(handle));
  }
  borrowed(const borrowed&) = delete;
  borrowed& operator=(const borrowed&) = delete;
  ~borrowed() { static_cast<void>(segment_.release()); }
  [[nodiscard]] gpushm::segment& get() noexcept { return segment_; }

 private:
  gpushm::segment segment_;
};

/// `cause`, `next_step`: of the error if they are NULL.
std::vector<std::string> texts_in(const gpushm_string* texts,
                                  std::size_t count,
                                  const char* cause,
                                  const char* next_step) {
  if (texts == nullptr && count != 0) {
    throw_invalid("load", cause, next_step);
  }
  std::vector<std::string> result;
  for (std::size_t i = 0; i != count; ++i) {
    result.emplace_back(text_in(texts[i], "load"));
  }
  return result;
}

std::vector<gpushm::tensor_slice> slices_in(const gpushm_tensor_slice* slices, std::size_t count) {
  if (slices == nullptr && count != 0) {
    throw_invalid("load", "the slices are NULL", "pass an array of them");
  }
  std::vector<gpushm::tensor_slice> result;
  const auto* next = reinterpret_cast<const std::byte*>(slices);
  for (std::size_t i = 0; i != count; ++i) {
    const auto* const at = reinterpret_cast<const gpushm_tensor_slice*>(next);
    if (at->struct_size != slices->struct_size ||
        at->struct_size % alignof(gpushm_tensor_slice) != 0) {
      throw_invalid("load",
                    "the struct_size of slice " + std::to_string(i) + " is " +
                        std::to_string(at->struct_size),
                    "set it to the structure's size in each (GPUSHM_INIT)");
    }
    const auto from = gpushm::base::options_in(at, "load");
    result.push_back({std::string(text_in(from.name, "load")),
                      from.dimension,
                      from.begin,
                      from.end,
                      from.parts});
    next += at->struct_size;
  }
  return result;
}

/// How long a load may take by default.
constexpr std::chrono::hours default_load{1};

gpushm::load_options options_in(const gpushm_load_options* given, std::int64_t timeout_ms) {
  constexpr const char* operation = "load";
  const auto from = gpushm::base::options_in(given, operation);
  gpushm::load_options result;
  if (const auto device = text_in(from.device, operation); !device.empty()) {
    result.device = device;
  }
  result.threads = from.threads;
  result.reading = static_cast<gpushm::reading>(gpushm::base::enum_in(
      from.reading, static_cast<gpushm_reading>(GPUSHM_READING_DIRECT), operation));
  result.verify = static_cast<gpushm::verify>(gpushm::base::enum_in(
      from.verify, static_cast<gpushm_verify>(GPUSHM_VERIFY_FULL), operation));
  result.replace = from.replace;
  result.tensors = texts_in(
      from.tensors, from.tensor_count, "the tensors are NULL", "pass an array of their names");
  result.slices = slices_in(from.slices, from.slice_count);
  result.timeout = gpushm::base::timeout_in(timeout_ms, operation, default_load);
  result.stop = gpushm::client_detail::token_of(from.stop);
  if (from.report != nullptr) {
    result.report = [report = from.report,
                     context = from.report_context](const gpushm::load_progress& how_far) {
      auto passed = gpushm::glue::sized<gpushm_load_progress>();
      passed.bytes = how_far.bytes;
      passed.total_bytes = how_far.total_bytes;
      passed.resumed_bytes = how_far.resumed_bytes;
      passed.is_here = how_far.is_here;
      report(&passed, context);
    };
  }
  return result;
}

/// The table of a segment that is complete.
tensors::tensor_table read_table(gpushm_segment* source) {
  borrowed segment(source);
  const auto info = tensors::info_of(segment.get());
  auto table = info ? tensors::table_of(segment.get(), *info) : std::nullopt;
  if (!table) {
    throw gpushm::error(gpushm::errc::invalid_argument,
                        "read tensors",
                        segment.get().name(),
                        info ? "it is not complete: it is still loaded, or its loader has died"
                             : "it has no tensors",
                        info ? "wait until it is (gpushm_tensors_open), or load it again"
                             : "open it as memory, or pass the name of loaded weights");
  }
  return *std::move(table);
}

/// The table that a program publishes, and what its segment has.
struct published_table {
  tensors::table_words words;
  tensors::slab_info info;
};
published_table table_from(std::string_view table, std::string_view name) {
  std::string problem;
  try {
    const auto read = tensors::read_tensors(table, tensors::dialect::table);
    std::uint64_t end = 0;
    for (const tensors::tensor& each : read.all) {
      end = std::max(end, each.end);
      if (each.begin % tensors::tensor_alignment != 0) {
        throw tensors::invalid_json("tensor " + gpushm::base::in_quotes(each.name) +
                                    " is not at a multiple of " +
                                    std::to_string(tensors::tensor_alignment));
      }
    }
    const std::uint64_t tensor_bytes = tensors::aligned(end);
    const tensors::tensor_table checked(tensors::encode_table(read), tensor_bytes);
    const auto& words = checked.words();
    return {words, tensors::new_slab({}, tensor_bytes, tensors::bytes_in(words).size())};
  } catch (const tensors::invalid_json& why) {
    problem = why.what();
  } catch (const tensors::invalid_table& why) {
    problem = why.what();
  }
  throw gpushm::error(gpushm::errc::invalid_argument,
                      "publish tensors",
                      name,
                      "not a valid table: " + problem,
                      "docs/tensors.md specifies it");
}

}  // namespace

gpushm_errc gpushm_tensors_load(gpushm_client* client,
                                gpushm_string name,
                                const gpushm_string* paths,
                                size_t count,
                                const gpushm_load_options* options,
                                int64_t timeout_ms,
                                gpushm_segment** segment) {
  return c_call([&] {
    const std::string called(text_in(name, "load"));
    gpushm::client by = client_in(client, "load", called);
    gpushm_segment*& result = out(segment, "load");
    const auto files = texts_in(paths, count, "the paths are NULL", "pass an array of them");
    result = tensors::load(by, called, files, options_in(options, timeout_ms)).release();
  });
}

gpushm_errc gpushm_tensors_open(gpushm_client* client,
                                gpushm_string name,
                                const gpushm_open_options* options,
                                int64_t timeout_ms,
                                gpushm_segment** segment) {
  return c_call([&] {
    const std::string called(text_in(name, "open tensors"));
    gpushm::client by = client_in(client, "open tensors", called);
    gpushm_segment*& result = out(segment, "open tensors");
    result = tensors::open_complete(
                 by, called, gpushm::client_detail::open_options_from(options, timeout_ms))
                 .release();
  });
}

gpushm_errc gpushm_tensors_table_read(const gpushm_segment* segment, gpushm_tensors_table** table) {
  return c_call([&] {
    gpushm_tensors_table*& result = out(table, "read tensors");
    // Only read; the wrapper has no const form that does not own.
    auto* const from = const_cast<gpushm_segment*>(segment);  // NOLINT(*-const-cast): see above
    result = std::make_unique<gpushm_tensors_table>(read_table(from)).release();
  });
}

gpushm_string gpushm_tensors_table_text(const gpushm_tensors_table* table) {
  if (table == nullptr) {
    return {};
  }
  try {
    std::call_once(table->has_text,
                   [&] { table->text = tensors::write_tensors(table->content.content()); });
    return c_text(table->text);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

size_t gpushm_tensors_table_count(const gpushm_tensors_table* table) {
  return table == nullptr ? 0 : table->content.size();
}

gpushm_errc gpushm_tensors_table_get(const gpushm_tensors_table* table,
                                     size_t index,
                                     gpushm_tensor* tensor) {
  return c_call([&] {
    constexpr const char* operation = "read tensors";
    if (table == nullptr || index >= table->content.size()) {
      throw_invalid(
          operation,
          table == nullptr ? "the table is NULL" : "there is no tensor " + std::to_string(index),
          "pass a table, and a number below gpushm_tensors_table_count");
    }
    const tensors::table_entry from = table->content[index];
    gpushm_tensor result{};
    result.name = c_text(from.name);
    result.dtype = c_text(from.type.name);
    result.framework_dtype = c_text(from.framework_dtype);
    result.hash = c_text(from.hash);
    result.offset_bytes = from.begin;
    result.size_bytes = from.end - from.begin;
    result.rank = from.shape.size();
    result.shape = from.shape.data();
    result.strides = from.strides.empty() ? nullptr : from.strides.data();
    result_out(result, tensor, operation);
  });
}

bool gpushm_tensors_table_find(const gpushm_tensors_table* table,
                               gpushm_string name,
                               size_t* index) {
  const auto tensor = table == nullptr || (name.data == nullptr && name.size != 0)
                          ? std::nullopt
                          : table->content.find({name.data, name.size});
  if (tensor && index != nullptr) {
    *index = *tensor;
  }
  return tensor.has_value();
}

size_t gpushm_tensors_table_metadata_count(const gpushm_tensors_table* table) {
  return table == nullptr ? 0 : table->content.metadata_size();
}

gpushm_errc gpushm_tensors_table_metadata_get(const gpushm_tensors_table* table,
                                              size_t index,
                                              gpushm_string* key,
                                              gpushm_string* value) {
  return c_call([&] {
    constexpr const char* operation = "read tensors";
    if (table == nullptr || index >= table->content.metadata_size()) {
      throw_invalid(
          operation,
          table == nullptr ? "the table is NULL" : "there is no text " + std::to_string(index),
          "pass a table, and a number below gpushm_tensors_table_metadata_count");
    }
    gpushm_string& key_out = out(key, operation);
    gpushm_string& value_out = out(value, operation);
    const auto [found_key, found_value] = table->content.metadata(index);
    key_out = c_text(found_key);
    value_out = c_text(found_value);
  });
}

void gpushm_tensors_table_free(gpushm_tensors_table* table) {
  const std::unique_ptr<gpushm_tensors_table> ended(table);
}

gpushm_errc gpushm_tensors_size(gpushm_string table, uint64_t* size_bytes) {
  return c_call([&] {
    out(size_bytes, "publish tensors") =
        tensors::slab_bytes(table_from(text_in(table, "publish tensors"), {}).info);
  });
}

gpushm_errc gpushm_tensors_publish(gpushm_segment* segment, gpushm_string table) {
  return c_call([&] {
    borrowed into(segment);
    const auto [words, info] = table_from(text_in(table, "publish tensors"), into.get().name());
    if (tensors::slab_bytes(info) != into.get().size_bytes()) {
      throw gpushm::error(gpushm::errc::size_mismatch,
                          "publish tensors",
                          into.get().name(),
                          "the segment has " + std::to_string(into.get().size_bytes()) +
                              " bytes, and its tensors and their table " +
                              std::to_string(tensors::slab_bytes(info)),
                          "create it with the size that gpushm_tensors_size returns");
    }
    tensors::seal(into.get(), info, words);
    into.get().publish(tensors::to_metadata(info));
  });
}
