// SPDX-License-Identifier: Apache-2.0
#include "inspect/facts/recording.hpp"

#include <fmt/core.h>

#include "base/text/text.hpp"
#include "gpushm/error.hpp"
#include "inspect/facts/json.hpp"

namespace gpushm::inspect {

namespace {

using nlohmann::json;

constexpr int format = 1;

// Kinds of queries, as named in a recording.
constexpr const char* files = "files";
constexpr const char* links = "links";
constexpr const char* directories = "directories";
constexpr const char* statuses = "statuses";
constexpr const char* open_errors = "open_errors";
constexpr const char* file_systems = "file_systems";
constexpr const char* labels = "labels";
constexpr const char* node_holders = "holders";
constexpr const char* variables = "variables";

/// Answers from a recording. Anything that is not recorded does not exist.
class recorded_system final : public system {
 public:
  explicit recorded_system(json answers) : answers_(std::move(answers)) {}

  std::optional<std::string> read(const std::string& path) override { return text(files, path); }
  std::optional<std::string> link(const std::string& path) override { return text(links, path); }
  std::vector<std::string> list(const std::string& path) override {
    const json* const found = find(directories, path);
    return found == nullptr ? std::vector<std::string>() : found->get<std::vector<std::string>>();
  }
  std::optional<file_status> status(const std::string& path) override {
    const json* const found = find(statuses, path);
    return found == nullptr ? std::nullopt : std::optional(found->get<file_status>());
  }
  int open_error(const std::string& path) override {
    const json* const found = find(open_errors, path);
    return found == nullptr ? ENOENT : found->get<int>();
  }
  std::uint64_t file_system_bytes(const std::string& path) override {
    const json* const found = find(file_systems, path);
    return found == nullptr ? 0 : found->get<std::uint64_t>();
  }
  std::optional<std::string> label(const std::string& path) override { return text(labels, path); }
  std::vector<node_holder> holders() override {
    std::vector<node_holder> holders;
    const auto answer = answers_.find(node_holders);
    if (answer != answers_.end()) {
      for (const auto& [pid, value] : answer->items()) {
        node_holder& each = holders.emplace_back(value.get<node_holder>());
        each.pid = base::number<std::int32_t>(pid).value_or(0);
      }
    }
    return holders;
  }
  std::optional<std::string> variable(const std::string& name) override {
    return text(variables, name);
  }

 private:
  [[nodiscard]] const json* find(const char* kind, const std::string& key) const {
    const auto answers = answers_.find(kind);
    if (answers == answers_.end()) {
      return nullptr;
    }
    const auto found = answers->find(key);
    return found == answers->end() ? nullptr : &*found;
  }
  [[nodiscard]] std::optional<std::string> text(const char* kind, const std::string& key) const {
    const json* const found = find(kind, key);
    return found == nullptr ? std::nullopt : std::optional(found->get<std::string>());
  }

  json answers_;
};

[[noreturn]] void refuse(std::string_view name, std::string_view cause) {
  throw error(errc::invalid_argument,
              "read recording",
              name,
              cause,
              "create one with \"gpushm doctor --json\" on that machine");
}

/// Checks the type of every value that a replay may return.
void check_answers(std::string_view name, const json& answers) {
  const auto each = [&](const char* kind, auto&& right) {
    const auto answer = answers.find(kind);
    if (answer == answers.end()) {
      return;
    }
    if (!answer->is_object()) {
      refuse(name, fmt::format("\"{}\" is not an object", kind));
    }
    for (const auto& [key, value] : answer->items()) {
      if (!right(value)) {
        refuse(name, fmt::format("\"{}\" has a malformed value for {}", kind, key));
      }
    }
  };
  const auto is_text = [](const json& value) { return value.is_string(); };
  each(files, is_text);
  each(links, is_text);
  each(labels, is_text);
  each(node_holders, [](const json& value) {
    try {
      static_cast<void>(value.get<node_holder>());
      return true;
    } catch (const json::exception&) {
      return false;
    }
  });
  each(variables, is_text);
  each(directories, [&](const json& value) {
    return value.is_array() && std::all_of(value.begin(), value.end(), is_text);
  });
  each(open_errors, [](const json& value) { return value.is_number_integer(); });
  each(file_systems, [](const json& value) { return value.is_number_unsigned(); });
  each(statuses, [](const json& value) {
    try {
      static_cast<void>(value.get<file_status>());
      return true;
    } catch (const json::exception&) {
      return false;
    }
  });
}

}  // namespace

std::optional<std::string> recording_system::read(const std::string& path) {
  auto answer = source_.read(path);
  if (answer) {
    answers_[files][path] = *answer;
  }
  return answer;
}

std::optional<std::string> recording_system::link(const std::string& path) {
  auto answer = source_.link(path);
  if (answer) {
    answers_[links][path] = *answer;
  }
  return answer;
}

std::vector<std::string> recording_system::list(const std::string& path) {
  auto answer = source_.list(path);
  if (!answer.empty()) {
    answers_[directories][path] = answer;
  }
  return answer;
}

std::optional<file_status> recording_system::status(const std::string& path) {
  auto answer = source_.status(path);
  if (answer) {
    answers_[statuses][path] = *answer;
  }
  return answer;
}

int recording_system::open_error(const std::string& path) {
  const int answer = source_.open_error(path);
  if (answer != ENOENT) {
    answers_[open_errors][path] = answer;
  }
  return answer;
}

std::uint64_t recording_system::file_system_bytes(const std::string& path) {
  const std::uint64_t answer = source_.file_system_bytes(path);
  if (answer != 0) {
    answers_[file_systems][path] = answer;
  }
  return answer;
}

std::optional<std::string> recording_system::label(const std::string& path) {
  auto answer = source_.label(path);
  if (answer) {
    answers_[labels][path] = *answer;
  }
  return answer;
}

std::vector<node_holder> recording_system::holders() {
  auto answer = source_.holders();
  for (const node_holder& each : answer) {
    answers_[node_holders][std::to_string(each.pid)] = each;
  }
  return answer;
}

std::optional<std::string> recording_system::variable(const std::string& name) {
  auto answer = source_.variable(name);
  if (answer) {
    answers_[variables][name] = *answer;
  }
  return answer;
}

json recording_system::document(const driver_view& driver) const {
  return {{"format", format}, {"answers", answers_}, {"driver", driver}};
}

recorded_machine recorded_machine::parse(std::string_view name, std::string_view text) {
  json document = json::parse(text, nullptr, false);
  if (document.is_discarded()) {
    refuse(name, "it is not JSON");
  }
  if (!document.is_object()) {
    refuse(name, fmt::format("it is JSON, but {} instead of an object", document.type_name()));
  }
  if (const auto inner = document.find("recording"); inner != document.end()) {
    document = json(*inner);
  }
  const auto version = document.is_object() ? document.find("format") : document.end();
  if (!document.is_object() || version == document.end() || !version->is_number_integer() ||
      !document.contains("answers") || !document["answers"].is_object()) {
    refuse(name, "it contains no recording");
  }
  if (*version != format) {
    refuse(name, fmt::format("its format is {}, this program reads format 1", version->dump()));
  }
  check_answers(name, document["answers"]);
  recorded_machine machine;
  try {
    machine.driver = document.value("driver", driver_view());
  } catch (const json::exception& failure) {
    refuse(name, fmt::format("\"driver\" is malformed: {}", failure.what()));
  }
  machine.files = std::make_unique<recorded_system>(std::move(document["answers"]));
  return machine;
}

}  // namespace gpushm::inspect
