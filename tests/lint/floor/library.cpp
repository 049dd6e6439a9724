// SPDX-License-Identifier: Apache-2.0
// A library with its own C++ runtime: exceptions end in it, as in libgpushm.so.
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

struct own_error : std::runtime_error {
  using runtime_error::runtime_error;
};

// Keeps memory of each frame busy, which AddressSanitizer watches in instrumented callers.
__attribute__((noinline)) void descend(int depth, const std::string& text) {
  const std::string frame(static_cast<std::size_t>(depth) + 40, 'x');
  if (depth == 0) {
    throw own_error(text + frame.substr(0, 1));
  }
  descend(depth - 1, text);
}

}  // namespace

// The number of exceptions that arrived as what was thrown.
extern "C" __attribute__((visibility("default"))) int floor_library_run(
    void (*callback)()) noexcept {
  int right = 0;
  try {
    descend(20, "a");
  } catch (const own_error& error) {
    right += std::string(error.what()) == "ax" ? 1 : 0;
  }
  try {
    std::filesystem::directory_iterator("/does/not/exist");
  } catch (const std::system_error& error) {  // thrown by the runtime
    right += error.code() == std::errc::no_such_file_or_directory ? 1 : 0;
  }
  try {
    static_cast<void>(std::stoi("not a number"));
  } catch (const std::invalid_argument&) {
    ++right;
  }
  std::exception_ptr kept;
  std::thread([&] {
    try {
      descend(3, "b");
    } catch (...) {
      kept = std::current_exception();
    }
  }).join();
  try {
    std::rethrow_exception(kept);
  } catch (const std::runtime_error& error) {  // by its base
    right += std::string(error.what()) == "bx" ? 1 : 0;
  }
  try {
    std::async(std::launch::async, [] { descend(1, "c"); }).get();
  } catch (const own_error&) {
    ++right;
  }
  try {
    throw 1;
  } catch (int) {
    callback();  // which throws and catches with another runtime
    right += std::uncaught_exceptions() == 0 ? 1 : 0;
  }
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  right += condition.wait_for(lock, std::chrono::milliseconds(5), [] { return false; }) ? 0 : 1;
  std::ostringstream text;
  text << std::random_device{}() % 1 << std::make_shared<int>(4).use_count();
  right += text.str() == "01" ? 1 : 0;
  return right;
}
