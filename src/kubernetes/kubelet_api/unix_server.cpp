// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_api/unix_server.hpp"

#include <fmt/core.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>

#include <utility>

#include "base/files/syscall.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/kubelet_api/unix_path.hpp"

namespace gpushm::kubelet {

namespace {
constexpr std::chrono::milliseconds destructor_timeout{500};
}  // namespace

unix_server::unix_server(std::string path, const std::vector<grpc::Service*>& services)
    : path_(std::move(path)) {
  if (path_.size() > max_socket_path_bytes) {
    throw error(errc::invalid_argument,
                "serve",
                path_,
                fmt::format("a Unix socket's path has at most {} bytes", max_socket_path_bytes),
                "use a directory with a shorter path");
  }
  grpc::ServerBuilder builder;
  // Otherwise two servers could share a path unnoticed.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int bound = 0;
  builder.AddListeningPort("unix:" + path_, grpc::InsecureServerCredentials(), &bound);
  for (grpc::Service* const each : services) {
    builder.RegisterService(each);
  }
  server_ = builder.BuildAndStart();
  struct stat status {};
  if (server_ == nullptr || ::lstat(path_.c_str(), &status) != 0) {
    throw error(errc::system_error,
                "serve",
                path_,
                "the socket could not be bound",
                "check that its directory exists and is writable");
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

unix_server::~unix_server() {
  stop(destructor_timeout);
}

bool unix_server::is_reachable() const noexcept {
  struct stat status {};
  return ::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ &&
         status.st_ino == inode_;
}

void unix_server::stop(std::chrono::milliseconds timeout) {
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now() + timeout);
    server_.reset();
  }
}

}  // namespace gpushm::kubelet
