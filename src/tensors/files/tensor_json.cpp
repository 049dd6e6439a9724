// SPDX-License-Identifier: Apache-2.0
#include "tensors/files/tensor_json.hpp"

#include <algorithm>
#include <bitset>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_set>

#include "base/text/quoted.hpp"

namespace gpushm::tensors {

namespace {

using base::in_quotes;
using nlohmann::json;

/// As the reference's parser allows: deeper values are refused also where they are ignored.
constexpr std::size_t max_depth = 127;

[[noreturn]] void invalid(const std::string& cause) {
  throw invalid_json(cause);
}

/// A parser's events, with its place in the document. Derived classes handle the keys that they
/// expect.
class events : public json::json_sax_t {
 public:
  bool null() override {
    return value([&] { on_null(); });
  }
  bool boolean(bool /*value*/) override {
    return value([&] { on_other("a boolean"); });
  }
  bool number_integer(std::int64_t number) override {
    return value([&] { on_integer(number); });
  }
  bool number_unsigned(std::uint64_t number) override {
    return value([&] { on_number(number); });
  }
  bool number_float(double /*value*/, const std::string& /*text*/) override {
    return value([&] { on_other("a number with a fraction or an exponent, or too large"); });
  }
  bool string(std::string& text) override {
    return value([&] { on_text(std::move(text)); });
  }
  bool binary(json::binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*count*/) override { return enter(true); }
  bool key(std::string& name) override {
    if (skipping_ == 0) {
      on_key(std::move(name));
    }
    return true;
  }
  bool end_object() override { return leave(true); }
  bool start_array(std::size_t /*count*/) override { return enter(false); }
  bool end_array() override { return leave(false); }
  bool parse_error(std::size_t position,
                   const std::string& /*token*/,
                   const nlohmann::detail::exception& why) override {
    error_ = "at byte " + std::to_string(position) + ": " + why.what();
    return false;
  }

  void read(std::string_view text) {
    if (text.empty() || static_cast<unsigned char>(text.front()) > 0x7F) {
      invalid("it does not begin with a JSON object");  // nor with a byte order mark
    }
    if (text.find('\0') != std::string_view::npos) {
      invalid("it is not JSON: it has a NUL, at which the parser would end");
    }
    if (!json::sax_parse(text, this)) {
      invalid("it is not JSON: " + error_);
    }
  }

 protected:
  /// The number of objects and arrays that are open.
  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }
  /// The value that comes next is ignored, whatever it is.
  void skip_value() { skips_next_ = true; }

  virtual void on_key(std::string name) = 0;
  virtual void on_text(std::string text) = 0;
  virtual void on_number(std::uint64_t number) = 0;
  virtual void on_integer(std::int64_t number) { on_other(std::to_string(number)); }
  virtual void on_null() { on_other("null"); }
  virtual void on_other(const std::string& key) = 0;
  /// `depth()` is that inside of it.
  virtual void on_begin(bool is_object) = 0;
  virtual void on_end() = 0;

 private:
  template <typename Call>
  bool value(const Call& call) {
    if (skips_next_) {
      skips_next_ = false;
    } else if (skipping_ == 0) {
      call();
    }
    return true;
  }
  bool enter(bool is_object) {
    if (++depth_ > max_depth) {
      invalid("more than " + std::to_string(max_depth) + " values within each other");
    }
    if (skipping_ != 0 || skips_next_) {
      skips_next_ = false;
      ++skipping_;
    } else {
      on_begin(is_object);
    }
    return true;
  }
  bool leave(bool /*is_object*/) {
    if (skipping_ != 0) {
      --skipping_;
    } else {
      on_end();
    }
    --depth_;
    return true;
  }

  std::size_t depth_ = 0;
  std::size_t skipping_ = 0;  ///< open ones that are ignored
  bool skips_next_ = false;
  std::string error_;
};

// ---- tensors ----

constexpr std::string_view metadata_key = "__metadata__";

class tensor_events : public events {
 public:
  explicit tensor_events(dialect dialect) : as_(dialect) {}
  tensor_list take() { return std::move(result_); }

 private:
  enum field : std::uint8_t { type, shape, offsets, strides, hash, framework, fields };

