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

/// Passes questions on to another system and keeps each with its answer.
class recording_system final : public system {
 public:
  explicit recording_system(system& asked) : asked_(asked) {}

  std::optional<std::string> read(const std::string& path) override;
  std::optional<std::string> link(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) override;
  std::optional<file_status> status(const std::string& path) override;
  int open_error(const std::string& path) override;
  std::uint64_t file_system_bytes(const std::string& path) override;
  std::optional<std::string> variable(const std::string& name) override;

  /// What `recorded_machine` reads. Questions answered with "there is no such thing" are left out:
  /// that is what a replay answers to anything it does not know.
  [[nodiscard]] nlohmann::json document(const driver_view& driver) const;

 private:
  system& asked_;
  nlohmann::json answers_ = nlohmann::json::object();
};

/// A machine as it was recorded. Distinct objects: safe. Shared objects: unsafe.
struct recorded_machine {
  std::unique_ptr<system> files;
  driver_view driver;

  /// From the text of a recording, or of any document that has one as "recording". Throws `error`
  /// (invalid_argument) saying what is wrong with it; `name` is what it is called there.
  [[nodiscard]] static recorded_machine parse(std::string_view name, std::string_view text);
};

}  // namespace gpushm::inspect
