// SPDX-License-Identifier: Apache-2.0
#include "tensors/files/model_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/report/log.hpp"
#include "base/text/quoted.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"
#include "tensors/files/hash.hpp"
#include "tensors/files/tensor_json.hpp"

namespace gpushm::tensors {

namespace {

using base::in_quotes;
constexpr const char* operation = "load";
constexpr std::uint64_t length_bytes = 8;

constexpr std::string_view write_again = "write it again with a current safetensors";
constexpr std::string_view download_again = "download the file again: it is not complete";

[[noreturn]] void invalid(const std::string& path,
                          const std::string& cause,
                          std::string_view next_step = write_again) {
  throw error(errc::invalid_file, operation, path, cause, std::string(next_step));
}

base::guarded_fd open_file(const std::string& path) {
  return base::guarded_fd::open([&] {
    // A pipe would block, and a device would have effects: only then is its kind looked at.
    return base::checked(operation, path, "open", [&] {
      return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    });
  });
}

std::uint64_t size_of(int file, const std::string& path) {
  struct stat info {};
  base::checked(operation, path, "fstat", [&] { return ::fstat(file, &info); });
  if (!S_ISREG(info.st_mode)) {
    invalid(path, "it is not a regular file", "pass a file");
  }
  return static_cast<std::uint64_t>(info.st_size);
}

void read_exactly(
    int file, const std::string& path, std::uint64_t offset, char* into, std::size_t count) {
  while (count != 0) {
    const ssize_t got = base::checked(operation, path, "pread", [&] {
      return ::pread(file, into, count, static_cast<off_t>(offset));
    });
    if (got == 0) {
      invalid(path,
              "it has become shorter while it was read",
              "load it again when what writes it has ended");
    }
    into += got;
    offset += static_cast<std::uint64_t>(got);
    count -= static_cast<std::size_t>(got);
  }
}

/// Tensors fill the file from the first byte behind the header to the last one.
void check_places(const model_file& file) {
  std::uint64_t expected = 0;
  for (const tensor& each : file.contents.all) {
    const std::string name = "tensor " + in_quotes(each.name);
    if (each.begin != expected) {
      invalid(file.path,
              name + " begins at " + std::to_string(each.begin) + ", and the one before ends at " +
                  std::to_string(expected));
    }
    if (each.end < each.begin) {
      invalid(file.path, name + " ends before it begins");
    }
    if (const std::uint64_t bytes = bytes_of(each); each.end - each.begin != bytes) {
      invalid(file.path,
              name + " has " + std::to_string(each.end - each.begin) +
                  " bytes, and its shape and dtype " + std::to_string(bytes));
    }
    expected = each.end;
  }
  if (const std::uint64_t bytes = file.size_bytes - file.data_begin; expected != bytes) {
    invalid(file.path,
            expected > bytes
                ? "it is truncated: its tensors have " + std::to_string(expected) +
                      " bytes, and the file " + std::to_string(bytes)
                : std::to_string(bytes - expected) + " bytes at its end belong to no tensor",
            expected > bytes ? download_again : write_again);
  }
}

/// What a file is that is none of safetensors, and what helps.
struct other_kind {
  std::string what;
  std::string_view next_step;
};

/// The signature of a format that is found under the names of safetensors files.
struct signature {
  std::string_view begin;  ///< in lower case, as a page's tags may have any
  std::string_view what;
  std::string_view next_step;
};
constexpr std::string_view get_the_file =
    "download the file itself, with the access that its host asks for";
constexpr std::string_view convert = "convert it to safetensors";
constexpr std::array signatures{
    signature{"version https://git-lfs.github.com/spec/",
              "it is a Git LFS pointer, not the file that it stands for",
              "run git lfs pull in its folder, or download it with its hub's client"},
    signature{"<!doctype html", "it is an HTML page instead of the file", get_the_file},
    signature{"<html", "it is an HTML page instead of the file", get_the_file},
    signature{"<?xml", "it is an XML document instead of the file", get_the_file},
    signature{"pk\x03\x04", "it is a ZIP archive, as torch.save writes", convert},
    signature{"\x80\x02", "it is a pickle, as torch.save writes", convert},
    signature{"\x80\x03", "it is a pickle", convert},
    signature{"\x80\x04", "it is a pickle", convert},
    signature{"\x80\x05", "it is a pickle", convert},
    signature{"gguf", "it is a GGUF file", convert},
    signature{"\x89hdf", "it is an HDF5 file", convert},
    signature{"\x93numpy", "it is a NumPy file", convert},
    signature{"\x1f\x8b", "it is compressed by gzip", "decompress it"},
    signature{"\x28\xb5\x2f\xfd", "it is compressed by zstd", "decompress it"},
    signature{"\xfd\x37zxz", "it is compressed by xz", "decompress it"},
};

/// Finds the kind of a file by its first bytes.
std::optional<other_kind> other_kind_of(std::string_view first) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  constexpr std::string_view blank = " \t\r\n";
  constexpr std::size_t shown = 60;
  if (first.empty()) {
    return other_kind{"it is empty", download_again};
  }
  if (first.substr(0, 512).find_first_not_of('\0') == std::string_view::npos) {
    return other_kind{"it begins with zeros: what has made it has not written it yet",
                      download_again};
  }
  if (first.starts_with(byte_order_mark)) {
    first.remove_prefix(byte_order_mark.size());
  }
  const std::string_view text =
      first.substr(std::min(first.find_first_not_of(blank), first.size()));
  const std::string lower = base::lower_case(text);
  for (const signature& each : signatures) {
    if (lower.starts_with(each.begin)) {
      return other_kind{std::string(each.what), each.next_step};
    }
  }
  if (text.starts_with('{')) {
    return other_kind{"it is JSON, not tensors", "pass safetensors files, or a *.index.json"};
  }
  const std::string_view line = text.substr(0, std::min(text.find_first_of("\r\n"), shown));
  if (!line.empty() && std::all_of(line.begin(), line.end(), [](char each) {
        return each == '\t' || (each >= ' ' && each <= '~');
      })) {
    return other_kind{"it is text that begins with " + in_quotes(line), get_the_file};
  }
  return std::nullopt;
}

bool begins_as_object(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

/// Throws if the file's bytes tell what it is instead.
void refuse_other_kind(const std::string& path, std::string_view first) {
  if (const auto other = other_kind_of(first)) {
    invalid(path, other->what, other->next_step);
  }
}
void refuse_other_kind(const model_file& file) {
  constexpr std::uint64_t looked_at = 512;
  std::string first(std::min(file.size_bytes, looked_at), '\0');
  read_exactly(file.file.get(), file.path, 0, first.data(), first.size());
  refuse_other_kind(file.path, first);
}

model_file open_one(const std::string& path) {
  model_file result;
  result.path = path;
  result.file = open_file(path);
  result.stamp = stamp_of(result.file.get(), path);
  result.size_bytes = result.stamp.size_bytes;
  if (result.size_bytes < length_bytes) {
    refuse_other_kind(result);
    invalid(path, "it is shorter than the length of a header", download_again);
  }
  std::array<unsigned char, length_bytes> length{};
  read_exactly(result.file.get(), path, 0, reinterpret_cast<char*>(length.data()), length.size());
  std::uint64_t header_bytes = 0;
  for (std::size_t i = length.size(); i != 0; --i) {
    header_bytes = header_bytes << 8U | length[i - 1];
  }
  if (header_bytes > max_header_bytes) {
    refuse_other_kind(result);
    invalid(path,
            "its header would have " + std::to_string(header_bytes) + " bytes, more than " +
                std::to_string(max_header_bytes) + ": it is not a safetensors file");
  }
  std::string header(std::min(header_bytes, result.size_bytes - length_bytes), '\0');
  read_exactly(result.file.get(), path, length_bytes, header.data(), header.size());
  if (!begins_as_object(header)) {
    refuse_other_kind(result);
  }
  if (header.size() != header_bytes) {
    invalid(path, "it is truncated within its header", download_again);
  }
  result.data_begin = length_bytes + header_bytes;
  result.header_hash = hash_text(header);
  try {
    result.contents = read_tensors(header, dialect::file);
    check_places(result);
  } catch (const invalid_json& why) {
    invalid(path, std::string("in its header ") + why.what());
  }
  return result;
}

// ---- several files ----

/// The files that an index names, and the tensors of each.
using shards = std::map<std::string, std::vector<std::string>>;

shards read_shards(const std::string& path) {
  const auto file = open_file(path);
  const std::uint64_t bytes = size_of(file.get(), path);
  if (bytes > max_header_bytes) {
    invalid(path, "it is larger than " + std::to_string(max_header_bytes) + " bytes");
  }
  std::string text(bytes, '\0');
  read_exactly(file.get(), path, 0, text.data(), text.size());
  if (!begins_as_object(text)) {
    refuse_other_kind(path, text);
  }
  shards result;
  try {
    for (auto& [tensor_name, file_name] : read_index(text)) {
      if (file_name.empty() || file_name.front() == '.' ||
          file_name.find('/') != std::string::npos || file_name.find('\0') != std::string::npos) {
        invalid(path,
                in_quotes(file_name) + " is not the name of a file beside it",
                "let it name files of its own folder");
      }
      result[file_name].push_back(std::move(tensor_name));
    }
  } catch (const invalid_json& why) {
    invalid(path, why.what(), "write the index again, or pass the files that it names");
  }
  return result;
}

/// All of them at once: each may be a download of many minutes.
void check_that_all_are_there(const std::string& index,
                              const std::filesystem::path& folder,
                              const shards& shards) {
  constexpr std::size_t named = 16;
  std::string names;
  std::size_t missing = 0;
  bool are_links = false;
  std::error_code ignored;
  for (const auto& [name, tensors] : shards) {
    if (std::filesystem::status(folder / name, ignored).type() !=
        std::filesystem::file_type::not_found) {
      continue;
    }
    are_links = are_links || std::filesystem::is_symlink(folder / name, ignored);
    if (++missing <= named) {
      names += (names.empty() ? "" : ", ") + in_quotes(name);
    }
  }
  if (missing == 0) {
    return;
  }
  if (missing > named) {
    names += " and " + std::to_string(missing - named) + " more";
  }
  invalid(index,
          std::to_string(missing) + " of its " + std::to_string(shards.size()) +
              " files are missing: " + names +
              (are_links ? " (there are links, but not what they lead to)" : ""),
          are_links ? "mount or copy what the links lead to, such as the whole cache of a hub"
                    : "download the missing files into the folder of the index");
}

/// Leaves the tensors that the index places in this file, and returns how many others there were.
/// Throws if one is not there.
std::size_t select(model_file& file, const std::vector<std::string>& named) {
  std::unordered_set<std::string_view> missing(named.begin(), named.end());
  auto& tensors = file.contents.all;
  const std::size_t before = tensors.size();
  std::string selection = file.header_hash;
  tensors.erase(std::remove_if(tensors.begin(),
                               tensors.end(),
                               [&](const tensor& each) {
                                 const bool is_named = missing.erase(each.name) != 0;
                                 selection += is_named ? "1" : "0";
                                 return !is_named;
                               }),
                tensors.end());
  if (!missing.empty()) {
    invalid(file.path,
            "it has no tensor " + in_quotes(*std::min_element(missing.begin(), missing.end())) +
                ", which the index places there",
            "use an index and files of the same revision of the model");
  }
  if (tensors.size() != before) {
    file.header_hash = hash_text(selection);
  }
  return before - tensors.size();
}

constexpr std::string_view index_suffix = ".index.json";

/// `path`, or the file in it if it is a folder.
std::string file_in(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    return path;
  }
  for (const char* const name : {"/model.safetensors.index.json", "/model.safetensors"}) {
    if (std::filesystem::exists(path + name, ignored)) {
      return path + name;
    }
  }
  constexpr std::size_t named = 8;
  std::vector<std::string> others;
  for (std::filesystem::directory_iterator at(path, ignored), end; at != end;
       at.increment(ignored)) {
    std::string name = at->path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(index_suffix) || name.ends_with(".bin") ||
        name.ends_with(".gguf") || name.ends_with(".pt") || name.ends_with(".pth")) {
      others.push_back(std::move(name));
    }
  }
  std::sort(others.begin(), others.end());
  std::string has;
  for (std::size_t i = 0; i != std::min(named, others.size()); ++i) {
    has += (i == 0 ? ", but " : ", ") + in_quotes(others[i]);
  }
  if (others.size() > named) {
    has += " and " + std::to_string(others.size() - named) + " more";
  }
  const bool has_tensors = std::any_of(others.begin(), others.end(), [](const std::string& each) {
    return each.ends_with(".safetensors");
  });
  invalid(path,
          "the folder has neither model.safetensors.index.json nor model.safetensors" + has,
          has_tensors      ? "pass the files of one model, or its index"
          : others.empty() ? "pass the folder that has the files of a model"
                           : "convert the model to safetensors");
}

