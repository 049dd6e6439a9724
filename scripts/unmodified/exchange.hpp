// SPDX-License-Identifier: Apache-2.0
// What the programs of this folder share: files in a directory that both sides have mounted,
// checks, times, and the RESULT line. They are programs "that nobody changed": they use the CUDA
// runtime (or libcuda) alone.
//
// Not thread-safe.
#pragma once

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace unmodified {

inline double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Seconds until a peer's file must be there.
inline double patience() {
  const char* text = getenv("UNMODIFIED_PATIENCE");
  return text != nullptr ? atof(text) : 20;
}

inline bool exists(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

inline void write_file(const std::string& path, const void* bytes, size_t size) {
  const std::string part = path + ".part";
  const int fd = open(part.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
  if (fd < 0 || write(fd, bytes, size) != static_cast<ssize_t>(size) || close(fd) != 0 ||
      rename(part.c_str(), path.c_str()) != 0) {
    perror(path.c_str());
    exit(3);
  }
}

inline void signal_file(const std::string& path) {
  write_file(path, "1", 1);
}

/// Blocks until the file is there, at most `patience()` seconds. Returns whether it is.
inline bool wait_file(const std::string& path) {
  for (const double until = now() + patience(); !exists(path);) {
    if (now() > until) {
      printf("%s: not there after %.0f s\n", path.c_str(), patience());
      return false;
    }
    usleep(1000);
  }
  return true;
}

inline void read_file(const std::string& path, void* bytes, size_t size) {
  if (!wait_file(path)) {
    exit(4);
  }
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || read(fd, bytes, size) != static_cast<ssize_t>(size)) {
    perror(path.c_str());
    exit(3);
  }
  close(fd);
}

/// Median; 0 of nothing.
inline double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::nth_element(
      values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

inline int count_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1 << 20; ++fd) {
    // All numbers: registered descriptors have high ones.
    if (fcntl(fd, F_GETFD) >= 0) {
      ++count;
    }
  }
  return count;
}

inline int count_mappings() {
  std::ifstream file("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(file, line);) {
    ++count;
  }
  return count;
}

/// One JSON object of one line, printed as "RESULT {…}" for the driver.
class result {
 public:
  void add(const std::string& key, const std::string& text) {
    std::string quoted;
    for (const char each : text) {
      if (each == '"' || each == '\\') {
        quoted += '\\';
      }
      quoted += each;
    }
    put(key, "\"" + quoted + "\"");
  }
  void add(const std::string& key, const char* text) { add(key, std::string(text)); }
  void add(const std::string& key, double value) {
    char text[40];
    snprintf(text, sizeof text, "%.10g", value);
    put(key, text);
  }
  void add(const std::string& key, int value) { put(key, std::to_string(value)); }
  void add(const std::string& key, bool value) { put(key, value ? "true" : "false"); }
  void print() const {
    printf("RESULT {%s}\n", line_.c_str());
    fflush(stdout);
  }

 private:
  void put(const std::string& key, const std::string& value) {
    line_ += (line_.empty() ? "\"" : ", \"") + key + "\": " + value;
  }

  std::string line_;
};

}  // namespace unmodified
