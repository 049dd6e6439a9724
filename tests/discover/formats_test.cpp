// SPDX-License-Identifier: Apache-2.0
// The formats that discovery reads: ELF headers, ld.so.cache, mig-minors; hostile bytes of each.

#include <dlfcn.h>
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <span>

#include "base/files/file.hpp"
#include "containers/discover/gpus/nodes.hpp"
#include "containers/elf/facts.hpp"
#include "containers/elf/ld_cache.hpp"
#include "containers/elf/loading.hpp"
#include "tests/support/driver_tree/elf_stub.hpp"

namespace gpushm::discover {
namespace {

using gpushm_tests::elf_stub;
using gpushm_tests::ld_cache_file;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

/// Reads a copy.
elf::read_at reader_of(const std::string& bytes) {
  return [bytes](std::uint64_t offset, std::span<std::byte> into) -> std::size_t {
    if (offset >= bytes.size()) {
      return 0;
    }
    const std::size_t got = std::min<std::size_t>(into.size(), bytes.size() - offset);
    const auto* from = reinterpret_cast<const std::byte*>(bytes.data()) + offset;
    std::copy_n(from, got, into.begin());
    return got;
  };
}

std::optional<elf::elf_facts> facts_of(const std::string& bytes) {
  return elf::read_elf(reader_of(bytes));
}

std::optional<std::vector<elf::ld_cache_entry>> cache_of(const std::string& bytes) {
  // A buffer of the exact size, so that a sanitizer detects each out-of-bounds read.
  const std::unique_ptr<char[]> own(
      new char[bytes.size()]);  // NOLINT(modernize-avoid-c-arrays): exact size
  std::memcpy(own.get(), bytes.data(), bytes.size());
  return elf::parse_ld_cache(std::as_bytes(std::span(own.get(), bytes.size())));
}

TEST(elf, soname_is_read_through_segments) {
  EXPECT_EQ(facts_of(elf_stub("libcuda.so.1")), (elf::elf_facts{true, "libcuda.so.1"}));
  EXPECT_EQ(facts_of(elf_stub("")), (elf::elf_facts{true, ""}));
}

TEST(elf, loading_of_this_program_is_read) {
  const auto own = elf::read_loading(std::string("/proc/self/exe"));
  ASSERT_TRUE(own);
  EXPECT_TRUE(own->native);
  EXPECT_THAT(own->interpreter, ::testing::HasSubstr("/ld-linux-"));
  EXPECT_THAT(own->libraries, ::testing::Contains("libc.so.6"));
  EXPECT_THAT(
      own->needed_versions,
      ::testing::Contains(::testing::AllOf(
          ::testing::Field(&elf::needed_version::library, "libc.so.6"),
          ::testing::Field(&elf::needed_version::version, ::testing::StartsWith("GLIBC_2.")))));
  EXPECT_THAT(own->defined_versions, IsEmpty());
}

TEST(elf, libraries_of_this_machine_have_versions) {
  Dl_info about{};
  ASSERT_NE(::dladdr(reinterpret_cast<void*>(&::getpid), &about), 0);
  const auto libc = elf::read_loading(std::string(about.dli_fname));
  ASSERT_TRUE(libc);
  EXPECT_EQ(libc->soname, "libc.so.6");
  EXPECT_THAT(libc->defined_versions,
              ::testing::IsSupersetOf({"GLIBC_2.17", "GLIBC_2.27", "GLIBC_2.28", "GLIBC_PRIVATE"}));
  EXPECT_THAT(libc->defined_versions, ::testing::Not(::testing::Contains("libc.so.6")));
}

TEST(elf, loading_of_library_without_versions_has_its_name) {
  const std::string bytes = elf_stub("libcuda.so.1");
  elf::loading expected;
  expected.native = true;
  expected.soname = "libcuda.so.1";
  EXPECT_EQ(elf::read_loading(reader_of(bytes)), expected);
  EXPECT_EQ(elf::read_loading(reader_of(elf_stub("libcuda.so.1", 32))), elf::loading());
  EXPECT_EQ(elf::read_loading(reader_of(std::string("#!/bin/sh\n"))), std::nullopt);
}

TEST(elf, other_machines_are_distinguished) {
  EXPECT_EQ(facts_of(elf_stub("libcuda.so.1", 32)), (elf::elf_facts{false, ""}));
  std::string other = elf_stub("libcuda.so.1");
  other[offsetof(Elf64_Ehdr, e_machine)] = static_cast<char>(EM_RISCV);
  EXPECT_EQ(facts_of(other), (elf::elf_facts{false, ""}));
  std::string big_endian = elf_stub("libcuda.so.1");
  big_endian[EI_DATA] = ELFDATA2MSB;
  EXPECT_EQ(facts_of(big_endian), (elf::elf_facts{false, ""}));
  EXPECT_EQ(facts_of("#!/bin/sh\n"), std::nullopt);
  EXPECT_EQ(facts_of(""), std::nullopt);
}

TEST(elf, one_of_x86_64_and_aarch64_is_native) {
  int native = 0;
  for (const auto machine : {Elf64_Half{EM_X86_64}, Elf64_Half{EM_AARCH64}}) {
    std::string file = elf_stub("libcuda.so.1");
    std::memcpy(file.data() + offsetof(Elf64_Ehdr, e_machine), &machine, sizeof machine);
    native += facts_of(file)->native ? 1 : 0;
  }
  EXPECT_EQ(native, 1);
}

TEST(elf, soname_never_has_a_path) {
  for (const char* name : {"../../etc/passwd", "/etc/passwd", "..", "."}) {
    EXPECT_EQ(facts_of(elf_stub(name)), (elf::elf_facts{true, ""})) << name;
  }
  EXPECT_EQ(facts_of(elf_stub(std::string(300, 'x'))), (elf::elf_facts{true, ""}));
}

TEST(elf, truncated_file_gives_no_wrong_facts) {
  const std::string whole = elf_stub("libcuda.so.1");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto facts = facts_of(whole.substr(0, size));
    EXPECT_EQ(facts.has_value(), size >= EI_NIDENT) << size;
    EXPECT_EQ(facts ? facts->soname : "", "") << size;
  }
}

TEST(elf, changed_bytes_are_harmless) {
  const std::string whole = elf_stub("libcuda.so.1");
  std::mt19937 random(5);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = whole;
    for (int change = 0; change < 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto facts = facts_of(bytes);
    EXPECT_TRUE(!facts || facts->soname.find('/') == std::string::npos);
  }
}

TEST(elf, libraries_of_this_machine_are_read) {
  for (const char* path : {"/lib/x86_64-linux-gnu/libc.so.6",
                           "/lib64/libc.so.6",
                           "/lib/aarch64-linux-gnu/libc.so.6"}) {
    if (const auto facts = elf::read_elf(std::string(path))) {
      EXPECT_EQ(*facts, (elf::elf_facts{true, "libc.so.6"})) << path;
      return;
    }
  }
  GTEST_SKIP() << "the C library is at none of the usual places";
}

TEST(ld_cache, native_entries_are_read_from_both_formats) {
  const std::vector<std::string> paths{"/usr/lib/libcuda.so.1", "/opt/x/libfoo.so.2"};
  for (const bool old_in_front : {false, true}) {
    EXPECT_EQ(cache_of(ld_cache_file(paths, old_in_front)),
              (std::vector<elf::ld_cache_entry>{{"libcuda.so.1", "/usr/lib/libcuda.so.1"},
                                                {"libfoo.so.2", "/opt/x/libfoo.so.2"}}))
        << old_in_front;
  }
  EXPECT_EQ(cache_of(ld_cache_file({}, false)), (std::vector<elf::ld_cache_entry>{}));
}

TEST(ld_cache, other_architectures_and_relative_paths_are_skipped) {
  std::string cache = ld_cache_file({"/usr/lib/libcuda.so.1", "lib/libcuda.so.1"}, false);
  EXPECT_EQ(cache_of(cache)->size(), 1U);
  cache[48 + 1] = 0x08;  // x32
  EXPECT_THAT(*cache_of(cache), IsEmpty());
}

TEST(ld_cache, one_of_x86_64_and_aarch64_entries_is_native) {
  std::string cache = ld_cache_file({"/usr/lib/libcuda.so.1"}, false);
  std::size_t native = 0;
  for (const char architecture : {'\x03', '\x0a'}) {  // FLAG_X8664_LIB64, FLAG_AARCH64_LIB64
    cache[48 + 1] = architecture;
    native += cache_of(cache)->size();
  }
  EXPECT_EQ(native, 1U);
}

TEST(ld_cache, other_bytes_are_rejected) {
  EXPECT_EQ(cache_of(""), std::nullopt);
  EXPECT_EQ(cache_of("ld.so-1.7.0"), std::nullopt);
  EXPECT_EQ(cache_of(std::string(4096, '\xff')), std::nullopt);
  std::string big_endian = ld_cache_file({"/usr/lib/libcuda.so.1"}, false);
  big_endian[28] = 3;
  EXPECT_EQ(cache_of(big_endian), std::nullopt);
}

TEST(ld_cache, hostile_offsets_stay_in_bounds) {
  const std::string whole = ld_cache_file({"/usr/lib/libcuda.so.1", "/opt/x/libfoo.so.2"}, true);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    static_cast<void>(cache_of(whole.substr(0, size)));
  }
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = whole;
    for (int change = 0; change < 4; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    for (const elf::ld_cache_entry& each :
         cache_of(bytes).value_or(std::vector<elf::ld_cache_entry>())) {
      ASSERT_TRUE(each.path.starts_with('/'));
      ASSERT_FALSE(each.name.empty());
    }
  }
}

