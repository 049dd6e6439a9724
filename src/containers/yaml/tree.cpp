// SPDX-License-Identifier: Apache-2.0
#include "containers/yaml/tree.hpp"

#include <fmt/core.h>
#include <yaml.h>

#include <algorithm>
#include <limits>
#include <map>
#include <new>

#include "base/text/quoted.hpp"

namespace gpushm::yaml {

namespace {

// A document has six levels; merge keys may add more.
constexpr std::size_t max_depth = 64;
// Each node takes about 150 bytes of memory, from as little as two bytes of text.
constexpr std::size_t max_nodes = 500'000;

class event_stream {
 public:
  explicit event_stream(std::string_view text) : text_(text) {
    if (yaml_parser_initialize(&parser_) == 0) {
      throw std::bad_alloc();
    }
    static const unsigned char nothing = '\n';
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    yaml_parser_set_input_string(&parser_, text.empty() ? &nothing : bytes, text.size());
  }
  event_stream(const event_stream&) = delete;
  event_stream& operator=(const event_stream&) = delete;
  ~event_stream() {
    drop();
    yaml_parser_delete(&parser_);
  }

  /// Returns null after an error.
  const yaml_event_t* next() {
    drop();
    if (yaml_parser_parse(&parser_, &event_) == 0) {
      if (parser_.error == YAML_MEMORY_ERROR) {
        throw std::bad_alloc();
      }
      return nullptr;
    }
    held_ = true;
    return &event_;
  }

  [[nodiscard]] yaml::failure failure() const {
    yaml::failure failure;
    failure.rule = "syntax";
    failure.text = "not valid YAML or JSON";
    if (parser_.error == YAML_READER_ERROR) {
      const std::string_view before =
          text_.substr(0, std::min(parser_.problem_offset, text_.size()));
      const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
      failure.line = static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1;
      failure.column = static_cast<int>(before.size() - line_start) + 1;
    } else {
      failure.line = static_cast<int>(parser_.problem_mark.line) + 1;
      failure.column = static_cast<int>(parser_.problem_mark.column) + 1;
      // libyaml counts one more line after a last line without a line feed.
      const auto lines = static_cast<int>(std::count(text_.begin(), text_.end(), '\n')) + 1;
      if (failure.line > lines) {
        failure.line = lines;
        failure.column = static_cast<int>(text_.size() - (text_.rfind('\n') + 1)) + 1;
      }
    }
    if (parser_.problem != nullptr) {
      failure.text.append(": ").append(parser_.problem);
    }
    if (parser_.context != nullptr) {
      failure.text.append(" ").append(parser_.context);
    }
    return failure;
  }

 private:
  void drop() {
    if (held_) {
      yaml_event_delete(&event_);
      held_ = false;
    }
  }

  std::string_view text_;
  yaml_parser_t parser_{};
  yaml_event_t event_{};
  bool held_ = false;
};

std::string text_of(const yaml_char_t* text) {
  return text == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(text));
}

std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() - b
             ? std::numeric_limits<std::uint64_t>::max()
             : a + b;
}

/// The limit of the reference's parser, so that the same documents are refused.
bool too_many_aliased(std::uint64_t values, std::uint64_t aliased) {
  if (aliased <= 100 || values <= 1'000) {
    return false;
  }
  constexpr double low = 400'000;
  constexpr double high = 4'000'000;
  const auto total = static_cast<double>(values);
  const double allowed = total <= low    ? 0.99
                         : total >= high ? 0.10
                                         : 0.99 - 0.89 * ((total - low) / (high - low));
  return static_cast<double>(aliased) / total > allowed;
}

/// Finds characters by their indices, which must increase: libyaml counts characters, not bytes.
class character_places {
 public:
  explicit character_places(std::string_view text)
      : text_(text), at_(text.starts_with("\xEF\xBB\xBF") ? 3 : 0) {}

  std::size_t offset_of(std::size_t number) {
    for (; at_ < text_.size(); ++at_) {
      const bool begins = (static_cast<unsigned char>(text_[at_]) & 0xC0U) != 0x80U;
      if (begins && number_ >= number) {
        break;
      }
      number_ += begins ? 1 : 0;
    }
    return at_;
  }