void check_unique(const std::vector<model_file>& files) {
  std::unordered_map<std::string_view, const model_file*> owners;
  for (const model_file& file : files) {
    for (const tensor& each : file.contents.all) {
      const auto [at, is_new] = owners.emplace(each.name, &file);
      if (!is_new) {
        invalid(file.path,
                "tensor " + in_quotes(each.name) + " is also in " + in_quotes(at->second->path),
                "pass the files of one model, or its index");
      }
    }
  }
}

}  // namespace

std::vector<model_file> open_model(const std::vector<std::string>& paths) {
  if (paths.empty()) {
    throw error(errc::invalid_argument, operation, {}, "no file", "pass the files of a model");
  }
  std::vector<model_file> result;
  for (const std::string& path : paths) {
    const std::string file = file_in(path);
    if (!file.ends_with(index_suffix)) {
      result.push_back(open_one(file));
      continue;
    }
    const auto folder = std::filesystem::path(file).parent_path();
    const shards shards = read_shards(file);
    check_that_all_are_there(file, folder, shards);
    std::size_t left_out = 0;
    for (const auto& [name, named] : shards) {
      result.push_back(open_one((folder / name).string()));
      left_out += select(result.back(), named);
    }
    if (left_out != 0) {
      base::log(log_level::info,
                "load " + in_quotes(file) + ": " + std::to_string(left_out) +
                    " tensors of its files are left out: the index does not name them");
    }
  }
  check_unique(result);
  return result;
}

std::string first_file_of(const std::string& path) {
  return file_in(path);
}

bool is_index(const std::string& path) {
  return path.ends_with(index_suffix);
}

}  // namespace gpushm::tensors
