// SPDX-License-Identifier: Apache-2.0
// The functions of descriptor.h.
#include <cerrno>
#include <memory>
#include <utility>

#include "base/report/c_interface.hpp"
#include "base/segments/registered_names.hpp"
#include "client/c/c_handles.hpp"
#include "client/segment/process_client.hpp"
#include "client/segment/registered.hpp"
#include "gpushm/descriptor.h"

using gpushm::base::c_call;
using gpushm::base::out;
using gpushm::base::result_out;
using gpushm::base::text_out;
using gpushm::client_detail::process_client;
using gpushm::client_detail::usable;

namespace {

/// The process that registered it is not the one that the caller means.
constexpr gpushm_errc another_process = GPUSHM_ERRC_PEER_DIED;

int errno_of(gpushm_errc why) noexcept {
  switch (why) {
    case GPUSHM_OK:
      return 0;
    case GPUSHM_ERRC_INVALID_ARGUMENT:
      return EINVAL;
    case GPUSHM_ERRC_NO_SUCH_SEGMENT:
      return ENOENT;
    case GPUSHM_ERRC_PEER_DIED:
    case GPUSHM_ERRC_WRITER_ENDING:
      return ESRCH;
    case GPUSHM_ERRC_BROKER_UNREACHABLE:
    case GPUSHM_ERRC_BROKER_GONE:
      return ECONNREFUSED;
    case GPUSHM_ERRC_AMBIGUOUS_DOMAIN:
      return ENOTUNIQ;
    case GPUSHM_ERRC_TOO_MANY_DESCRIPTORS:
      return EMFILE;
    case GPUSHM_ERRC_OUT_OF_MEMORY:
      return ENOMEM;
    case GPUSHM_ERRC_TIMED_OUT:
      return ETIMEDOUT;
    case GPUSHM_ERRC_PERMISSION_DENIED:
      return EACCES;
    default:
      return EIO;
  }
}

}  // namespace

gpushm_errc gpushm_client_register_descriptor(gpushm_client* client,
                                              int fd,
                                              uint32_t number,
                                              uint64_t tag,
                                              gpushm_descriptor** registration) {
  return c_call([&] {
    auto& impl = usable(client, "register");
    gpushm_descriptor*& result = out(registration, "register");
    result = impl.register_descriptor(fd, number, tag).release();
  });
}

uint32_t gpushm_descriptor_number(const gpushm_descriptor* registration) {
  return registration == nullptr ? 0 : registration->number();
}

void gpushm_descriptor_close(gpushm_descriptor* registration) {
  const gpushm::base::held_log_lines lines;
  const std::unique_ptr<gpushm_descriptor> ended(registration);
}

gpushm_errc gpushm_client_resolve_descriptor(gpushm_client* client,
                                             uint32_t number,
                                             uint64_t tag,
                                             int* fd) {
  return c_call([&] {
    auto& impl = usable(client, "resolve");
    int& result = out(fd, "resolve");
    result = impl.resolve_descriptor(number, tag).file.release();
  });
}

gpushm_errc gpushm_client_describe_descriptor(gpushm_client* client,
                                              uint32_t number,
                                              gpushm_descriptor_info* info) {
  return c_call([&] {
    const auto from = usable(client, "resolve").resolve_descriptor(number, 0);
    gpushm_descriptor_info result{};
    result.tag = from.facts.tag;
    result.pid_namespace = from.facts.pid_namespace;
    result.pid = from.facts.pid;
    result.number = number;
    result.kind = from.facts.kind;
    text_out(from.facts.comm, result.comm, result.comm_size);
    result.creator_pid = from.creator_pid;
    result.creator_uid = from.creator_uid;
    result_out(result, info, "resolve");
  });
}

int gpushm_resolve_fd(int64_t pid, uint64_t pid_namespace, int number, int* fd) {
  return -errno_of(c_call([&] {
    int& result = out(fd, "resolve");
    if (number <= 0) {
      gpushm::base::throw_invalid("resolve",
                                  "the number is " + std::to_string(number),
                                  "use a number from 1 to 1073741823");
    }
    const auto client = process_client::instance().get();
    auto resolved = client->resolve_descriptor(static_cast<std::uint32_t>(number), 0);
    if ((pid != 0 && pid != resolved.facts.pid) ||
        (pid_namespace != 0 && pid_namespace != resolved.facts.pid_namespace)) {
      throw gpushm::error(static_cast<gpushm::errc>(another_process),
                          "resolve",
                          gpushm::base::registered_name(static_cast<std::uint32_t>(number)),
                          "another process has registered this number: pid " +
                              std::to_string(resolved.facts.pid) + " of PID namespace " +
                              std::to_string(resolved.facts.pid_namespace),
                          "the handle is that of a process that has ended, or that is not in this "
                          "domain");
    }
    result = resolved.file.release();
  }));
}
