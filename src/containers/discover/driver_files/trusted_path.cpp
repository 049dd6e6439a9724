// SPDX-License-Identifier: Apache-2.0
#include "containers/discover/driver_files/trusted_path.hpp"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

namespace gpushm::discover {

namespace {

std::optional<std::string> problem_of(const std::string& path) {
  struct stat about {};
  if (::lstat(path.c_str(), &about) != 0) {
    return std::nullopt;
  }
  if (about.st_uid != 0 && about.st_uid != ::geteuid()) {
    return fmt::format("{} belongs to uid {}", path, about.st_uid);
  }
  const bool shared_place = S_ISDIR(about.st_mode) && (about.st_mode & S_ISVTX) != 0;
  if (S_ISLNK(about.st_mode) || shared_place) {
    return std::nullopt;
  }
  if ((about.st_mode & S_IWOTH) != 0) {
    return path + " is writable by all users";
  }
  if ((about.st_mode & S_IWGRP) != 0 && about.st_gid != 0 && about.st_gid != ::getegid()) {
    return fmt::format("{} is writable by the group {}", path, about.st_gid);
  }
  return std::nullopt;
}

std::optional<std::string> problem_on_the_way(const std::string& path) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    if (auto problem = problem_of(path.substr(0, end))) {
      return problem;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_replaceable(const std::string& path) {
  if (auto problem = problem_on_the_way(path)) {
    return problem;
  }
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  return real && path != real.get() ? problem_on_the_way(real.get()) : std::nullopt;
}

}  // namespace gpushm::discover
