// SPDX-License-Identifier: Apache-2.0
// Exceptions of a program and of a library (library.cpp), each of which may have a C++ runtime of
// its own.
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

extern "C" int floor_library_run(void (*callback)()) noexcept;

namespace {

const std::string constructed(100, 'x');

__attribute__((noinline)) void descend(int depth, char* caller) {
  char here[64] = {};
  *caller = here[0];
  if (depth == 0) {
    throw std::logic_error(std::string(200, 'p'));
  }
  descend(depth - 1, here);
}

void throws_and_catches() {
  char here = 0;
  try {
    descend(10, &here);
  } catch (const std::exception& error) {
    if (std::string(error.what()).size() != 200) {
      std::terminate();
    }
  }
}

}  // namespace

int main() {
  for (int round = 0; round < 100; ++round) {
    try {
      throw std::runtime_error("outer");
    } catch (const std::exception&) {
      // Exceptions that are being handled in both.
      if (const int right = floor_library_run(throws_and_catches); right != 8) {
        std::fprintf(stderr, "%d of 8\n", right);
        return 1;
      }
    }
  }
  throws_and_catches();
  if (constructed.size() != 100 || std::uncaught_exceptions() != 0) {
    return 1;
  }
  std::puts("exceptions: ok");
  return 0;
}
