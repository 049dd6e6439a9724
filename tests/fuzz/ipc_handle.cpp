// SPDX-License-Identifier: Apache-2.0
// IPC handles and names as another process may have made them: a tag is taken whole or not at all,
// and what is tagged reads back.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

extern "C" {
#include "ipc/handle.h"
}

namespace {

void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ipc_handle handle{};
  std::memcpy(handle.bytes, data, size < sizeof(handle.bytes) ? size : sizeof(handle.bytes));
  const ipc_handle given = handle;
  const std::string rest(reinterpret_cast<const char*>(data), size);

  ipc_event_tag event{};
  if (!ipc_take_event_tag(&handle, &event)) {
    require(std::memcmp(handle.bytes, given.bytes, sizeof(given.bytes)) == 0);
  } else {
    ipc_tag_event(&handle, &event);
    require(std::memcmp(handle.bytes, given.bytes, sizeof(given.bytes)) == 0);
    require(event.number < IPC_NUMBER_END);
  }
  handle = given;
  const std::uint64_t tag = ipc_take_memory_tag(&handle);
  if (tag == 0) {
    require(std::memcmp(handle.bytes, given.bytes, sizeof(given.bytes)) == 0);
  } else {
    require(ipc_tag_memory(&handle, ipc_memory_pid(&handle), tag));
    require(std::memcmp(handle.bytes, given.bytes, sizeof(given.bytes)) == 0);
  }
  std::uint64_t file = 0;
  handle = given;
  if (ipc_event_file(&handle, ipc_event_pid(&handle), &file)) {
    const ipc_event_tag added{ipc_make_tag(file), 1, ipc_event_by_file};
    ipc_tag_event(&handle, &added);
    require(ipc_take_event_tag(&handle, &event) && event.process == added.process);
    require(std::memcmp(handle.bytes, given.bytes, sizeof(given.bytes)) == 0);
  }
  std::uint32_t pid = 0;
  if (ipc_read_event_file_name(rest.c_str(), &pid, &file)) {
    require(rest.rfind("/cuda.shm.", 0) == 0 && std::strlen(rest.c_str()) <= 10 + 8 + 8 + 16 + 2);
  }
  return 0;
}
