// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/files/unique_fd.hpp"
#include "succession/descriptor_store/descriptor_store.hpp"
#include "succession/recorder/descriptor_shelf.hpp"

namespace gpushm::broker_detail::testing_world {

/// A socket in the place of the keeper's, which reads nothing.
class unread_keeper {
 public:
  unread_keeper() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socklen_t length = sizeof address.sun_family;  // the kernel chooses an abstract name
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_.get(), any, length), 0);
    length = sizeof address;
    EXPECT_EQ(::getsockname(socket_.get(), any, &length), 0);
    name_ = "@" + std::string(&address.sun_path[1], length - offsetof(sockaddr_un, sun_path) - 1);
  }

  [[nodiscard]] succession::descriptor_shelf shelf() const {
    ::setenv("NOTIFY_SOCKET", name_.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
    auto store = keeper::descriptor_store::from_environment();
    ::unsetenv("NOTIFY_SOCKET");  // NOLINT(concurrency-mt-unsafe)
    return {std::move(store).value(), "d1"};
  }

 private:
  base::unique_fd socket_{::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  std::string name_;
};

}  // namespace gpushm::broker_detail::testing_world
