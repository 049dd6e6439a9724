// SPDX-License-Identifier: Apache-2.0
// Compares injections with the results of the reference implementation (tests/data/cdi/injections).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "containers/cdi/inject/inject.hpp"
#include "gpushm/error.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm::cdi {
namespace {

namespace fs = std::filesystem;
// Compares values: the order of keys does not matter.
using nlohmann::json;

std::string replaced(std::string text, const std::string& from, const std::string& out) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += out.size()) {
    text.replace(at, from.size(), out);
  }
  return text;
}

/// The directory "@DIR@" of the data, with the documents of one injection.
class world {
 public:
  explicit world(const json& documents) {
    ::mkfifo((directory_ / "fifo").c_str(), 0600);
    ::chmod((directory_ / "fifo").c_str(), 0640);
    std::ofstream(directory_ / "file").flush();
    fs::create_symlink("/dev/null", directory_ / "link");
    fs::create_directory(directory_ / "cdi");
    for (const auto& [name, content] : documents.items()) {
      std::ofstream(directory_ / ("cdi/" + name)) << here(content.dump());
    }
  }
  [[nodiscard]] registry devices() const { return registry({directory_ / "cdi"}); }
  [[nodiscard]] std::string here(const std::string& text) const {
    return replaced(text, "@DIR@", directory_.path());
  }

 private:
  gpushm_testing::temp_dir directory_;
};

bool has_standard_nodes() {
  constexpr auto paths = std::to_array<const char*>({"/dev/null", "/dev/zero", "/dev/full"});
  return std::all_of(paths.begin(), paths.end(), [](const char* path) {
    struct stat status {};
    return ::lstat(path, &status) == 0 && status.st_mode == (S_IFCHR | 0666U);
  });
}

std::vector<fs::path> data_files() {
  std::vector<fs::path> files;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(GPUSHM_INJECTIONS_DIR, absent)) {
    if (entry.path().extension() == ".json") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

json read(const fs::path& file) {
  std::ifstream stream(file);
  return json::parse(stream);
}

TEST(inject_reference, matches_reference_configs) {
  const auto files = data_files();
  if (files.empty()) {
    GTEST_SKIP() << "no data (the tests are installed without the sources)";
  }
  if (!has_standard_nodes()) {
    GTEST_SKIP() << "/dev/null, /dev/zero or /dev/full is not a character device of mode 0666 here";
  }
  EXPECT_GE(files.size(), 70U);
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.filename());
    const json data = read(file);
    const world around(data["documents"]);
    const std::string before = around.here(data["config"].dump());
    oci_config config = parse_config(before, "config");
    const bool differs = data.contains("difference");
    const json wanted = differs                      ? data["ours"]
                        : data.contains("reference") ? data["reference"]
                                                     : json();
    try {
      inject(around.devices(), data["devices"].get<std::vector<std::string>>(), config);
      ASSERT_FALSE(wanted.is_null()) << "no error; injected: " << config.dump(1);
      EXPECT_EQ(json::parse(config.dump()), json::parse(around.here(wanted.dump())));
    } catch (const error& failure) {
      EXPECT_TRUE(wanted.is_null()) << failure.what();
      // After any error the config is unchanged.
      EXPECT_EQ(config, parse_config(before, "config"));
    }
  }
}

// If the results agree, remove "difference" from the file.
TEST(inject_reference, recorded_differences_are_current) {
  const auto files = data_files();
  if (files.empty()) {
    GTEST_SKIP() << "no data (the tests are installed without the sources)";
  }
  for (const fs::path& file : files) {
    const json data = read(file);
    EXPECT_NE(data.contains("reference"), data.contains("reference_error")) << file;
    if (data.contains("difference")) {
      EXPECT_NE(data["ours"], data.value("reference", json())) << file;
    }
  }
}

}  // namespace
}  // namespace gpushm::cdi
