// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>

#include "apps/gpushm/cdi/commands.hpp"
#include "apps/gpushm/cdi/document_output.hpp"
#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "cdi/document/share_device.hpp"
#include "gpushm/error.hpp"

namespace gpushm::cli {

namespace {

namespace fs = std::filesystem;

struct share_arguments {
  std::vector<std::string> domains;
  std::string directory{cdi::domains_inside};
  document_output output;
};

std::vector<std::string> domains_in(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(directory, failed)) {
    std::error_code gone;
    if (entry.is_directory(gone)) {
      found.push_back(entry.path().filename().string());
    }
  }
  if (found.empty()) {
    throw error(errc::system_error,
                "find domains",
                directory,
                failed ? failed.message() : "it contains no domain",
                "start a broker (gpushm serve --mode 0666), or give a domain");
  }
  return found;
}

void check_exists(const std::string& directory, const std::string& domain) {
  std::error_code failed;
  if (!fs::is_directory(fs::path(directory) / domain, failed)) {
    throw error(errc::system_error,
                "describe domain",
                domain,
                "no such directory: " + (fs::path(directory) / domain).string(),
                "start its broker first: gpushm serve --mode 0666 --domain " + domain);
  }
}

void add_share_arguments(CLI::App& app, share_arguments& out) {
  app.add_option("DOMAIN", out.domains, "Only these domains (default: every domain in --directory)")
      ->type_name("");
  app.add_option("--directory", out.directory, "Directory of the domains (default: /run/gpushm/d)")
      ->type_name("DIR");
  add_document_output(app, out.output);
}

int run_share_command(const share_arguments& arguments) {
  // Container engines mount it, and their working directory differs.
  const std::string directory = fs::absolute(arguments.directory).lexically_normal().string();
  for (const std::string& domain : arguments.domains) {
    check_exists(directory, domain);
  }
  auto domains = arguments.domains.empty() ? domains_in(directory) : arguments.domains;
  std::sort(domains.begin(), domains.end());
  domains.erase(std::unique(domains.begin(), domains.end()), domains.end());
  const auto document = cdi::share_document(domains, directory);
  write_document(document, arguments.output);
  return exit_ok;
}

}  // namespace

void add_cdi_share(CLI::App& cdi, request& parsed) {
  add_command<share_arguments>(cdi,
                               parsed,
                               "share",
                               "Describe domains as CDI devices that give containers access",
                               add_share_arguments,
                               run_share_command);
}

}  // namespace gpushm::cli
