// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/driver/endpoints.hpp"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "base/text/hex.hpp"
#include "kubernetes/dra/driver/registration_service.hpp"
#include "kubernetes/kubelet_api/unix_path.hpp"
#include "kubernetes/kubelet_api/unix_server.hpp"

namespace gpushm::dra {

namespace {

/// Timeout for calls in progress: a preparation waits for the API server at most this long.
constexpr std::chrono::milliseconds timeout{2'000};

std::string random_text() {
  std::array<std::uint8_t, 4> bytes{};
  base::random_bytes(bytes);
  return base::hex_text(bytes);
}

void create_directory(const std::string& path) {
  std::error_code failed;
  if (std::filesystem::create_directories(path, failed)) {
    constexpr mode_t mode = 0750;
    base::checked("create directory", path, "chmod", [&] { return ::chmod(path.c_str(), mode); });
  }
  if (failed) {
    base::throw_errno(failed.value(), "create directory", path, "mkdir");
  }
}

void remove_without_listener(const std::string& directory,
                             const std::string& prefix,
                             const std::string& suffix) {
  std::error_code failed;
  for (std::filesystem::directory_iterator each(directory, failed), end; each != end && !failed;
       each.increment(failed)) {
    const std::string name = each->path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix) &&
        kubelet::has_no_listener(each->path().string())) {
      ::unlink(each->path().c_str());
    }
  }
}

}  // namespace

struct endpoints::pair {
  pair(const endpoints& endpoints, const std::string& dra, const std::string& registry)
      : dra_server(dra, endpoints.services_),
        registration(endpoints.options_.driver, dra, endpoints.registered_),
        // Last: a kubelet connects as soon as this socket appears.
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
      plugins_(fmt::format("{}/plugins/{}", options_.kubelet_root, options_.driver)),
      registry_(options_.kubelet_root + "/plugins_registry"),
      unique_(fmt::format("{}-{}", ::getpid(), random_text())) {}

endpoints::~endpoints() {
  if (serving_) {
    serving_->registration_server.stop(timeout);
    serving_->dra_server.stop(timeout);
  }
}

bool endpoints::ensure() {
  if (serving_ && serving_->dra_server.is_reachable() &&
      serving_->registration_server.is_reachable()) {
    return false;
  }
  create_directory(plugins_);
  create_directory(registry_);
  remove_stale_sockets();
  const std::string name = fmt::format("{}-{}", unique_, ++number_);
  auto next =
      std::make_unique<pair>(*this,
                             fmt::format("{}/dra-{}.sock", plugins_, name),
                             fmt::format("{}/{}-{}-reg.sock", registry_, options_.driver, name));
  // The old pair is destroyed after the new one is available.
  std::swap(serving_, next);
  return true;
}

std::string endpoints::path() const {
  return serving_ ? serving_->dra_server.path() : std::string();
}

void endpoints::remove_stale_sockets() const {
  remove_without_listener(plugins_, "dra-", ".sock");
  remove_without_listener(registry_, options_.driver + "-", "-reg.sock");
}

}  // namespace gpushm::dra
