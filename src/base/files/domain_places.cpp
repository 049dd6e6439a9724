// SPDX-License-Identifier: Apache-2.0
#include "base/files/domain_places.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"

namespace gpushm::base {

namespace {

namespace fs = std::filesystem;

constexpr const char* runtime_variable = "XDG_RUNTIME_DIR";

/// Why a directory cannot be trusted; empty: it can, or it does not exist.
std::string refusal_of(const std::string& path, unsigned uid, bool may_be_link) {
  struct stat status {};
  if ((may_be_link ? ::stat(path.c_str(), &status) : ::lstat(path.c_str(), &status)) != 0) {
    const int number = errno;
    return number == ENOENT || number == ENOTDIR ? std::string() : path + ": " + errno_text(number);
  }
  if (!S_ISDIR(status.st_mode)) {
    return path + " is not a directory";
  }
  if (status.st_uid != uid) {
    return path + " belongs to uid " + std::to_string(status.st_uid) +
           ", not to this process's uid " + std::to_string(uid);
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return path + " is writable by others";
  }
  return {};
}

/// `way`: the directories to check, from the first that others could have made to `path`.
domains_place place_at(const std::vector<std::string>& way,
                       bool exists,
                       bool first_may_be_link,
                       unsigned uid,
                       const std::string& next_step) {
  domains_place result{way.back(), exists};
  for (const std::string& each : way) {
    result.refusal = refusal_of(each, uid, first_may_be_link && each == way.front());
    if (!result.refusal.empty()) {
      result.next_step = next_step;
      break;
    }
  }
  return result;
}

/// `top` is another program's to create.
domains_place place_in(const std::string& top, unsigned uid, const std::string& next_step) {
  std::error_code unknown;
  return place_at(
      {top, top + "/gpushm", top + "/gpushm/d"}, fs::exists(top, unknown), true, uid, next_step);
}

domains_place place_in_temporary(const std::string& temporary, unsigned uid) {
  const std::string own = temporary + "/gpushm-" + std::to_string(uid);
  return place_at({own, own + "/d"},
                  true,
                  false,
                  uid,
                  "remove it, set XDG_RUNTIME_DIR to a directory of this user, or pass a socket");
}

void make_private_directory(const std::string& path) {
  const int result = retry([&] { return ::mkdir(path.c_str(), 0700); });
  if (result != 0 && errno != EEXIST) {
    const int number = errno;
    throw error(errc_of_errno(number),
                "create directory",
                path,
                "mkdir: " + errno_text(number),
                "choose another path: gpushm serve --socket PATH");
  }
  if (const std::string refusal = refusal_of(path, ::geteuid(), false); !refusal.empty()) {
    throw error(errc::permission_denied,
                "serve",
                path,
                refusal,
                "remove it, or choose another path: gpushm serve --socket PATH");
  }
}

}  // namespace

std::string socket_in(const std::string& place, std::string_view domain) {
  return std::string(place).append("/").append(domain).append("/socket");
}

std::string chosen_machine_socket(std::string_view domain) {
  if (domain.empty() || domain.starts_with('.') || domain.find('/') != std::string_view::npos) {
    throw error(errc::invalid_argument,
                "connect",
                domain,
                "GPUSHM_IPC_DOMAIN is not the name of a domain",
                "set it to a name in /run/gpushm/d, or unset it");
  }
  return socket_in(machine_domains, domain);
}

std::vector<domains_place> user_domains(const user_directories& directories) {
  std::vector<domains_place> result;
  const std::string of_user = directories.users + "/" + std::to_string(directories.uid);
  if (!directories.runtime.empty()) {
    std::string top = fs::path(directories.runtime).lexically_normal().string();
    if (top.size() > 1 && top.back() == '/') {
      top.pop_back();
    }
    if (top.front() != '/') {
      result.push_back(
          {top,
           false,
           std::string(runtime_variable) + "=" + directories.runtime + " is not an absolute path",
           "unset XDG_RUNTIME_DIR, or set it to a directory of this user"});
    } else if (top != of_user) {
      result.push_back(
          place_in(top,
                   directories.uid,
                   "unset XDG_RUNTIME_DIR, or set it to a directory of this user (0700)"));
    }
  }
  result.push_back(
      place_in(of_user, directories.uid, "set XDG_RUNTIME_DIR to a directory of this user"));
  result.push_back(place_in_temporary(directories.temporary, directories.uid));
  return result;
}

std::vector<domains_place> user_domains() {
  user_directories from;
  from.uid = ::geteuid();
  // NOLINTNEXTLINE(concurrency-mt-unsafe): unsafe only if the environment changes concurrently
  if (const char* set = std::getenv(runtime_variable); set != nullptr) {
    from.runtime = set;
  }
  return user_domains(from);
}

const domains_place& place_to_serve(const std::vector<domains_place>& places) {
  for (const domains_place& each : places) {
    if (!each.refusal.empty()) {
      throw error(errc::permission_denied, "serve", each.path, each.refusal, each.next_step);
    }
    if (each.exists) {
      return each;
    }
  }
  return places.back();
}

std::string create_user_domain(const domains_place& place, const std::string& domain) {
  make_private_directory(fs::path(place.path).parent_path().string());
  make_private_directory(place.path);
  make_private_directory(place.path + "/" + domain);
  return socket_in(place.path, domain);
}

std::string socket_to_serve(const std::string& domain) {
  const std::string last = std::string(machine_domains) + "/" + domain;
  for (const fs::path& each :
       {fs::path(machine_domains).parent_path(), fs::path(machine_domains), fs::path(last)}) {
    if (retry([&] { return ::mkdir(each.c_str(), 0755); }) == 0) {
      ::chmod(each.c_str(), 0755);  // regardless of the umask
    } else if (errno != EEXIST) {
      break;
    }
  }
  if (::access(last.c_str(), W_OK | X_OK) == 0) {
    return socket_in(machine_domains, domain);
  }
  return create_user_domain(place_to_serve(user_domains()), domain);
}

std::vector<std::string> domains_in(const std::string& place) {
  std::vector<std::string> result;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(place, ignored)) {
    if (entry.is_directory(ignored)) {
      result.push_back(entry.path().filename().string());
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

bool is_listening(const std::string& socket, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.size() >= sizeof address.sun_path) {
    return false;
  }
  std::memcpy(&address.sun_path[0], socket.c_str(), socket.size() + 1);
  const unique_fd probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return retry([&] {
           return ::connect(
               probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
         }) == 0 ||
         errno == EAGAIN;  // its backlog is full
}

std::vector<std::string> listening_sockets() {
  std::vector<std::string> places;
  if (domains_in(machine_domains).size() == 1) {  // of several, each client is given one
    places.emplace_back(machine_domains);
  }
  for (const domains_place& each : user_domains()) {
    if (each.refusal.empty()) {
      places.push_back(each.path);
    }
  }
  std::vector<std::string> result;
  for (const std::string& place : places) {
    for (const std::string& domain : domains_in(place)) {
      std::string socket = socket_in(place, domain);
      if (is_listening(socket)) {
        result.push_back(std::move(socket));
      }
    }
  }
  return result;
}

}  // namespace gpushm::base