 private:
  std::string_view text_;
  std::size_t at_;
  std::size_t number_ = 0;
};

bool has_escaped_slash(std::string_view written) {
  for (std::size_t at = 0; at + 1 < written.size(); ++at) {
    if (written[at] == '\\') {
      ++at;
      if (written[at] == '/') {
        return true;
      }
    }
  }
  return false;
}

class builder {
 public:
  /// `for_engines`: reject syntax that container engines do not read.
  builder(std::string_view text, yaml::tree& out, bool for_engines = true)
      : text_(text),
        for_engines_(for_engines),
        may_escape_slashes_(for_engines && text.find("\\/") != std::string_view::npos),
        places_(text),
        out_(out) {}

  /// Returns false if the document cannot be used.
  bool take(const yaml_event_t& event) {
    if (out_.nodes.size() == max_nodes) {
      return fail(out_.nodes.back(), "too-large", "it has more than 500,000 values; shorten it");
    }
    switch (event.type) {
      case YAML_ALIAS_EVENT:
        return add_alias(event);
      case YAML_SCALAR_EVENT: {
        yaml::node& node = add(event, event.data.scalar.anchor);
        node.value.assign(reinterpret_cast<const char*>(event.data.scalar.value),
                          event.data.scalar.length);
        node.tag = text_of(event.data.scalar.tag);
        node.plain = event.data.scalar.plain_implicit != 0;
        return engines_read(event, node) && attach(node);
      }
      case YAML_SEQUENCE_START_EVENT:
        flow_levels_ += event.data.sequence_start.style == YAML_FLOW_SEQUENCE_STYLE ? 1 : 0;
        return open(add(event, event.data.sequence_start.anchor), yaml::node::shape::sequence);
      case YAML_MAPPING_START_EVENT:
        flow_levels_ += event.data.mapping_start.style == YAML_FLOW_MAPPING_STYLE ? 1 : 0;
        return open(add(event, event.data.mapping_start.anchor), yaml::node::shape::mapping);
      case YAML_SEQUENCE_END_EVENT:
      case YAML_MAPPING_END_EVENT:
        return close();
      default:
        return true;
    }
  }

 private:
  yaml::node& add(const yaml_event_t& event, const yaml_char_t* anchor) {
    yaml::node& node = out_.nodes.emplace_back();
    node.line = static_cast<int>(event.start_mark.line) + 1;
    node.column = static_cast<int>(event.start_mark.column) + 1;
    if (anchor != nullptr) {
      anchors_[text_of(anchor)] = &node;
    }
    return node;
  }

  bool add_alias(const yaml_event_t& event) {
    yaml::node& node = add(event, nullptr);
    const std::string name = text_of(event.data.alias.anchor);
    const auto anchor = anchors_.find(name);
    if (anchor == anchors_.end()) {
      return fail(node, "alias", "there is no earlier anchor " + base::in_quotes(name));
    }
    if (!anchor->second->complete) {
      return fail(
          node, "alias", fmt::format("the anchor {} contains itself", base::in_quotes(name)));
    }
    node.alias_of = anchor->second;
    node.nodes = plus(1, anchor->second->nodes);
    node.aliased_nodes = anchor->second->nodes;
    return attach(node);
  }

  /// Rejects syntax that newer versions of libyaml accept and the port in engines does not.
  bool engines_read(const yaml_event_t& event, const yaml::node& node) {
    const yaml_scalar_style_t style = event.data.scalar.style;
    if (for_engines_ && style == YAML_PLAIN_SCALAR_STYLE && flow_levels_ > 0 &&
        node.value.find('?') != std::string::npos) {
      return fail(node, "syntax", "engines do not read ? between brackets; quote the string");
    }
    if (style == YAML_DOUBLE_QUOTED_SCALAR_STYLE && may_escape_slashes_) {
      const std::size_t start = places_.offset_of(event.start_mark.index);
      const std::size_t end = places_.offset_of(event.end_mark.index);
      if (has_escaped_slash(text_.substr(start, end - start))) {
        return fail(node, "syntax", "engines do not read the escape \\/; write / instead");
      }
    }
    return true;
  }

