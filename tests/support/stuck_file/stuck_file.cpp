// SPDX-License-Identifier: Apache-2.0
#include "tests/support/stuck_file/stuck_file.hpp"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "tests/support/process/harness_error.hpp"

namespace gpushm_testing {

namespace {

constexpr std::uint64_t file_id = 2;

void answer(int device, const fuse_in_header& header, const void* body, std::size_t bytes) {
  fuse_out_header head{};
  head.len = static_cast<std::uint32_t>(sizeof head + bytes);
  head.unique = header.unique;
  const std::array<iovec, 2> parts{{{&head, sizeof head}, {const_cast<void*>(body), bytes}}};
  static_cast<void>(!::writev(device, parts.data(), bytes == 0 ? 1 : 2));
}

fuse_attr attributes(std::uint64_t id) {
  fuse_attr result{};
  result.ino = id;
  result.mode = id == FUSE_ROOT_ID ? S_IFDIR | 0755U : S_IFREG | 0666U;
  result.nlink = 1;
  return result;
}

}  // namespace

std::optional<std::string> why_no_stuck_file() {
  if (::geteuid() != 0) {
    return "only root can mount FUSE";
  }
  const gpushm::base::unique_fd device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!device) {
    return "no /dev/fuse";
  }
  const temp_dir directory;
  const std::string options =
      "fd=" + std::to_string(device.get()) + ",rootmode=40000,user_id=0,group_id=0";
  if (::mount("stuck", directory.path().c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) !=
      0) {
    return "mount is refused";
  }
  ::umount2(directory.path().c_str(), MNT_DETACH);
  return std::nullopt;
}

stuck_file::stuck_file() : device_(::open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK)) {
  const std::string options =
      "fd=" + std::to_string(device_.get()) + ",rootmode=40000,user_id=0,group_id=0,allow_other";
  if (::mount("stuck", directory_.path().c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) !=
      0) {
    throw harness_error("mount");
  }
  server_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd ready{device_.get(), POLLIN, 0};
      if (::poll(&ready, 1, 20) > 0) {
        serve();
      }
    }
  });
  file_ = gpushm::base::unique_fd(::open((directory_ / "file").c_str(), O_RDWR | O_CLOEXEC));
  if (!file_) {
    throw harness_error("open");
  }
}

stuck_file::~stuck_file() {
  // Ends the connection, and with it all requests.
  ::umount2(directory_.path().c_str(), MNT_DETACH);
  server_.request_stop();
  server_.join();
  device_.reset();
}

void stuck_file::serve() {
  alignas(fuse_in_header) std::array<std::byte, 1U << 18U> packet{};
  const ssize_t size = ::read(device_.get(), packet.data(), packet.size());
  if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) {
    return;
  }
  fuse_in_header head{};
  std::memcpy(&head, packet.data(), sizeof head);
  switch (head.opcode) {
    case FUSE_INIT: {
      fuse_init_out body{};
      body.major = FUSE_KERNEL_VERSION;
      body.minor = FUSE_KERNEL_MINOR_VERSION;
      body.max_write = 4'096;
      answer(device_.get(), head, &body, sizeof body);
      break;
    }
    case FUSE_LOOKUP: {
      fuse_entry_out body{};
      body.nodeid = file_id;
      body.entry_valid = body.attr_valid = 3'600;
      body.attr = attributes(file_id);
      answer(device_.get(), head, &body, sizeof body);
      break;
    }
    case FUSE_GETATTR: {
      fuse_attr_out body{};
      body.attr_valid = 3'600;
      body.attr = attributes(head.nodeid);
      answer(device_.get(), head, &body, sizeof body);
      break;
    }
    case FUSE_OPEN: {
      const fuse_open_out body{};
      answer(device_.get(), head, &body, sizeof body);
      break;
    }
    case FUSE_FLUSH:
      is_being_closed_ = true;
      break;  // no answer
    case FUSE_RELEASE:
    case FUSE_INTERRUPT:
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
      break;  // no answer
    default: {
      fuse_out_header refused{};
      refused.len = sizeof refused;
      refused.error = -ENOSYS;
      refused.unique = head.unique;
      static_cast<void>(!::write(device_.get(), &refused, sizeof refused));
    }
  }
}

}  // namespace gpushm_testing
