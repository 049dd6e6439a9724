// SPDX-License-Identifier: Apache-2.0
#include "cdi/share.hpp"

#include <algorithm>
#include <filesystem>

#include "cdi/command.hpp"
#include "commands.hpp"
#include "options.hpp"
#include "output.hpp"
#include "spec/share_device.hpp"
#include "spec/write.hpp"

namespace gpushm::cli {

namespace {

namespace fs = std::filesystem;

struct share_arguments {
  std::vector<std::string> domains;
  std::string directory{cdi::domains_inside};
  std::string output;
  cdi::format format = cdi::format::yaml;
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
                failed ? failed.message() : "there is no domain in it",
                "start a broker (gpushm serve --mode 0666), or name a domain");
  }
  return found;
}

void check_there(const std::string& directory, const std::string& domain) {
  std::error_code failed;
  if (!fs::is_directory(fs::path(directory) / domain, failed)) {
    throw error(errc::system_error,
                "describe domain",
                domain,
                "there is no directory " + (fs::path(directory) / domain).string(),
                "start its broker first: gpushm serve --mode 0666 --domain " + domain);
  }
}

void add(CLI::App& app, share_arguments& out) {
  app.add_option("DOMAIN", out.domains, "Only these (default: every directory there)")
      ->type_name("");
  app.add_option("--directory", out.directory, "Where the domains are (default: /run/gpushm/d)")
      ->type_name("DIR");
  app.add_option("--output", out.output, "File to write (default: standard output)")
      ->type_name("FILE");
  add_choice(app,
             "--format",
             "Form of the document (default: yaml)",
             out.format,
             {{"yaml", cdi::format::yaml}, {"json", cdi::format::json}});
}

int run(const share_arguments& arguments) {
  // Mounted by others, who have another working directory.
  const std::string directory = fs::absolute(arguments.directory).lexically_normal().string();
  for (const std::string& domain : arguments.domains) {
    check_there(directory, domain);
  }
  auto domains = arguments.domains.empty() ? domains_in(directory) : arguments.domains;
  std::sort(domains.begin(), domains.end());
  domains.erase(std::unique(domains.begin(), domains.end()), domains.end());
  const auto document = cdi::share_document(domains, directory);
  if (arguments.output.empty()) {
    print(cdi::to_text(document, arguments.format));
  } else {
    cdi::write_file(document, arguments.output, arguments.format);
  }
  return exit_ok;
}

}  // namespace

void add_cdi_share(CLI::App& cdi, request& asked) {
  add_cdi_command<share_arguments>(cdi,
                                   asked,
                                   "share",
                                   "Describe the domains, as devices that lead containers to them",
                                   add,
                                   run);
}

}  // namespace gpushm::cli