bool is_cache(const std::string& bytes) {
  // A buffer of the exact size: out-of-bounds reads are detected.
  const std::vector<char> copy(bytes.begin(), bytes.end());
  return elf::is_ld_cache(std::as_bytes(std::span(copy)));
}

TEST(ld_cache, damaged_file_is_rejected) {
  for (const bool old_in_front : {false, true}) {
    const std::string whole =
        ld_cache_file({"/usr/lib/libcuda.so.1", "/opt/x/libfoo.so.2"}, old_in_front);
    EXPECT_TRUE(is_cache(whole));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(is_cache(whole.substr(0, size))) << size;
    }
  }
  EXPECT_TRUE(is_cache(ld_cache_file({}, false)));
  EXPECT_FALSE(is_cache("libcuda.so.1"));
}

TEST(ld_cache, out_of_bounds_entry_is_rejected) {
  const std::string whole = ld_cache_file({"/usr/lib/libcuda.so.1"}, false);
  // Number of entries, length of the strings, extensions, and the entry's two strings.
  for (const std::size_t at :
       {std::size_t{20}, std::size_t{24}, std::size_t{32}, std::size_t{52}, std::size_t{56}}) {
    for (const std::uint32_t value :
         {static_cast<std::uint32_t>(whole.size() + 1), 0x7fffffffU, 0xffffffffU}) {
      std::string damaged = whole;
      std::memcpy(damaged.data() + at, &value, sizeof value);
      EXPECT_FALSE(is_cache(damaged)) << at << ' ' << value;
    }
  }
  // Into the tables instead of the strings; an unterminated string.
  std::string into_header = whole;
  const std::uint32_t header = 4;
  std::memcpy(into_header.data() + 52, &header, sizeof header);
  EXPECT_FALSE(is_cache(into_header));
  std::string endless = whole;
  endless.back() = 'x';
  EXPECT_FALSE(is_cache(endless));
}