  void on_key(std::string name) override {
    if (depth() == 1) {
      if (!names_.insert(name).second) {
        invalid("the name " + in_quotes(name) + " is there twice");
      }
      in_metadata_ = name == metadata_key;
      current_ = {};
      current_.name = std::move(name);
      seen_.reset();
      return;
    }
    if (in_metadata_) {
      if (!metadata_names_.insert(name).second) {
        invalid("the metadata " + in_quotes(name) + " is there twice");
      }
      metadata_name_ = std::move(name);
      return;
    }
    const auto field = field_of(name);
    if (!field) {
      skip_value();
      return;
    }
    field_ = *field;
    if (seen_.test(field_)) {
      invalid(where() + " has " + in_quotes(name) + " twice");
    }
    seen_.set(field_);
  }

  std::optional<field> field_of(std::string_view name) const {
    if (name == "dtype")
      return type;
    if (name == "shape")
      return shape;
    if (name == "data_offsets")
      return offsets;
    if (as_ == dialect::table) {
      if (name == "strides")
        return strides;
      if (name == "hash")
        return hash;
      if (name == "framework_dtype")
        return framework;
    }
    return std::nullopt;
  }

  void on_text(std::string text) override {
    if (depth() == 2 && in_metadata_) {
      result_.metadata.emplace_back(std::move(metadata_name_), std::move(text));
    } else if (depth() == 2 && field_ == type) {
      const auto known = find_dtype(text, as_ == dialect::file ? file_dtypes : all_dtypes.size());
      if (!known) {
        invalid(where() + " has the unknown dtype " + in_quotes(text));
      }
      current_.type = *known;
    } else if (depth() == 2 && field_ == hash) {
      const bool is_hash =
          text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
      if (!is_hash) {
        invalid(where() + " has a hash that is not 16 hexadecimal digits");
      }
      current_.hash = std::move(text);
    } else if (depth() == 2 && field_ == framework) {
      current_.framework_dtype = std::move(text);
    } else {
      on_other("a text");
    }
  }

  void on_number(std::uint64_t number) override {
    if (depth() != 3) {
      on_other("a number");
    }
    switch (field_) {
      case shape:
        if (current_.shape.size() == max_dimensions) {
          invalid(where() + " has more than " + std::to_string(max_dimensions) + " dimensions");
        }
        current_.shape.push_back(number);
        return;
      case offsets:
        if (++offset_count_ > 2) {
          invalid(where() + " has more than two data_offsets");
        }
        (offset_count_ == 1 ? current_.begin : current_.end) = number;
        return;
      case strides:
        if (number > static_cast<std::uint64_t>(INT64_MAX)) {
          on_other("too large a number");
        }
        current_.strides.push_back(static_cast<std::int64_t>(number));
        return;
      default:
        on_other("a number");
    }
  }
  void on_integer(std::int64_t number) override {
    if (depth() == 3 && field_ == strides) {
      current_.strides.push_back(number);
    } else {
      on_other(std::to_string(number));
    }
  }

  void on_null() override {
    if (depth() != 1 || !in_metadata_) {
      on_other("null");
    }
  }

  void on_other(const std::string& key) override {
    if (depth() == 0) {
      invalid("it is " + key + " instead of an object");
    }
    if (in_metadata_) {
      invalid("the metadata has " + key + " where a text is wanted");
    }
    invalid(where() + " has " + key + " where it may not be");
  }

  void on_begin(bool is_object) override {
    if (depth() == 1 && !is_object) {
      invalid("it is an array instead of an object");
    }
    if (depth() <= 2 ? !is_object : in_metadata_ || is_object || depth() > 3) {
      on_other(is_object ? "an object" : "an array");
    }
    if (depth() == 3) {
      if (field_ != shape && field_ != offsets && field_ != strides) {
        on_other("an array");
      }
      offset_count_ = 0;
    }
  }

