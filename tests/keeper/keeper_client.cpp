// SPDX-License-Identifier: Apache-2.0
// A program that gpushm-keeper starts: prints what it inherits, then follows commands on standard
// input, one per line. An argument changes this: "systemd" (libsystemd finds what it inherits),
// "fail" (it exits with 3 before it is ready), "unready" (it is ready at the command "ready").
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "gpushm/error.hpp"
#include "protocol/transport/packet_socket.hpp"
#include "succession/descriptor_store/descriptor_store.hpp"
#include "succession/descriptor_store/inherited_descriptors.hpp"
#include "tests/support/raw_session/traps.hpp"

namespace {

using gpushm::base::unique_fd;
using std::chrono::seconds;

unique_fd file_with(const std::string& text) {
  unique_fd file(::memfd_create("kept", MFD_CLOEXEC));
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw std::runtime_error("write");
  }
  return file;
}

std::string contents(int file) {
  std::array<char, 256> path{};
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path.data(), path.size());
  if (length > 0 &&
      std::string(path.data(), static_cast<std::size_t>(length)).ends_with("/nvidia-test")) {
    return "(a driver file)";
  }
  std::array<char, 100> text{};
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  return size < 0 ? "(not a file)" : std::string(text.data(), static_cast<std::size_t>(size));
}

void print(const std::string& line) {
  std::cout << line << std::endl;  // NOLINT(performance-avoid-endl): the test waits for it
}

/// sd-daemon(3), of the machine's libsystemd.
class libsystemd {
 public:
  libsystemd() : library_(::dlopen("libsystemd.so.0", RTLD_NOW)) {
    if (library_ == nullptr) {
      throw std::runtime_error("no libsystemd on this machine");
    }
  }

  void put(const std::string& name, const std::string& text) const {
    const unique_fd file = file_with(text);
    const int number = file.get();
    const std::string state = "FDSTORE=1\nFDPOLL=0\nFDNAME=" + name;
    const auto notify =
        function<int(pid_t, int, const char*, const int*, unsigned)>("sd_pid_notify_with_fds");
    const auto barrier = function<int(int, std::uint64_t)>("sd_notify_barrier");
    constexpr std::uint64_t timeout_us = 5'000'000;
    if (notify(0, 0, state.c_str(), &number, 1) <= 0 || barrier(0, timeout_us) < 0) {
      throw std::runtime_error("libsystemd");
    }
  }

  [[nodiscard]] std::vector<gpushm::keeper::named_descriptor> inherited() const {
    char** names = nullptr;
    const int count = function<int(int, char***)>("sd_listen_fds_with_names")(0, &names);
    std::vector<gpushm::keeper::named_descriptor> result;
    for (int i = 0; i < count; ++i) {
      result.push_back({names[i], unique_fd(gpushm::keeper::first_inherited + i)});
    }
    return result;
  }

 private:
  template <typename Function>
  [[nodiscard]] Function* function(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library_, name));
  }

  void* library_;
};

void put(gpushm::keeper::descriptor_store& store, const std::string& name, int file) {
  store.put(name, std::span(&file, 1), seconds(5));
  store.barrier(seconds(5));
}

void follow(gpushm::keeper::descriptor_store& store, const std::string& line, bool& ignores_term) {
  std::istringstream words(line);
  std::string verb;
  std::string name;
  std::string text;
  words >> verb >> name >> text;
  if (verb == "put") {
    put(store, name, file_with(text).get());
  } else if (verb == "put-unseen") {  // without a barrier
    const unique_fd file = file_with(text);
    const int number = file.get();
    store.put(name, std::span(&number, 1), seconds(5));
  } else if (verb == "confirm") {
    if (const auto problem = store.confirm(name, seconds(5))) {
      throw gpushm::error(*problem);
    }
  } else if (verb == "put-file") {  // put-file NAME PATH
    put(store, name, unique_fd(::open(text.c_str(), O_RDWR | O_CLOEXEC)).get());
  } else if (verb == "systemd-put") {
    libsystemd().put(name, text);
  } else if (verb == "many") {  // many COUNT PREFIX: each with a name and a text of its own
    for (int i = 0; i < std::stoi(name); ++i) {
      const unique_fd file = file_with(std::to_string(i));
      const int number = file.get();
      store.put(text + std::to_string(i), std::span(&number, 1), seconds(5));
    }
    store.barrier(seconds(20));
  } else if (verb == "rounds") {
    const unique_fd file = file_with("round");
    const int number = file.get();
    for (int i = 0; i < std::stoi(name); ++i) {
      store.put("round", std::span(&number, 1), seconds(5));
      store.remove("round", seconds(5));
    }
    store.barrier(seconds(60));
  } else if (verb == "closed-pipe") {
    std::array<int, 2> ends{};
    static_cast<void>(::pipe2(ends.data(), O_CLOEXEC));
    const unique_fd read_end(ends[0]);
    ::close(ends[1]);
    put(store, name, ends[0]);
  } else if (verb == "put-trap") {  // a socket with an unread descriptor whose close lingers
    static std::vector<gpushm_testing::lingering_socket> traps;
    gpushm_testing::lingering_socket& trap = traps.emplace_back(seconds(600));
    const auto pair = gpushm::transport::connected_pair();
    const std::array<std::byte, 1> bytes{};
    const std::array<int, 1> sent{trap.trap.get()};
    static_cast<void>(gpushm::transport::send_packet(pair.first.get(), bytes, sent));
    trap.trap.reset();
    put(store, name, pair.second.get());
  } else if (verb == "report") {
    if (!gpushm::keeper::watchdog_timeout()) {
      throw std::runtime_error("this program is not watched");
    }
    store.alive();
  } else if (verb == "ready") {  // after a start with "unready"
    store.ready(seconds(5));
  } else if (verb == "remove") {
    store.remove(name, seconds(5));
    store.barrier(seconds(5));
  } else if (verb == "ignore-term") {
    std::signal(SIGTERM, SIG_IGN);
    ignores_term = true;
  } else if (verb == "exit") {
    std::_Exit(std::stoi(name));
  } else if (verb == "die") {
    ::raise(SIGKILL);
  }
  print("done");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  try {
    const auto inherited =
        mode == "systemd" ? libsystemd().inherited() : gpushm::keeper::take_inherited_descriptors();
    auto store = gpushm::keeper::descriptor_store::from_environment();
    std::map<std::string, std::vector<std::string>> entries;
    for (const auto& each : inherited) {
      entries[each.name].push_back(contents(each.descriptor.get()));
    }
    std::string line = "inherited " + std::to_string(inherited.size());
    if (inherited.size() <= 10) {
      for (const auto& [name, texts] : entries) {
        for (const std::string& text : texts) {
          line += " " + name + "=" + text;
        }
      }
    } else {
      bool right = true;
      for (const auto& [name, texts] : entries) {
        right = right && texts.size() == 1 && name.ends_with("." + texts[0]);
      }
      line += right ? " all right" : " mixed up";
    }
    if (mode == "fail") {
      print(line);
      return 3;
    }
    if (mode != "unready") {
      store->ready(seconds(5));
    }
    print(line);
    bool ignores_term = false;
    while (std::getline(std::cin, line)) {
      try {
        follow(*store, line, ignores_term);
      } catch (const std::exception& why) {
        print(std::string("error: ") + why.what());
      }
    }
    while (ignores_term) {
      ::pause();
    }
    return 0;
  } catch (const std::exception& why) {
    print(std::string("failed: ") + why.what());
    return 1;
  }
}
