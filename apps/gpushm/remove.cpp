// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "json_output.hpp"
#include "output.hpp"

namespace gpushm::cli {

int run_remove(const remove_arguments& arguments) {
  client broker = connect(arguments.connection);
  json removed = json::array();
  json failed = json::array();
  for (const std::string& name : arguments.names) {
    try {
      broker.remove(name);
      removed.push_back(name);
    } catch (const error& failure) {
      // One bad name must not keep the others; a broker that is gone would fail for all of them
      // alike.
      if (failure.code() == errc::broker_gone || failure.code() == errc::broker_unreachable) {
        throw;
      }
      note(failure.what());
      json entry{{"name", name}, {"error", to_json(failure)}};
      failed.push_back(std::move(entry));
    }
  }
  const int status = failed.empty() ? exit_ok : exit_failed;
  if (arguments.connection.json) {
    print_json(json{{"removed", std::move(removed)}, {"failed", std::move(failed)}});
  } else {
    for (const json& name : removed) {
      print_line("removed \"" + name.get<std::string>() + "\"");
    }
  }
  return status;
}

}  // namespace gpushm::cli