  void on_end() override {
    if (depth() == 3 && field_ == offsets && offset_count_ != 2) {
      invalid(where() + " has not two data_offsets");
    }
    if (depth() != 2 || in_metadata_) {
      return;
    }
    if (!seen_.test(type) || !seen_.test(shape) || !seen_.test(offsets)) {
      invalid(where() + " has no " +
              (!seen_.test(type)    ? "dtype"
               : !seen_.test(shape) ? "shape"
                                    : "data_offsets"));
    }
    if (seen_.test(strides) && current_.strides.size() != current_.shape.size()) {
      invalid(where() + " has not one stride for each dimension");
    }
    result_.all.push_back(std::move(current_));
  }

  [[nodiscard]] std::string where() const {
    return depth() == 0 ? "the header" : "tensor " + in_quotes(current_.name);
  }

  const dialect as_;
  tensor_list result_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_names_;
  std::string metadata_name_;
  tensor current_;
  std::bitset<fields> seen_;
  field field_ = type;
  int offset_count_ = 0;
  bool in_metadata_ = false;
};

// ---- an index ----

class index_events : public events {
 public:
  text_pairs take() {
    if (!has_map_) {
      invalid("it has no weight_map");
    }
    return std::move(result_);
  }

 private:
  void on_key(std::string name) override {
    if (depth() == 1) {
      if (name != "weight_map") {
        skip_value();
      } else if (std::exchange(has_map_, true)) {
        invalid("weight_map is there twice");
      }
      return;
    }
    if (!names_.insert(name).second) {
      invalid("the name " + in_quotes(name) + " is there twice");
    }
    name_ = std::move(name);
  }
  void on_text(std::string text) override {
    if (depth() != 2) {
      on_other("a text");
    }
    result_.emplace_back(std::move(name_), std::move(text));
  }
  void on_number(std::uint64_t number) override { on_other(std::to_string(number)); }
  void on_other(const std::string& key) override {
    invalid(depth() < 2 ? "it is " + key + " instead of an object"
                        : "the file of " + in_quotes(name_) + " is " + key);
  }
  void on_begin(bool is_object) override {
    if (!is_object || depth() > 2) {
      on_other(is_object ? "an object" : "an array");
    }
  }
  void on_end() override {}

  text_pairs result_;
  std::unordered_set<std::string> names_;
  std::string name_;
  bool has_map_ = false;
};

}  // namespace

tensor_list read_tensors(std::string_view text, dialect dialect) {
  tensor_events read(dialect);
  read.read(text);
  tensor_list result = read.take();
  std::stable_sort(result.all.begin(), result.all.end(), [](const tensor& a, const tensor& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  return result;
}

std::string write_tensors(const tensor_list& tensor_list) {
  // Written by hand in order: an object of the library would sort, and copy, all names.
  const auto text = [](const std::string& value) { return json(value).dump(); };
  const auto list = [](const auto& numbers) { return json(numbers).dump(); };
  std::string result = "{";
  const auto next = [&] { result += result.size() == 1 ? "" : ","; };
  if (!tensor_list.metadata.empty()) {
    result += text(std::string(metadata_key)) + ":{";
    bool is_first = true;
    for (const auto& [name, value] : tensor_list.metadata) {
      result += (std::exchange(is_first, false) ? "" : ",") + text(name) + ":" + text(value);
    }
    result += "}";
  }
  for (const tensor& each : tensor_list.all) {
    next();
    result += text(each.name) + ":{\"dtype\":" + text(std::string(each.type.name)) +
              ",\"shape\":" + list(each.shape) + ",\"data_offsets\":[" +
              std::to_string(each.begin) + "," + std::to_string(each.end) + "]";
    if (!each.strides.empty()) {
      result += ",\"strides\":" + list(each.strides);
    }
    if (!each.hash.empty()) {
      result += ",\"hash\":" + text(each.hash);
    }
    if (!each.framework_dtype.empty()) {
      result += ",\"framework_dtype\":" + text(each.framework_dtype);
    }
    result += "}";
  }
  return result + "}";
}

std::uint64_t bytes_of(const tensor& tensor) {
  std::uint64_t bytes = 0;
  if (const auto problem = size_of(tensor.type, tensor.shape, bytes); !problem.empty()) {
    invalid("tensor " + in_quotes(tensor.name) + " " + std::string(problem));
  }
  return bytes;
}

text_pairs read_index(std::string_view text) {
  index_events read;
  read.read(text);
  return read.take();
}

}  // namespace gpushm::tensors