TEST(ld_cache, shared_long_strings_are_limited) {
  std::string cache = ld_cache_file(std::vector<std::string>(2000, "/x"), false);
  const auto text_at = static_cast<std::uint32_t>(cache.size());
  cache.append(std::string(100'000, '/'));
  for (std::size_t i = 0; i < 2000; ++i) {
    std::memcpy(cache.data() + 48 + i * 24 + 4, &text_at, sizeof text_at);
    std::memcpy(cache.data() + 48 + i * 24 + 8, &text_at, sizeof text_at);
  }
  EXPECT_THAT(*cache_of(cache), IsEmpty());
}

TEST(ld_cache, cache_of_this_machine_is_read) {
  const auto own = base::read_small_file("/etc/ld.so.cache", std::size_t{16} << 20U);
  if (!own || own->empty()) {
    GTEST_SKIP() << "this machine has no /etc/ld.so.cache";
  }
  const auto entries = cache_of(*own);
  ASSERT_TRUE(entries);
  EXPECT_THAT(*entries,
              ::testing::Contains(::testing::Field(&elf::ld_cache_entry::name, "libc.so.6")));
}

TEST(mig_minors, lines_are_read_and_malformed_ones_skipped) {
  EXPECT_THAT(
      parse_mig_minors("config 1\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"
                       "gpu0/gi2/access\ngpu0/gi3/access x\ngpu0/gi4/access -1\n"
                       "gpu0/gi5/access 1 2\n\n  \n"),
      ElementsAre(Pair("config", 1), Pair("gpu0/gi1/access", 12), Pair("gpu0/gi1/ci0/access", 13)));
  EXPECT_THAT(parse_mig_minors(""), IsEmpty());
}

}  // namespace
}  // namespace gpushm::discover
