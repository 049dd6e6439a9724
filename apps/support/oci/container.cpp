// SPDX-License-Identifier: Apache-2.0
#include "apps/support/oci/container.hpp"

#include "base/files/syscall.hpp"

namespace gpushm::app::oci {

namespace {

base::child_process start(const bundle& container_bundle, int cancel_fd) {
  base::child_options options;
  options.argv = container_bundle.run_command();
  options.cancel_fd = cancel_fd;
  return base::child_process::start(options);
}

}  // namespace

container::container(const runtime& runtime,
                     const container_options& options,
                     std::string_view id_prefix,
                     int cancel_fd)
    : bundle_(runtime, options, id_prefix), process_(start(bundle_, cancel_fd)) {}

container::~container() {
  // A moved-from object has no container and no process.
  bundle_.remove([&] { return process_.started() && process_.alive(); });
}

pid_t container::wait_started(base::deadline until) {
  for (;;) {
    // Queried before reading the file, which also exists if the program exited immediately.
    const bool running = process_.alive();
    if (const auto pid = bundle_.host_pid()) {
      return *pid;
    }
    if (!running) {
      throw error(errc::peer_died, "start container", bundle_.id(), problem());
    }
    if (std::chrono::steady_clock::now() >= until) {
      throw error(errc::timed_out,
                  "start container",
                  bundle_.id(),
                  "the runtime did not start the program in time");
    }
    base::pause_before_retry(std::chrono::milliseconds(2));
  }
}

std::string container::problem() const {
  return last_message(bundle_.log_text());
}

std::string last_message(std::string_view log) {
  while (log.ends_with('\n')) {
    log.remove_suffix(1);
  }
  std::string_view line = log.substr(log.rfind('\n') + 1);
  constexpr std::string_view key = " msg=\"";
  if (const auto start = line.find(key); start != std::string_view::npos && line.ends_with('"')) {
    line.remove_suffix(1);
    line.remove_prefix(start + key.size());
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const bool escaped = line[i] == '\\' && i + 1 < line.size();
      i += escaped ? 1 : 0;
      text += escaped && line[i] == 'n' ? ' ' : line[i];
    }
    return text;
  }
  const auto stamp = line.find("Z: ");
  return std::string(stamp == std::string_view::npos ? line : line.substr(stamp + 3));
}

}  // namespace gpushm::app::oci
