// SPDX-License-Identifier: Apache-2.0
#include "kubelet/dra/endpoints.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/file.hpp"
#include "base/syscall.hpp"
#include "base/unique_fd.hpp"
#include "kubelet/api/unix_server.hpp"
#include "kubelet/dra/registration_service.hpp"

namespace gpushm::dra {

namespace {

/// For calls that run: a claim's preparation waits for the API server at most this long.
constexpr std::chrono::milliseconds patience{2'000};

std::string random_text() {
  constexpr std::string_view digits = "0123456789abcdef";
  std::array<std::uint8_t, 4> bytes{};
  base::random_bytes(bytes);
  std::string text;
  for (const std::uint8_t each : bytes) {
    text.push_back(digits[each >> 4U]);
    text.push_back(digits[each & 0xFU]);
  }
  return text;
}

void make_directory(const std::string& path) {
  std::error_code failed;
  if (std::filesystem::create_directories(path, failed)) {
    constexpr mode_t mode = 0750;
    base::checked("make directory", path, "chmod", [&] { return ::chmod(path.c_str(), mode); });
  }
  if (failed) {
    base::throw_errno(failed.value(), "make directory", path, "mkdir");
  }
}

/// Its process has ended without removing it.
bool is_dead_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return false;
  }
  std::memcpy(&address.sun_path, path.c_str(), path.size() + 1);
  const base::unique_fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return socket &&
         // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): as connect(2) wants it
         ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
             0 &&
         errno == ECONNREFUSED;
}

void remove_dead(const std::string& directory,
                 const std::string& prefix,
                 const std::string& suffix) {
  std::error_code failed;
  for (std::filesystem::directory_iterator each(directory, failed), end; each != end && !failed;
       each.increment(failed)) {
    const std::string name = each->path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix) &&
        is_dead_socket(each->path().string())) {
      ::unlink(each->path().c_str());
    }
  }
}

}  // namespace

struct endpoints::pair {
  pair(const endpoints& of, const std::string& dra, const std::string& registry)
      : dra_server(dra, of.services_),
        registration(of.options_.driver, dra, of.registered_),
        // Last: a kubelet comes as soon as it sees this socket.
        registration_server(registry, {&registration}) {}

  kubelet::unix_server dra_server;
  registration_service registration;
  kubelet::unix_server registration_server;
};

endpoints::endpoints(endpoints_options options,
                     std::vector<grpc::Service*> services,
                     std::function<void(const std::string&)> registered)
    : options_(std::move(options)),
      services_(std::move(services)),
      registered_(std::move(registered)),
      plugins_(options_.kubelet_root + "/plugins/" + options_.driver),
      registry_(options_.kubelet_root + "/plugins_registry"),
      unique_(std::to_string(::getpid()) + "-" + random_text()) {}

endpoints::~endpoints() {
  if (serving_) {
    serving_->registration_server.stop(patience);
    serving_->dra_server.stop(patience);
  }
}

bool endpoints::ensure() {
  if (serving_ && serving_->dra_server.is_reachable() &&
      serving_->registration_server.is_reachable()) {
    return false;
  }
  make_directory(plugins_);
  make_directory(registry_);
  remove_dead_sockets();
  const std::string name = unique_ + "-" + std::to_string(++number_);
  auto next = std::make_unique<pair>(*this,
                                     plugins_ + "/dra-" + name + ".sock",
                                     registry_ + "/" + options_.driver + "-" + name + "-reg.sock");
  // The old one ends after the new one answers.
  std::swap(serving_, next);
  return true;
}

std::string endpoints::path() const {
  return serving_ ? serving_->dra_server.path() : std::string();
}

void endpoints::remove_dead_sockets() const {
  remove_dead(plugins_, "dra-", ".sock");
  remove_dead(registry_, options_.driver + "-", "-reg.sock");
}

}  // namespace gpushm::dra
