// SPDX-License-Identifier: Apache-2.0
// Functions that a test's Python calls with ctypes: share memory of this process under a name.
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "gpushm/gpushm.hpp"

namespace {

struct shares {
  std::optional<gpushm::client> client;
  std::map<std::string, gpushm::segment> all;
};

shares& state() {
  static auto* const data = new shares;  // NOLINT(cppcoreguidelines-owning-memory): never destroyed
  return *data;
}

template <typename Work>
int run(char* text, std::size_t text_bytes, Work&& work) {
  std::string message;
  int result = 0;
  try {
    message = work();
  } catch (const std::exception& why) {
    message = why.what();
    result = 1;
  }
  std::strncpy(text, message.c_str(), text_bytes - 1);
  text[text_bytes - 1] = '\0';
  return result;
}

}  // namespace

extern "C" {

/// Returns 0, with the backend in `text`; or 1, with the error.
__attribute__((visibility("default"))) int share_shim_share(const char* socket,
                                                            const char* name,
                                                            void* pointer,
                                                            std::uint64_t size_bytes,
                                                            char* text,
                                                            std::size_t text_bytes) {
  return run(text, text_bytes, [&] {
    if (!state().client) {
      state().client.emplace(gpushm::client::connect({.socket_path = socket}));
    }
    gpushm::segment created = state().client->share(name, pointer, size_bytes);
    std::string kind(gpushm::to_string(created.backend()));
    state().all.insert_or_assign(name, std::move(created));
    return kind;
  });
}

__attribute__((visibility("default"))) int share_shim_unshare(const char* name,
                                                              char* text,
                                                              std::size_t text_bytes) {
  return run(text, text_bytes, [&] {
    const auto at = state().all.find(name);
    at->second.unshare();
    state().all.erase(at);
    return std::string();
  });
}
}
