// SPDX-License-Identifier: Apache-2.0
#include "tests/support/container/image_root.hpp"

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "tests/support/process/child.hpp"
#include "tests/support/process/programs.hpp"

namespace gpushm_testing {
namespace {

namespace fs = std::filesystem;

/// Libraries and loader of a program, as reported by ldd.
std::set<std::string> libraries_of(const std::string& program) {
  spawn_options options;
  options.argv = {"ldd", program};
  const auto done = run_program(options);
  std::set<std::string> names;
  static const std::regex path(R"((/[^ \n]+) \(0x)");
  for (auto at = std::sregex_iterator(done.out.begin(), done.out.end(), path);
       at != std::sregex_iterator();
       ++at) {
    names.insert((*at)[1].str());
  }
  return names;
}

void copy_into(const std::string& root, const std::string& from, const std::string& text) {
  fs::create_directories(fs::path(root + text).parent_path());
  fs::copy_file(fs::canonical(from), root + text, fs::copy_options::skip_existing);
}

}  // namespace

void make_image_root(const std::string& root, const std::vector<std::string>& others) {
  for (const char* directory :
       {"/usr/lib", "/usr/lib64", "/usr/bin", "/proc", "/sys", "/dev", "/etc", "/run", "/tmp"}) {
    fs::create_directories(root + directory);
  }
  for (const std::string name : {"lib", "lib64", "bin"}) {
    fs::create_directory_symlink("usr/" + name, root + "/" + name);
  }
  copy_into(root, "/bin/sh", "/usr/bin/sh");
  auto libraries = libraries_of("/bin/sh");
  libraries.merge(libraries_of(own_program("gpushm")));
  for (const std::string& other : others) {
    libraries.merge(libraries_of(other));
  }
  for (const std::string& library : libraries) {
    // The loader in the container searches only the usual directories, not the folders of programs
    // on the host.
    const bool usual = library.starts_with("/lib") || library.starts_with("/usr/lib");
    copy_into(root, library, usual ? library : "/usr/lib/" + fs::path(library).filename().string());
  }
  std::ofstream(root + "/etc/passwd") << "root:x:0:0::/:/bin/sh\n";
}

}  // namespace gpushm_testing
