// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm-oci-runtime/settings.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "containers/yaml/reader.hpp"

namespace gpushm::oci_runtime {

namespace {

constexpr std::string_view operation = "read settings";

[[noreturn]] void refuse(const yaml::problem& problem) {
  throw error(
      errc::invalid_argument,
      operation,
      problem.file,
      problem.line > 0
          ? fmt::format("line {}, column {}: {}", problem.line, problem.column, problem.text)
          : problem.text);
}

/// Reads the members in order and refuses the first invalid one.
class reading {
 public:
  reading(std::string_view text, const std::string& file) : file_(file), reader_(file, problems_) {
    yaml::read_yaml(text, tree_);
    if (tree_.failure) {
      refuse(place(*tree_.failure));
    }
    if (tree_.rest) {
      refuse(place(*tree_.rest));
    }
  }

  void into(settings& out) {
    if (tree_.root == nullptr) {
      return;
    }
    for (const yaml::entry& each : reader_.entries(*tree_.root, "the settings")) {
      read(each, out);
    }
    check();
  }

 private:
  [[nodiscard]] yaml::problem place(const yaml::failure& failure) const {
    return {file_, failure.line, failure.column, failure.rule, failure.text};
  }
  void check() const {
    if (!problems_.empty()) {
      refuse(problems_.front());
    }
  }

  void read(const yaml::entry& entry, settings& out) {
    const std::string& key = entry.key;
    const auto set = [&](auto& target) {
      std::remove_reference_t<decltype(target)> fresh{};
      if (!reader_.is_null(*entry.value) && reader_.read(*entry.value, key, fresh)) {
        target = std::move(fresh);
      }
    };
    if (key == "runtimes") {
      set(out.runtimes);
    } else if (key == "spec_dirs") {
      set(out.spec_dirs);
    } else if (key == "default_kind") {
      set(out.default_kind);
    } else if (key == "annotation_prefixes") {
      set(out.annotation_prefixes);
    } else if (key == "accept_mounts") {
      set(out.accept_mounts);
    } else if (key == "accept_variable_unprivileged") {
      set(out.accept_variable_unprivileged);
    } else if (key == "filter_by_capabilities") {
      set(out.filter_by_capabilities);
    } else if (key == "default_capabilities") {
      set(out.default_capabilities);
    } else if (key == "supported_capabilities") {
      set(out.supported_capabilities);
    } else if (key == "log") {
      set(out.log);
    } else if (key == "log_format") {
      std::string name = "text";
      set(name);
      if (name != "text" && name != "json") {
        reader_.report(*entry.value, "log-format", "log_format is neither text nor json");
      }
      out.log_json = name == "json";
    } else {
      reader_.report(*entry.key_node, "unknown-field", fmt::format("unknown setting \"{}\"", key));
    }
  }

  std::string file_;
  std::vector<yaml::problem> problems_;
  yaml::tree tree_;
  yaml::reader reader_;
};

}  // namespace

settings parse_settings(std::string_view text, const std::string& file) {
  settings out;
  reading(text, file).into(out);
  if (out.runtimes.empty()) {
    throw error(errc::invalid_argument, operation, file, "runtimes is empty");
  }
  return out;
}

settings load_settings() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no code sets variables
  const char* chosen = std::getenv("GPUSHM_OCI_RUNTIME_CONFIG");
  const bool named = chosen != nullptr && *chosen != '\0';
  const std::string file = named ? chosen : default_settings_file;
  if (!named && ::access(file.c_str(), F_OK) != 0) {
    return {};
  }
  constexpr std::size_t limit = std::size_t{1} << 20U;
  const auto text = base::read_small_file(file, limit);
  if (!text || text->size() == limit) {
    throw error(errc::system_error,
                operation,
                file,
                text ? "the file is larger than 1 MiB" : base::errno_text(errno));
  }
  return parse_settings(*text, file);
}

}  // namespace gpushm::oci_runtime
