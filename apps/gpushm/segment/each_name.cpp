// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/segment/each_name.hpp"

#include <fmt/core.h>

#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/near_match.hpp"

namespace gpushm::cli {

int for_each_name(const connection_arguments& connection,
                  const std::vector<std::string>& names,
                  const std::string& done,
                  const std::function<void(client&, const std::string&)>& act) {
  client broker = connect(connection);
  json succeeded = json::array();
  json failed = json::array();
  for (const std::string& name : names) {
    try {
      act(broker, name);
      succeeded.push_back(name);
    } catch (const error& original) {
      // A failure for one name does not prevent the others; without a broker all would fail alike.
      if (original.code() == errc::broker_gone || original.code() == errc::broker_unreachable) {
        throw;
      }
      const error failure = with_near_match(original, connection, name);
      note(failure.what());
      json entry{{"name", name}, {"error", to_json(failure)}};
      failed.push_back(std::move(entry));
    }
  }
  const int status = failed.empty() ? exit_ok : exit_failed;
  if (connection.json) {
    print_json(json{{done, std::move(succeeded)}, {"failed", std::move(failed)}});
  } else {
    for (const json& name : succeeded) {
      print_line(fmt::format("{} \"{}\"", done, name.get<std::string>()));
    }
  }
  return status;
}

}  // namespace gpushm::cli
