// SPDX-License-Identifier: Apache-2.0
#include "weights/model_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/quoted.hpp"
#include "base/syscall.hpp"
#include "gpushm/error.hpp"
#include "weights/hash.hpp"
#include "weights/tensor_json.hpp"

namespace gpushm::weights {

namespace {

using base::in_quotes;
constexpr const char* operation = "load";
constexpr std::uint64_t length_bytes = 8;

[[noreturn]] void invalid(const std::string& path, const std::string& what) {
  throw error(errc::invalid_file,
              operation,
              path,
              what,
              "download the file again, or write it with a current safetensors");
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
    invalid(path, "it is not a regular file");
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
      invalid(path, "it has become shorter while it was read");
    }
    into += got;
    offset += static_cast<std::uint64_t>(got);
    count -= static_cast<std::size_t>(got);
  }
}

/// Tensors fill the file from the first byte behind the header to the last one.
void check_places(const model_file& of) {
  std::uint64_t expected = 0;
  for (const tensor& each : of.contents.all) {
    const std::string name = "tensor " + in_quotes(each.name);
    if (each.begin != expected) {
      invalid(of.path,
              name + " begins at " + std::to_string(each.begin) + ", and the one before ends at " +
                  std::to_string(expected));
    }
    if (each.end < each.begin) {
      invalid(of.path, name + " ends before it begins");
    }
    if (const std::uint64_t bytes = bytes_of(each); each.end - each.begin != bytes) {
      invalid(of.path,
              name + " has " + std::to_string(each.end - each.begin) +
                  " bytes, and its shape and dtype " + std::to_string(bytes));
    }
    expected = each.end;
  }
  if (const std::uint64_t bytes = of.size_bytes - of.data_begin; expected != bytes) {
    invalid(of.path,
            expected > bytes
                ? "it is truncated: its tensors have " + std::to_string(expected) +
                      " bytes, and the file " + std::to_string(bytes)
                : std::to_string(bytes - expected) + " bytes at its end belong to no tensor");
  }
}

model_file open_one(const std::string& path) {
  model_file result;
  result.path = path;
  result.file = open_file(path);
  result.stamp = stamp_of(result.file.get(), path);
  result.size_bytes = result.stamp.size_bytes;
  if (result.size_bytes < length_bytes) {
    invalid(path, "it is shorter than the length of a header");
  }
  std::array<unsigned char, length_bytes> length{};
  read_exactly(result.file.get(), path, 0, reinterpret_cast<char*>(length.data()), length.size());
  std::uint64_t header_bytes = 0;
  for (std::size_t i = length.size(); i != 0; --i) {
    header_bytes = header_bytes << 8U | length[i - 1];
  }
  if (header_bytes > max_header_bytes) {
    invalid(path,
            "its header would have " + std::to_string(header_bytes) + " bytes, more than " +
                std::to_string(max_header_bytes) + ": it is not a safetensors file");
  }
  if (header_bytes > result.size_bytes - length_bytes) {
    invalid(path, "it is truncated within its header");
  }
  std::string header(header_bytes, '\0');
  read_exactly(result.file.get(), path, length_bytes, header.data(), header.size());
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
  shards result;
  try {
    for (auto& [tensor_name, file_name] : read_index(text)) {
      if (file_name.empty() || file_name.front() == '.' ||
          file_name.find('/') != std::string::npos || file_name.find('\0') != std::string::npos) {
        invalid(path, in_quotes(file_name) + " is not the name of a file beside it");
      }
      result[file_name].push_back(std::move(tensor_name));
    }
  } catch (const invalid_json& why) {
    invalid(path, why.what());
  }
  return result;
}

/// Index and file name the same tensors.
void check_shard(const model_file& file, const std::vector<std::string>& named) {
  std::unordered_map<std::string_view, bool> in_index;
  for (const std::string& each : named) {
    in_index.emplace(each, false);
  }
  for (const tensor& each : file.contents.all) {
    const auto at = in_index.find(each.name);
    if (at == in_index.end()) {
      invalid(file.path, "the index does not name its tensor " + in_quotes(each.name));
    }
    at->second = true;
  }
  for (const auto& [name, found] : in_index) {
    if (!found) {
      invalid(file.path, "it has no tensor " + in_quotes(name) + ", which the index places there");
    }
  }
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
  invalid(path, "the folder has neither model.safetensors.index.json nor model.safetensors");
}

void check_unique(const std::vector<model_file>& files) {
  std::unordered_map<std::string_view, const model_file*> owners;
  for (const model_file& file : files) {
    for (const tensor& each : file.contents.all) {
      const auto [at, is_new] = owners.emplace(each.name, &file);
      if (!is_new) {
        invalid(file.path,
                "tensor " + in_quotes(each.name) + " is also in " + in_quotes(at->second->path));
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
    for (const auto& [name, named] : read_shards(file)) {
      result.push_back(open_one((folder / name).string()));
      check_shard(result.back(), named);
    }
  }
  check_unique(result);
  return result;
}

}  // namespace gpushm::weights
