// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/registration_script.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "tests/fuzz/descriptor_pool.hpp"
#include "tests/fuzz/require.hpp"

namespace gpushm_fuzz {

using namespace gpushm;
using base::unique_fd;

constexpr off_t max_registered_bytes = 1'048'576;

attachable some_file(script& script) {
  const auto open = [](const char* path, int flags) {
    return unique_fd(::open(path, flags | O_CLOEXEC, 0600));
  };
  const auto path_of = [](const unique_fd& fd) {
    return "/proc/self/fd/" + std::to_string(fd.get());
  };
  switch (script.pick(24)) {
    case 0:
      return {gpushm_fuzz::memfd(max_registered_bytes, 0), true};
    case 1:
      return {gpushm_fuzz::memfd(max_registered_bytes + 1, 0), false};
    case 2:
      return {gpushm_fuzz::memfd(0, 0), true};
    case 3: {  // read-only
      const unique_fd whole = gpushm_fuzz::memfd(4096, 0);
      return {open(path_of(whole).c_str(), O_RDONLY), true};
    }
    case 4: {  // a descriptor that names a file and does not open it
      const unique_fd whole = gpushm_fuzz::memfd(4096, 0);
      return {open(path_of(whole).c_str(), O_PATH), false};
    }
    case 5:
      return {open("/dev/shm", O_TMPFILE | O_RDWR), true};
    case 6:
      return {open("/dev/shm", O_RDONLY | O_DIRECTORY), false};
    case 7:
      return {open("/dev/null", O_RDWR), false};
    case 8:
      return {open("/proc/self/mem", O_RDONLY), false};
    case 9:
      return {unique_fd(::eventfd(0, EFD_CLOEXEC)), false};
    case 10:
      return {unique_fd(::epoll_create1(EPOLL_CLOEXEC)), false};
    case 11:
      return {unique_fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), false};
    case 12: {
      std::array<int, 2> ends{};
      GPUSHM_REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
      ::close(ends[1]);
      return {unique_fd(ends[0]), false};
    }
    default:
      return {gpushm_fuzz::memfd(4096, 0), true};
  }
}

std::string some_number(script& script) {
  constexpr std::array<const char*, 12> usual{".fd/1",
                                              ".fd/2",
                                              ".fd/3",
                                              ".fd/10",
                                              ".fd/1073741823",
                                              ".fd/1073741824",
                                              ".fd/0",
                                              ".fd/01",
                                              ".fd/",
                                              ".fd/1/~timelines-1",
                                              ".fd",
                                              ".fd0"};
  const std::size_t which = script.pick(32);
  if (which == 31) {
    const auto raw = script.bytes(script.byte());
    return ".fd/" + std::string(reinterpret_cast<const char*>(raw.data()), raw.size());
  }
  return usual[which < usual.size() ? which : which % 4];
}

wire::reserve some_registration(script& script, const std::vector<gpushm::generation>& known) {
  wire::reserve body;
  body.name = some_number(script);
  body.backend = backend::descriptor;
  body.size_bytes = body.allocated_bytes = 1;
  body.chunk_count = 1;
  switch (script.pick(16)) {  // mostly right
    case 1:
      body.allocated_bytes = script.number();
      break;
    case 2:
      body.size_bytes = body.allocated_bytes = script.number();
      break;
    case 3:
      body.chunk_count = script.byte();
      break;
    case 4:
      body.lifetime = lifetime::persistent;
      break;
    case 5:
      body.backend = static_cast<gpushm::backend>(script.pick(wire::known_kinds));
      break;
    case 6:
      body.device = {device_kind::gpu, "GPU-0", "0000:18:00.0", 0};
      break;
    case 7:
    case 8:
      body.replaces = some_generation(script, known);
      break;
    case 9:
      body.name = "a";
      break;
    default:
      break;
  }
  return body;
}

}  // namespace gpushm_fuzz
