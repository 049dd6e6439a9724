// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "inspect/facts/driver_view.hpp"
#include "inspect/facts/system.hpp"

namespace gpushm::inspect {

/// The machine that this process runs on.
[[nodiscard]] std::unique_ptr<system> this_system();

/// Forwards queries to another system and records each with its answer.
class recording_system final : public system {
 public:
  explicit recording_system(system& source) : source_(source) {}

  std::optional<std::string> read(const std::string& path) override;
  std::optional<std::string> link(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) override;
  std::optional<file_status> status(const std::string& path) override;
  int open_error(const std::string& path) override;
  std::uint64_t file_system_bytes(const std::string& path) override;
  std::optional<std::string> label(const std::string& path) override;
  std::vector<node_holder> holders() override;
  std::optional<std::string> variable(const std::string& name) override;

  /// The document that `recorded_machine` reads. Omits negative answers: a replay returns those for
  /// every query that is not recorded.
  [[nodiscard]] nlohmann::json document(const driver_view& driver) const;

 private:
  system& source_;
  nlohmann::json answers_ = nlohmann::json::object();
};

/// A recorded machine. Thread-safety: distinct objects: safe; shared objects: unsafe.
struct recorded_machine {
  std::unique_ptr<system> files;
  driver_view driver;

  /// Parses a recording, or any document that contains one as "recording". Throws `error` with
  /// `errc::invalid_argument`, naming the cause and `name`.
  [[nodiscard]] static recorded_machine parse(std::string_view name, std::string_view text);
};

}  // namespace gpushm::inspect
