// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/files/unique_fd.hpp"
#include "protocol/wire/messages.hpp"
#include "tests/support/process/temp_dir.hpp"

namespace gpushm_tests {

/// A broker whose answers a test scripts, including invalid ones. It welcomes clients, one after
/// another, and passes their other messages to the script.
///
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
class scripted_broker {
 public:
  struct reply {
    gpushm::wire::message message;
    std::vector<gpushm::base::unique_fd> descriptors = {};
    bool then_close = false;
    bool late = false;  ///< on the event lane, as events and questions always are
  };
  /// Runs on the broker's thread. Does not receive `Bye` and `Report`, and receives `Release` only
  /// if the broker is set to report releases.
  using script = std::function<std::vector<reply>(const gpushm::wire::message&)>;

  /// Closes the first `closed` connections without a reply.
  explicit scripted_broker(script replies,
                           bool reports_releases = false,
                           int closed = 0,
                           bool knows_versions = false);
  scripted_broker(const scripted_broker&) = delete;
  scripted_broker& operator=(const scripted_broker&) = delete;
  ~scripted_broker();

  [[nodiscard]] const std::string& socket_path() const noexcept { return socket_path_; }

  /// A state table in which every slot is live, with the generation `first` + the slot's number.
  [[nodiscard]] static gpushm::base::unique_fd state_table(gpushm::generation first = 0);
  /// The table that clients have been welcomed with last, for writing. Precondition: one is
  /// connected, and none is being welcomed.
  [[nodiscard]] int last_table() const noexcept { return table_.get(); }

  /// A sealed memfd, as used for chunks.
  [[nodiscard]] static gpushm::base::unique_fd sealed_file(std::size_t bytes);

 private:
  void serve();
  void talk_to(int socket);

  gpushm_testing::temp_dir directory_;
  std::string socket_path_ = directory_ / "socket";
  script replies_;
  bool reports_releases_;
  int closed_;
  bool knows_versions_;
  gpushm::base::unique_fd table_;
  gpushm::base::unique_fd listener_;
  gpushm::base::unique_fd stop_;
  std::jthread thread_;
};

}  // namespace gpushm_tests