  bool attach(const yaml::node& node) {
    if (open_.empty()) {
      out_.root = &node;
      if (too_many_aliased(plus(node.nodes, 1), node.aliased_nodes)) {
        return fail(node, "alias", "its aliases expand too much; use fewer aliases");
      }
      return true;
    }
    yaml::node& parent = *open_.back();
    parent.children.push_back(&node);
    parent.nodes = plus(parent.nodes, node.nodes);
    parent.aliased_nodes = plus(parent.aliased_nodes, node.aliased_nodes);
    return true;
  }

  bool open(yaml::node& node, yaml::node::shape shape) {
    node.is = shape;
    node.complete = false;
    open_.push_back(&node);
    return open_.size() <= max_depth ||
           fail(node, "too-deep", "it is nested more than 64 levels deep; a CDI document has six");
  }

  bool close() {
    yaml::node& node = *open_.back();
    open_.pop_back();
    // A flow level contains only flow levels.
    flow_levels_ -= flow_levels_ > 0 ? 1 : 0;
    node.complete = true;
    return attach(node);
  }

  bool fail(const yaml::node& node, std::string rule, std::string text) {
    out_.failure = yaml::failure{node.line, node.column, std::move(rule), std::move(text)};
    return false;
  }

  std::string_view text_;
  bool for_engines_;
  bool may_escape_slashes_;
  character_places places_;
  yaml::tree& out_;
  int flow_levels_ = 0;
  std::vector<yaml::node*> open_;
  std::map<std::string, const yaml::node*> anchors_;
};

/// Reads one document whose start event was consumed. False when nothing can be read after it.
bool read_document(event_stream& events, std::string_view text, yaml::tree& out) {
  builder build(text, out, false);
  while (const yaml_event_t* event = events.next()) {
    if (event->type == YAML_DOCUMENT_END_EVENT) {
      return true;
    }
    if (!build.take(*event)) {
      return false;
    }
  }
  out.failure = events.failure();
  return false;
}

/// The reference's parser supports only YAML 1.1 and rejects other versions.
bool other_version(const yaml_event_t& event) {
  const yaml_version_directive_t* version = event.data.document_start.version_directive;
  return version != nullptr && (version->major != 1 || version->minor != 1);
}

void record_rest(event_stream& events, yaml::tree& out) {
  const yaml_event_t* event = events.next();
  if (event == nullptr) {
    out.rest = events.failure();
  } else if (event->type != YAML_STREAM_END_EVENT) {
    out.rest = yaml::failure{static_cast<int>(event->start_mark.line) + 1,
                             static_cast<int>(event->start_mark.column) + 1,
                             {},
                             {}};
  }
}

}  // namespace

void read_yaml(std::string_view text, yaml::tree& out) {
  event_stream events(text);
  builder build(text, out);
  while (true) {
    const yaml_event_t* event = events.next();
    if (event == nullptr) {
      out.failure = events.failure();
      return;
    }
    switch (event->type) {
      case YAML_STREAM_END_EVENT:
        return;
      case YAML_DOCUMENT_END_EVENT:
        record_rest(events, out);
        return;
      case YAML_DOCUMENT_START_EVENT:
        if (other_version(*event)) {
          out.failure = yaml::failure{static_cast<int>(event->start_mark.line) + 1,
                                      static_cast<int>(event->start_mark.column) + 1,
                                      "syntax",
                                      "engines read YAML 1.1 only; remove the %YAML line"};
          return;
        }
        break;
      default:
        if (!build.take(*event)) {
          return;
        }
    }
  }
}

void read_yaml_documents(std::string_view text, std::list<yaml::tree>& out) {
  event_stream events(text);
  while (const yaml_event_t* event = events.next()) {
    if (event->type == YAML_STREAM_END_EVENT) {
      return;
    }
    if (event->type == YAML_DOCUMENT_START_EVENT &&
        !read_document(events, text, out.emplace_back())) {
      return;
    }
  }
  out.emplace_back().failure = events.failure();
}

}  // namespace gpushm::yaml
