// SPDX-License-Identifier: Apache-2.0
#include "cdi/hook.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/file.hpp"
#include "base/syscall.hpp"
#include "base/unique_fd.hpp"
#include "commands.hpp"
#include "gpushm/error.hpp"
#include "output.hpp"

namespace gpushm::cli {

namespace {

constexpr std::size_t max_state_bytes = std::size_t{1} << 20U;
constexpr std::size_t max_config_bytes = std::size_t{16} << 20U;

struct known_hook {
  std::string_view name;
  void (*run)(const container_root& root, const hook_options& options);
};
constexpr std::array known_hooks{
    known_hook{"create-symlinks", &create_symlinks},
    known_hook{"update-ldcache", &update_ldcache},
    known_hook{"enable-cuda-compat", &enable_cuda_compat},
    known_hook{"disable-device-node-modification", &disable_device_node_modification},
};

[[noreturn]] void throw_no_root(std::string_view object, std::string_view cause) {
  throw error(errc::invalid_argument,
              "find the container's root",
              object,
              cause,
              "run hooks from a container engine, which gives them the OCI state");
}

std::string read_standard_input() {
  std::string text(max_state_bytes, '\0');
  std::size_t used = 0;
  while (used < text.size()) {
    const auto got = base::checked("read the container's state", {}, "read", [&] {
      return ::read(STDIN_FILENO, text.data() + used, text.size() - used);
    });
    if (got == 0) {
      break;
    }
    used += static_cast<std::size_t>(got);
  }
  text.resize(used);
  return text;
}

[[noreturn]] void give_up(int) {
  constexpr std::string_view text = "gpushm: the hook is not done after a minute: given up\n";
  static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
  ::_exit(exit_failed);
}

// What comes from the one who called, which may be the image's wish or a runtime's mistake.
void leave_surroundings(std::string_view hook) {
  constexpr unsigned most_seconds = 60;
  // A file system of the image's (FUSE, NFS) may never answer, and the engine would wait with us.
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
  ::alarm(most_seconds);
  // Descriptors that a runtime has left open can lead out of the container.
  base::checked("run hook", hook, "close_range", [] { return ::close_range(3, ~0U, 0); }, {ENOSYS});
  // Nor is anything opened below to be taken for a standard one that is closed.
  int filler = STDIN_FILENO;
  while (filler >= 0 && filler <= STDERR_FILENO) {
    filler = ::open("/dev/null", O_RDWR);
  }
  const base::unique_fd spare(filler);
  // What the image put into the environment, and files beside where the runtime happens to be, are
  // not for programs of the host.
  // NOLINTNEXTLINE(concurrency-mt-unsafe): there is one thread
  if (::clearenv() != 0) {
    throw error(errc::system_error, "run hook", hook, "clearenv failed");
  }
  base::checked("run hook", hook, "chdir", [] { return ::chdir("/"); });
  // The engine's can make directories that only root enters.
  ::umask(022);
}

std::string text_member(const nlohmann::json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() && found->is_string()
             ? found->get<std::string>()
             : std::string();
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

std::string root_of_container(std::string_view state) {
  const std::string bundle = text_member(nlohmann::json::parse(state, nullptr, false), "bundle");
  if (!bundle.starts_with('/')) {
    throw_no_root({}, "standard input is not the state of a container with an absolute bundle");
  }
  const std::string path = std::string(bundle).append("/config.json");
  const auto config = base::read_small_file(path, max_config_bytes + 1);
  if (!config) {
    throw_no_root(path, std::generic_category().message(errno));
  }
  if (config->size() > max_config_bytes) {
    throw_no_root(path, "it has more than 16 MiB");
  }
  const nlohmann::json parsed = nlohmann::json::parse(*config, nullptr, false);
  const bool has_root = parsed.is_object() && parsed.contains("root");
  std::string root = has_root ? text_member(parsed.at("root"), "path") : std::string();
  if (root.empty()) {
    throw_no_root(path, "it names no root.path");
  }
  if (root.front() != '/') {
    root = std::string(bundle).append("/").append(root);
  }
  if (root.find_first_not_of('/') == std::string::npos) {
    throw_no_root(path, "its root.path is the host's own root");
  }
  return root;
}

int run_hook(const std::vector<std::string>& words) {
  if (words.empty()) {
    throw usage_error(errc::invalid_argument,
                      "run hook",
                      {},
                      "it has no name",
                      "name create-symlinks, update-ldcache, enable-cuda-compat or "
                      "disable-device-node-modification");
  }
  leave_surroundings(words.front());
  for (const known_hook& each : known_hooks) {
    if (each.name == words.front()) {
      const container_root root(root_of_container(read_standard_input()));
      each.run(root, hook_options({words.begin() + 1, words.end()}));
      return exit_ok;
    }
  }
  // A document newer than the program must not stop containers.
  note(std::string("warning: there is no hook \"")
           .append(words.front())
           .append("\" in this version; nothing was done"));
  return exit_ok;
}

}  // namespace gpushm::cli
