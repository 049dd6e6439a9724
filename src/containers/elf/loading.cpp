// SPDX-License-Identifier: Apache-2.0
#include "containers/elf/loading.hpp"

#include <algorithm>

#include "containers/elf/layout.hpp"

namespace gpushm::elf {

namespace {

// glibc's libc.so.6 has about 40 versions, and programs some 20 libraries.
constexpr std::size_t max_libraries = 256;
constexpr std::size_t max_versions = 256;
// Lists in lists could otherwise lead to millions.
constexpr std::size_t max_reads = 2048;

/// Reads the strings and version tables of a file.
class table_reader {
 public:
  table_reader(const read_at& read, const layout& file)
      : read_(read), file_(file), strings_(file.table(DT_STRTAB)) {}

  [[nodiscard]] std::string text(std::uint64_t index) const {
    return strings_ && index <= UINT64_MAX - *strings_ ? read_text(read_, *strings_ + index)
                                                       : std::string();
  }

  [[nodiscard]] std::vector<std::string> libraries() const {
    std::vector<std::string> names;
    for (const Elf64_Dyn& entry : file_.dynamic) {
      if (entry.d_tag == DT_NEEDED && names.size() < max_libraries) {
        names.push_back(text(entry.d_un.d_val));
      }
    }
    return names;
  }

  [[nodiscard]] std::vector<needed_version> needed() const {
    std::vector<needed_version> versions;
    each<Elf64_Verneed>(DT_VERNEED, [&](std::uint64_t offset, const Elf64_Verneed& group) {
      const std::string library = text(group.vn_file);
      walk<Elf64_Vernaux>(
          offset + group.vn_aux, group.vn_cnt, [&](std::uint64_t, const auto& entry) {
            if ((entry.vna_flags & VER_FLG_WEAK) == 0 && versions.size() < max_versions) {
              versions.push_back({library, text(entry.vna_name)});
            }
            return entry.vna_next;
          });
      return group.vn_next;
    });
    return versions;
  }

  [[nodiscard]] std::vector<std::string> defined() const {
    std::vector<std::string> result;
    each<Elf64_Verdef>(DT_VERDEF, [&](std::uint64_t offset, const Elf64_Verdef& group) {
      // The first name is the version's; others are those that it extends. The base is the file.
      if ((group.vd_flags & VER_FLG_BASE) == 0) {
        walk<Elf64_Verdaux>(offset + group.vd_aux, 1, [&](std::uint64_t, const auto& entry) {
          result.push_back(text(entry.vda_name));
          return Elf64_Word{0};
        });
      }
      return group.vd_next;
    });
    return result;
  }

 private:
  /// `use` returns the distance to the next entry; 0 ends the list.
  template <typename Entry, typename Use>
  void walk(std::uint64_t offset, std::size_t count, Use&& use) const {
    for (std::size_t i = 0; i < std::min(count, max_versions); ++i) {
      std::vector<Entry> entry(1);
      if (!read_values(read_, offset, entry)) {
        return;
      }
      const std::uint64_t next = use(offset, entry.front());
      if (next == 0 || next > UINT64_MAX - offset) {
        return;
      }
      offset += next;
    }
  }
  template <typename Entry, typename Use>
  void each(Elf64_Sxword tag, Use&& use) const {
    if (const auto offset = file_.table(tag)) {
      walk<Entry>(*offset, max_versions, use);
    }
  }

  const read_at& read_;
  const layout& file_;
  const std::optional<std::uint64_t> strings_;
};

}  // namespace

std::optional<loading> read_loading(const read_at& unlimited) {
  std::size_t reads = 0;
  const read_at read = [&](std::uint64_t offset, std::span<std::byte> into) {
    return ++reads > max_reads ? 0 : unlimited(offset, into);
  };
  const std::optional<layout> file = read_layout(read);
  if (!file) {
    return std::nullopt;
  }
  loading result;
  result.native = file->native;
  result.soname = soname_of(read, *file);
  if (const Elf64_Phdr* const path = file->segment(PT_INTERP)) {
    result.interpreter = read_text(read, path->p_offset);
  }
  const table_reader tables(read, *file);
  result.libraries = tables.libraries();
  result.needed_versions = tables.needed();
  result.defined_versions = tables.defined();
  return result;
}

std::optional<loading> read_loading(const std::string& path) {
  std::optional<loading> result;
  with_file(path, [&](const read_at& read) { result = read_loading(read); });
  return result;
}

std::optional<loading> read_loading(int file) {
  return read_loading(reader_of(file));
}

}  // namespace gpushm::elf
