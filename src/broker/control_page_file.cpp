// SPDX-License-Identifier: Apache-2.0
#include "broker/control_page_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/syscall.hpp"
#include "wire/control_page.hpp"

namespace gpushm::broker_detail {

base::unique_fd make_control_page(const gpushm::epoch& epoch, gpushm::generation generation) {
  base::unique_fd fd(base::checked("create", {}, "memfd_create", [] {
    return ::memfd_create("gpushm-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }));
  base::checked(
      "create", {}, "ftruncate", [&] { return ::ftruncate(fd.get(), wire::control_page_bytes); });
  // Only the header is there. Who first writes to the rest is charged for it by the kernel, not the
  // broker.
  const auto header = wire::make_control_page_header(epoch, generation);
  base::checked(
      "create", {}, "pwrite", [&] { return ::pwrite(fd.get(), &header, sizeof header, 0); });
  base::checked("create", {}, "fcntl(F_ADD_SEALS)", [&] {
    return ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  });
  return fd;
}

}  // namespace gpushm::broker_detail
