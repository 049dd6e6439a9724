// SPDX-License-Identifier: Apache-2.0
// A user's program: catches an error from the shared library by its type.
#include <cstdio>
#include <gpushm/gpushm.hpp>

int main(int argc, char** argv) {
  if (argc != 2) {
    return 2;
  }
  try {
    gpushm::connect_options options;
    options.socket_path = argv[1];
    const auto connection = gpushm::client::connect(options);
  } catch (const gpushm::error& failure) {
    const auto code = gpushm::to_string(failure.code());
    std::printf("%.*s: %s\n", static_cast<int>(code.size()), code.data(), failure.what());
    return failure.code() == gpushm::errc::broker_unreachable ? 0 : 1;
  }
  std::puts("connected to a broker that does not exist");
  return 1;
}
