// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::app {

/// Installs handlers that remove the registered `unfinished_file` and then terminate this process,
/// for the signals that request termination (SIGINT, SIGTERM, SIGHUP, SIGQUIT) or limit output
/// (SIGPIPE, SIGXFSZ, SIGXCPU). They also terminate PID 1 of a container, for which the kernel
/// ignores the default action. The parent receives the signal as the wait status; from PID 1, exit
/// status 128 + signal. Signals that are ignored when this is called stay ignored (nohup).
/// `stop_signal` replaces these handlers.
///
/// Call once, early in main.
void end_on_signals();

/// Registers an incomplete file to be removed if a signal terminates the process. Only the latest
/// object has an effect. Thread-safety: distinct objects: safe; shared objects: unsafe.
class unfinished_file {
 public:
  explicit unfinished_file(std::string path);
  unfinished_file(const unfinished_file&) = delete;
  unfinished_file& operator=(const unfinished_file&) = delete;
  /// Unregisters the file without removing it.
  ~unfinished_file();

 private:
  std::string path_;  // read by the handler
};

}  // namespace gpushm::app
