// SPDX-License-Identifier: Apache-2.0
// Registries over directories with good, bad and hostile files.
#include "containers/cdi/registry/registry.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/cdi/world.hpp"

namespace gpushm_tests {
namespace {

namespace cdi = gpushm::cdi;
namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> names(const cdi::registry& registry) {
  std::vector<std::string> all;
  for (const auto& [name, device] : registry.devices()) {
    all.push_back(name);
  }
  return all;
}

class cdi_registry : public testing::Test {
 protected:
  [[nodiscard]] cdi::registry open() const {
    return cdi::registry({scratch_.path("low"), scratch_.path("high")});
  }
  /// Problems without the scratch directory's name.
  [[nodiscard]] std::vector<std::string> problems_of(const cdi::registry& registry) const {
    std::vector<std::string> lines;
    for (const gpushm::yaml::problem& each : registry.problems()) {
      lines.push_back(plain(gpushm::yaml::to_string(each)));
    }
    return lines;
  }
  [[nodiscard]] std::string plain(std::string text) const {
    const std::string root = scratch_.path("");
    for (std::size_t at = text.find(root); at != std::string::npos; at = text.find(root)) {
      text.erase(at, root.size());
    }
    return text;
  }

  scratch_directory scratch_;
};

TEST_F(cdi_registry, missing_directories_are_empty) {
  const cdi::registry registry = open();
  EXPECT_THAT(names(registry), IsEmpty());
  EXPECT_THAT(registry.problems(), IsEmpty());
}

TEST_F(cdi_registry, reads_only_json_and_yaml_including_hidden) {
  scratch_.write("low/a.yaml", small_document("v/a", "0"));
  scratch_.write("low/b.json", small_document("v/b", "0"));
  scratch_.write("low/.c.yaml", small_document("v/c", "0"));
  scratch_.write("low/.json", small_document("v/d", "0"));
  scratch_.write("low/e.yml", small_document("v/e", "0"));
  scratch_.write("low/f.YAML", small_document("v/f", "0"));
  scratch_.write("low/sub/g.yaml", small_document("v/g", "0"));
  scratch_.write("low/h.yaml.tmp", small_document("v/h", "0"));
  const cdi::registry registry = open();
  EXPECT_THAT(names(registry), ElementsAre("v/a=0", "v/b=0", "v/c=0", "v/d=0"));
  EXPECT_THAT(registry.problems(), IsEmpty());
}

TEST_F(cdi_registry, later_directory_has_precedence) {
  scratch_.write("low/a.yaml", small_document("v/c", "0", "A=low"));
  scratch_.write("high/a.yaml", small_document("v/c", "0", "A=high"));
  const cdi::registry registry = open();
  const auto found = registry.find("v/c=0");
  ASSERT_NE(found.found, nullptr);
  EXPECT_THAT(found.found->changes.env, ElementsAre("A=high"));
  EXPECT_EQ(found.from->priority, 1U);
  EXPECT_THAT(registry.problems(), IsEmpty());
}

TEST_F(cdi_registry, conflicting_name_does_not_resolve) {
  scratch_.write("low/x.yaml", small_document("v/c", "0", "A=low"));
  scratch_.write("high/a.yaml", small_document("v/c", "0"));
  scratch_.write("high/b.yaml", small_document("v/c", "0"));
  scratch_.write("high/c.yaml", small_document("v/c", "1"));
  const cdi::registry registry = open();
  EXPECT_THAT(names(registry), ElementsAre("v/c=1"));
  EXPECT_EQ(registry.find("v/c=0").found, nullptr);
  EXPECT_THAT(problems_of(registry),
              ElementsAre("high/a.yaml: device \"v/c=0\" is also in high/b.yaml; remove it from "
                          "one of them, because neither is used [conflict]",
                          "high/b.yaml: device \"v/c=0\" is also in high/a.yaml; remove it from "
                          "one of them, because neither is used [conflict]"));
  EXPECT_EQ(plain(registry.why_not("v/c=0")), "high/a.yaml and high/b.yaml both define it");
}

// As the reference, with which engines resolve: pkg/cdi/cache.go removes each name in conflict.
TEST_F(cdi_registry, low_priority_conflict_also_hides_the_definition_above) {
  scratch_.write("low/a.yaml", small_document("v/c", "0"));
  scratch_.write("low/b.yaml", small_document("v/c", "0"));
  scratch_.write("high/c.yaml", small_document("v/c", "0", "A=high"));
  scratch_.write("high/d.yaml", small_document("v/c", "1"));
  cdi::registry registry = open();
  EXPECT_EQ(registry.find("v/c=0").found, nullptr);
  EXPECT_THAT(names(registry), ElementsAre("v/c=1"));
  EXPECT_THAT(problems_of(registry),
              ElementsAre("low/a.yaml: device \"v/c=0\" is also in low/b.yaml; remove it from one "
                          "of them, because engines use neither, nor the definition in "
                          "high/c.yaml [conflict]",
                          "low/b.yaml: device \"v/c=0\" is also in low/a.yaml; remove it from one "
                          "of them, because engines use neither, nor the definition in "
                          "high/c.yaml [conflict]"));
  EXPECT_EQ(plain(registry.why_not("v/c=0")), "low/a.yaml and low/b.yaml both define it");
  fs::remove(scratch_.path("low/b.yaml"));
  EXPECT_TRUE(registry.refresh());
  ASSERT_NE(registry.find("v/c=0").found, nullptr);
  EXPECT_THAT(registry.find("v/c=0").found->changes.env, ElementsAre("A=high"));
}

TEST_F(cdi_registry, invalid_document_causes_no_conflict) {
  scratch_.write("low/a.yaml", small_document("v/c", "0"));
  scratch_.write("low/b.yaml", small_document("v/c", "0") + "foo: bar\n");
  const cdi::registry registry = open();
  EXPECT_THAT(names(registry), ElementsAre("v/c=0"));
  EXPECT_THAT(registry.problems(), testing::SizeIs(1));
}

TEST_F(cdi_registry, invalid_files_are_problems_and_others_load) {
  scratch_.write("low/good.yaml", small_document("v/c", "0"));
  scratch_.write("low/half.yaml", small_document("v/c", "1").substr(0, 70));
  scratch_.write("low/empty.json", "");
  fs::create_directory(scratch_.path("low/directory.yaml"));
  fs::create_symlink("loop.yaml", scratch_.path("low/loop.yaml"));
  fs::create_symlink("nothing", scratch_.path("low/dangling.yaml"));
  fs::create_symlink("/dev/zero", scratch_.path("low/zero.json"));
  ASSERT_EQ(::mkfifo(scratch_.path("low/pipe.json").c_str(), 0600), 0);
  fs::resize_file(scratch_.write("low/huge.json", ""), std::uintmax_t{1} << 30U);
  const cdi::registry registry = open();
  EXPECT_THAT(names(registry), ElementsAre("v/c=0"));
  EXPECT_THAT(
      problems_of(registry),
      ElementsAre("low/dangling.yaml: it cannot be read: No such file or directory (ENOENT) "
                  "[unreadable]",
                  "low/directory.yaml: it is not a regular file; remove it [not-a-file]",
                  "low/empty.json: it contains no CDI document [empty]",
                  "low/half.yaml:3:43: not valid YAML or JSON: did not find expected ',' or "
                  "'}' while parsing a flow mapping [syntax]",
                  "low/huge.json: it is larger than 4 MiB; shorten it [too-large]",
                  "low/loop.yaml: it cannot be read: Too many levels of symbolic links (ELOOP) "
                  "[unreadable]",
                  "low/pipe.json: it is not a regular file; remove it [not-a-file]",
                  "low/zero.json: it is not a regular file; remove it [not-a-file]"));
}

TEST_F(cdi_registry, non_directory_is_a_problem) {
  scratch_.write("low", "a file");
  scratch_.write("high/a.yaml", small_document("v/c", "0"));
  const cdi::registry registry = open();
  EXPECT_THAT(names(registry), ElementsAre("v/c=0"));
  EXPECT_THAT(problems_of(registry),
              ElementsAre("low: the directory cannot be read: Not a directory (ENOTDIR) "
                          "[unreadable]"));
}

/// Drops the permission to read every file during its lifetime.
class unprivileged {
 public:
  unprivileged() : was_(::geteuid()) {
    if (was_ == 0) {
      constexpr uid_t nobody = 65534;
      EXPECT_EQ(::seteuid(nobody), 0);
    }
  }
  unprivileged(const unprivileged&) = delete;
  unprivileged& operator=(const unprivileged&) = delete;
  ~unprivileged() {
    if (was_ == 0) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }

 private:
  uid_t was_;
};

TEST_F(cdi_registry, unreadable_files_and_directories_are_problems) {
  fs::permissions(scratch_.path(""), fs::perms(0755));
  fs::permissions(scratch_.write("low/a.yaml", small_document("v/c", "0")), fs::perms::none);
  scratch_.write("low/b.yaml", small_document("v/c", "1"));
  scratch_.write("high/c.yaml", small_document("v/c", "2"));
  fs::permissions(scratch_.path("high"), fs::perms::none);
  const unprivileged now;
  const cdi::registry registry = open();
  EXPECT_THAT(names(registry), ElementsAre("v/c=1"));
  EXPECT_THAT(problems_of(registry),
              ElementsAre("high: the directory cannot be read: Permission denied (EACCES) "
                          "[unreadable]",
                          "low/a.yaml: it cannot be read: Permission denied (EACCES) "
                          "[unreadable]"));
}

TEST_F(cdi_registry, refresh_reads_changed_documents) {
  scratch_.write("low/a.yaml", small_document("v/c", "0"));
  scratch_.write("low/b.yaml", small_document("v/c", "1"));
  cdi::registry registry = open();
  EXPECT_FALSE(registry.refresh());
  // Same size and time: the stamp alone does not show the change.
  scratch_.write("low/a.yaml", small_document("v/c", "0", "A=c"));
  EXPECT_TRUE(registry.refresh());
  EXPECT_THAT(registry.find("v/c=0").found->changes.env, ElementsAre("A=c"));
  fs::remove(scratch_.path("low/b.yaml"));
  EXPECT_TRUE(registry.refresh());
  EXPECT_THAT(names(registry), ElementsAre("v/c=0"));
  scratch_.write("high/c.yaml", "broken");
  EXPECT_TRUE(registry.refresh());
  EXPECT_THAT(registry.problems(), testing::SizeIs(1));
  fs::remove_all(scratch_.path("high"));
  fs::remove_all(scratch_.path("low"));
  EXPECT_TRUE(registry.refresh());
  EXPECT_THAT(names(registry), IsEmpty());
  EXPECT_THAT(registry.problems(), IsEmpty());
  EXPECT_FALSE(registry.refresh());
}

TEST_F(cdi_registry, copy_keeps_its_state) {
  scratch_.write("low/a.yaml", small_document("v/c", "0"));
  cdi::registry registry = open();
  const cdi::registry before = registry;
  fs::remove(scratch_.path("low/a.yaml"));
  EXPECT_TRUE(registry.refresh());
  ASSERT_NE(before.find("v/c=0").found, nullptr);
  EXPECT_EQ(before.find("v/c=0").from->content.kind, "v/c");
}

TEST_F(cdi_registry, why_not_explains_missing_device) {
  scratch_.write("low/a.yaml", small_document("v/c", "0"));
  scratch_.write("low/b.yaml", small_document("v/c", "all"));
  scratch_.write("low/c.yaml", small_document("v/broken", "0") + "foo: bar\n");
  const cdi::registry registry = open();
  EXPECT_EQ(registry.why_not("0"), "\"0\" is not a device name (vendor/class=name)");
  EXPECT_EQ(registry.why_not("v/c=7"), "v/c has no device \"7\"; available: 0, all");
  EXPECT_EQ(plain(registry.why_not("w/c=7")),
            "no document in low, high has the kind w/c; available: v/c");
  EXPECT_EQ(plain(registry.why_not("v/broken=0")),
            "the document that may define it is invalid: low/c.yaml:4:1: a CDI document has no "
            "field \"foo\"; remove it or correct its name (cdiVersion, kind, annotations, devices, "
            "containerEdits) [unknown-field]");
}

TEST_F(cdi_registry, why_not_lists_up_to_eight) {
  for (int index = 0; index < 11; ++index) {
    const std::string number = std::to_string(10 + index);
    scratch_.write("low/" + number + ".yaml", small_document("v/c", number));
  }
  EXPECT_EQ(open().why_not("v/c=7"),
            "v/c has no device \"7\"; available: 10, 11, 12, 13, 14, 15, 16, 17 and 3 more");
}

}  // namespace
}  // namespace gpushm_tests
