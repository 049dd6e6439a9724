// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/gpushm/json_output.hpp"
#include "gpushm/client.hpp"

namespace gpushm::cli {

/// A registered descriptor (gpushm/descriptor.h), as its process described it.
struct registration {
  std::uint32_t number = 0;
  bool is_memory = true;            ///< of a GPU; false: a file of the driver's events
  std::string program;              ///< name of the exporter; printable only with base::printable
  std::int32_t pid = 0;             ///< of the exporter, in its own PID namespace
  std::uint64_t pid_namespace = 0;  ///< inode; 0: unknown
  std::uint32_t uid = 0;            ///< as the broker sees it
  std::int32_t broker_pid = 0;      ///< the exporter's, as the broker sees it; 0: unknown
};

/// One process and how much it has registered.
struct exporter {
  registration first;  ///< one of its registrations
  std::uint64_t memory = 0;
  std::uint64_t events = 0;
};

/// The registrations of the domain, by number. Omits those that end meanwhile. One request for
/// each. Throws `error`.
[[nodiscard]] std::vector<registration> list_registrations(client& broker);

/// One entry for each process, in the order of the program, PID and namespace. Pure.
[[nodiscard]] std::vector<exporter> exporters_of(const std::vector<registration>& registrations);

/// Tables with one line for each exporter or registration. Pure.
[[nodiscard]] std::string exporters_text(const std::vector<exporter>& exporters);
[[nodiscard]] std::string registrations_text(const std::vector<registration>& registrations);

[[nodiscard]] json to_json(const registration& registration);
[[nodiscard]] json to_json(const exporter& exporter);

/// What no list can show: the broker keeps nothing about processes that fetch descriptors.
inline constexpr const char* importers_unknown =
    "which processes have fetched them is not shown: the broker keeps nothing about that";

}  // namespace gpushm::cli
