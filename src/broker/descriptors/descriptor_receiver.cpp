// SPDX-License-Identifier: Apache-2.0
#include "broker/descriptors/descriptor_receiver.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "base/files/descriptor_numbers.hpp"
#include "base/files/syscall.hpp"
#include "base/process/own_table.hpp"
#include "core/scheduling.hpp"
#include "protocol/transport/unread.hpp"
#include "succession/recorder/limited_log.hpp"
#include "succession/recorder/own_table.hpp"

namespace gpushm::broker_detail {

namespace {

/// Numbers of the table that they share, before it grows.
constexpr std::size_t first_numbers = 4'096;
/// Packets without descriptors that are read from a socket before it is closed.
constexpr int max_drained = 1024;

}  // namespace

bool drain(int socket) noexcept {
  for (int i = 0; i < max_drained; ++i) {
    switch (transport::first_unread(socket)) {
      case transport::unread::descriptors:
        return false;
      case transport::unread::nothing:
      case transport::unread::unknown:
        return true;
      case transport::unread::plain:
        break;
    }
    msghdr header{};  // no room: the packet is dropped. Not recv: the program refuses recvfrom
    static_cast<void>(base::retry([&] { return ::recvmsg(socket, &header, MSG_DONTWAIT); }));
  }
  return false;
}

descriptor_receiver::descriptor_receiver(
    const std::function<std::optional<succession::descriptor_shelf>()>& shelf) {
  std::array<int, 2> pair{};
  base::checked("serve", {}, "socketpair", [&] {
    return ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data());
  });
  broker_end_ = base::unique_fd(pair[0]);
  base::unique_fd worker_end(pair[1]);

  const auto created = std::make_shared<worker_pool>(worker_end.get());
  // Once the thread has its own table, `worker_end` is the same number in both tables; until then
  // only the thread may use it.
  bool has_own_table = false;
  std::exception_ptr failed;
  try {
    has_own_table = succession::start_with_own_table(
        "gpushm-receiver",
        {worker_end.get()},
        [created, &shelf, &failed] {
          const base::own_table_scope own;
          base::reserve_descriptor_numbers(first_numbers);
          try {
            created->set_shelf(shelf());
          } catch (...) {
            failed = std::current_exception();
          }
        },
        [created] { created->run(); });
  } catch (...) {
    static_cast<void>(worker_end.release());  // owned by the worker pool
    throw;
  }
  if (!has_own_table) {
    static_cast<void>(worker_end.release());
    succession::log_about_broker(
        log_level::warning,
        "serve: the kernel or a system call filter rejects close_range with "
        "CLOSE_RANGE_UNSHARE: a member that sends a descriptor whose close blocks can keep "
        "this process from exiting (allow close_range)");
  }
  if (failed) {
    std::rethrow_exception(failed);
  }
}

/// What threads have handed over belongs to this object; what they hand over later, to them.
descriptor_receiver::~descriptor_receiver() {
  ::shutdown(broker_end_.get(), SHUT_RD);
  try {
    while (next()) {
    }
  } catch (const std::exception& why) {
    succession::log_about_members(log_level::warning, why.what());
  }
}

bool descriptor_receiver::fetch(std::uint64_t session,
                                const core::principal& principal,
                                int socket,
                                std::size_t taken) {
  auto created =
      std::make_unique<socket_job>(session, std::string(core::scheduling_key(principal)), taken);
  const address_text text = text_of(created.get());
  const std::array<int, 1> fds{socket};
  try {
    if (transport::send_packet(broker_end_.get(), text, fds) != transport::send_result::sent) {
      return false;
    }
  } catch (const error& why) {
    if (why.code() != errc::too_many_descriptors) {
      throw;
    }
    return false;  // too many are in flight for this uid, possibly sent by another program
  }
  static_cast<void>(created.release());
  return true;
}

bool descriptor_receiver::close_elsewhere(const core::principal& principal,
                                          succession::kept_fd& socket,
                                          std::uint64_t number) noexcept {
  try {
    const auto broker_copy = std::make_shared<packet_gate>();
    auto created = std::make_unique<socket_job>(
        std::string(core::scheduling_key(principal)), broker_copy, socket.id, number);
    const address_text text = text_of(created.get());
    const std::array<int, 1> fds{socket.get()};
    if (transport::send_packet(broker_end_.get(), text, fds) != transport::send_result::sent) {
      return false;
    }
    static_cast<void>(created.release());
    socket.file.reset();  // not the last copy, so this does not block
    broker_copy->close();
    return true;
  } catch (const error& why) {
    if (why.code() != errc::too_many_descriptors) {  // in flight for this uid
      succession::log_about_members(log_level::warning, why.what());
    }
  } catch (const std::exception& why) {
    succession::log_about_members(log_level::warning, why.what());
  }
  return false;
}

std::unique_ptr<received_packet> descriptor_receiver::next() {
  address_text text{};
  auto got = transport::receive_guarded(broker_end_.get(), text);
  if (got.packet.size() != text.size()) {
    return nullptr;
  }
  auto result = object_at<received_packet>(text);
  if (got.status == transport::receive_status::descriptors_lost) {
    result->status = got.status;
  }
  result->descriptors = succession::not_kept(std::move(got.descriptors));
  for (std::size_t i = 0; i < result->descriptors.size() && i < result->kept.size(); ++i) {
    result->descriptors[i].id = result->kept[i];
  }
  return result;
}

}  // namespace gpushm::broker_detail
