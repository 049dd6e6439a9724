// SPDX-License-Identifier: Apache-2.0
// Replaces ldconfig: attempts what a compromised program of the image would, and reports in one
// line what succeeded. Static, because no libraries are available there.
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;

void report(std::ostringstream& text, const char* check, bool ok) {
  if (ok) {
    text << ' ' << check;
  }
}

std::string summary() {
  std::ostringstream text;
  text << "pid " << ::getpid() << ", environment";
  for (char** each = environ; *each != nullptr; ++each) {
    text << ' ' << *each;
  }
  text << ", descriptors";
  for (int fd = 0; fd < 1024; ++fd) {
    report(text, std::to_string(fd).c_str(), ::fcntl(fd, F_GETFD) >= 0);
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> data{};
  ::syscall(SYS_capget, &header, data.data());
  int bounding = 0;
  for (int each = 0; each < 64; ++each) {
    bounding += ::prctl(PR_CAPBSET_READ, each, 0, 0, 0) == 1 ? 1 : 0;
  }
  text << ", capabilities "
       << (data[0].effective | data[0].permitted | data[0].inheritable | data[1].effective |
           data[1].permitted | data[1].inheritable)
       << " bounding " << bounding;
  sigset_t blocked;
  ::sigprocmask(SIG_SETMASK, nullptr, &blocked);
  struct sigaction pipe {};
  ::sigaction(SIGPIPE, nullptr, &pipe);
  text << ", no new privileges " << ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) << ", SIGTERM blocked "
       << sigismember(&blocked, SIGTERM) << ", SIGPIPE default " << (pipe.sa_handler == SIG_DFL);
  const mode_t mask = ::umask(0);
  text << ", umask " << std::oct << mask << std::dec << ", could";
  report(text, "write", ::open("/etc/made", O_WRONLY | O_CREAT, 0644) >= 0);
  report(text, "mkdir", ::mkdir("/made", 0755) == 0);
  report(text, "mount", ::mount("x", "/etc", "tmpfs", 0, nullptr) == 0);
  report(text, "remount", ::mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND, nullptr) == 0);
  report(text, "unmount", ::umount2("/", MNT_DETACH) == 0);
  report(text, "chroot", ::chroot(".") == 0);
  report(text, "unshare", ::unshare(CLONE_NEWNS) == 0);
  report(text, "device", ::open("/null", O_RDONLY) >= 0);
  report(text, "proc", fs::exists("/proc/self") || fs::exists("/proc/1"));
  report(text, "sys", fs::exists("/sys/kernel"));
  report(text, "outside", fs::exists("../outside") || fs::exists("../../outside"));
  ::execl("/script", "script", nullptr);
  report(text, "write-here", std::ofstream("here").put('x').flush().good());
  std::set<std::string> here;
  for (const auto& each : fs::directory_iterator(".")) {
    here.insert(each.path().filename().string());
  }
  text << ", here";
  for (const std::string& each : here) {
    text << ' ' << each;
  }
  return text.str();
}

}  // namespace

int main() {
  std::string word;
  std::ifstream("/mode") >> word;
  if (word == "flood") {
    const std::string line(65'536, 'x');
    for (;;) {
      std::cerr << line << '\n';
    }
  }
  if (word == "big") {
    std::ofstream cache("cache");
    const std::string block(1U << 20U, 'x');
    for (int i = 0; i < 256 && cache.write(block.data(), 1U << 20U).flush(); ++i) {
    }
    return 0;
  }
  if (word == "link") {
    fs::create_symlink("/etc/passwd", "cache");
    return 0;
  }
  if (word == "garbage") {
    std::ofstream("cache") << "glibc-ld.so.cache1.1 garbage";
    return 0;
  }
  if (word == "escape") {
    std::cerr << "first line\n\x1b[31mred\n";
    return 3;
  }
  std::cerr << summary() << '\n';
  return 3;
}
