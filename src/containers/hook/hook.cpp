// SPDX-License-Identifier: Apache-2.0
#include "containers/hook/hook.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "base/files/syscall.hpp"
#include "base/files/unique_fd.hpp"
#include "base/text/text.hpp"
#include "gpushm/error.hpp"

namespace gpushm::hook {

namespace {

struct known_hook {
  std::string_view name;
  hook_function* run;
};
constexpr std::array known_hooks{
    known_hook{"create-symlinks", &create_symlinks},
    known_hook{"update-ldcache", &update_ldcache},
    known_hook{"enable-cuda-compat", &enable_cuda_compat},
    known_hook{"disable-device-node-modification", &disable_device_node_modification},
    known_hook{"preload", &preload},
};

[[noreturn]] void give_up(int) {
  constexpr std::string_view text = "gpushm: the hook timed out after one minute\n";
  static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
  ::_exit(1);
}

}  // namespace

std::vector<std::string> hook_options::all(std::string_view name) const {
  std::vector<std::string> values;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    const std::string_view word = words_[i];
    if (!word.starts_with("--") || !word.substr(2).starts_with(name)) {
      continue;
    }
    const std::string_view rest = word.substr(2 + name.size());
    if (rest.starts_with('=')) {
      values.emplace_back(rest.substr(1));
    } else if (rest.empty() && i + 1 < words_.size()) {
      values.push_back(words_[++i]);
    }
  }
  return values;
}

std::string hook_options::last(std::string_view name) const {
  const auto values = all(name);
  return values.empty() ? std::string() : values.back();
}

void confine_process(std::string_view hook) {
  constexpr unsigned max_seconds = 60;
  // A file system of the image (FUSE, NFS) may never answer, and the engine waits for the hook.
  struct sigaction alarm {};
  alarm.sa_handler = &give_up;
  sigset_t none;
  ::sigemptyset(&none);
  base::checked(
      "run hook", hook, "sigaction", [&] { return ::sigaction(SIGALRM, &alarm, nullptr); });
  base::checked("run hook", hook, "pthread_sigmask", [&] {
    errno = ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
    return errno == 0 ? 0 : -1;
  });
  ::alarm(max_seconds);
  // Descriptors that a runtime left open can lead out of the container.
  base::checked("run hook", hook, "close_range", [] { return ::close_range(3, ~0U, 0); }, {ENOSYS});
  // Prevents descriptors opened below from becoming a closed standard stream.
  int filler = STDIN_FILENO;
  while (filler >= 0 && filler <= STDERR_FILENO) {
    filler = ::open("/dev/null", O_RDWR);
  }
  const base::unique_fd spare(filler);
  // Programs of the host must not use the image's environment or files in the runtime's working
  // directory.
  // NOLINTNEXTLINE(concurrency-mt-unsafe): single-threaded
  if (::clearenv() != 0) {
    throw error(errc::system_error, "run hook", hook, "clearenv failed");
  }
  base::checked("run hook", hook, "chdir", [] { return ::chdir("/"); });
  // The engine's umask could create directories that only root can enter.
  ::umask(022);
}

hook_function* find(std::string_view name) {
  for (const known_hook& each : known_hooks) {
    if (each.name == name) {
      return each.run;
    }
  }
  return nullptr;
}

void warn(std::string_view line) {
  const std::string text = "gpushm: " + base::printable(line) + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace gpushm::hook
