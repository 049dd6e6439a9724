// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpushm::app {

/// Makes the signals that ask a process to end (SIGINT, SIGTERM, SIGHUP, SIGQUIT) or that stop its
/// output (SIGPIPE, SIGXFSZ, SIGXCPU) end this process also where the kernel would ignore them, as
/// PID 1 of a container, after the registered `unfinished_file` was removed. The parent sees the
/// signal as usual; from PID 1, exit status 128 + signal. A signal that is ignored when this is
/// called stays ignored (nohup). `stop_signal` takes over from this.
///
/// To be called once, early in main.
void end_on_signals();

/// A file that must not stay when a signal ends the process before it is complete. Does not remove
/// it otherwise. At most one at a time has an effect. Distinct objects: safe. Shared objects:
/// unsafe.
class unfinished_file {
 public:
  explicit unfinished_file(std::string path);
  unfinished_file(const unfinished_file&) = delete;
  unfinished_file& operator=(const unfinished_file&) = delete;
  /// From here on it stays.
  ~unfinished_file();

 private:
  std::string path_;  // where the handler reads it
};

}  // namespace gpushm::app
