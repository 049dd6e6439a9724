// SPDX-License-Identifier: Apache-2.0
#include "tests/support/driver_tree/driver_tree.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/support/driver_tree/elf_stub.hpp"

namespace gpushm_tests {

namespace fs = std::filesystem;

namespace {

class tree_maker {
 public:
  explicit tree_maker(std::string root) { tree_.root = std::move(root); }

  void take(const std::string& line) {
    std::istringstream words(with_version(line));
    std::string keyword;
    words >> keyword;
    if (keyword.empty() || keyword.front() == '#') {
      return;
    }
    std::string path;
    words >> path;
    if (keyword == "version") {
      version_ = path;
    } else if (keyword == "module") {
      tree_.module_version = path;
    } else if (keyword == "libs") {
      for (std::string name; words >> name;) {
        add_library(path, name);
      }
    } else if (keyword == "lib" || keyword == "lib32") {
      std::string soname;
      words >> soname;
      put_file(tree_.root + path,
               elf_stub(soname == "-" ? "" : soname, keyword == "lib" ? 64 : 32));
    } else if (keyword == "link") {
      std::string target;
      words >> target;
      put_link(tree_.root + path, target);
    } else if (keyword == "file" || keyword == "exec") {
      put_file(tree_.root + path, keyword, keyword == "exec" ? 0755 : 0644);
    } else if (keyword == "dir") {
      fs::create_directories(tree_.root + path);
    } else if (keyword == "cache") {
      cached_.push_back(path);
    } else if (keyword == "cache-old") {
      old_cache_ = true;
    } else if (keyword == "dev") {
      tree_.own_dev = true;
    } else {
      throw std::runtime_error("driver tree: " + line);
    }
  }

  driver_tree finish() {
    put_file(tree_.root + "/etc/ld.so.cache", ld_cache_file(cached_, old_cache_));
    return tree_;
  }

 private:
  [[nodiscard]] std::string with_version(std::string line) const {
    for (auto at = line.find("{v}"); at != std::string::npos; at = line.find("{v}", at)) {
      line.replace(at, 3, version_);
    }
    return line;
  }

  void add_library(const std::string& directory, const std::string& text) {
    const auto colon = text.find(':');
    const std::string stem = text.substr(0, colon);
    const std::string name = stem + ".so." + version_;
    const std::string soname =
        colon == std::string::npos ? name : stem + ".so." + text.substr(colon + 1);
    put_file(tree_.root + directory + "/" + name, elf_stub(soname));
    if (soname != name) {
      put_link(tree_.root + directory + "/" + soname, name);
    }
  }

  driver_tree tree_;
  std::string version_;
  std::vector<std::string> cached_;
  bool old_cache_ = false;
};

}  // namespace

driver_tree make_driver_tree(const std::string& name, const std::string& root) {
  std::ifstream list(std::string(GPUSHM_DRIVERS_DIR) + "/" + name + ".txt");
  if (!list) {
    throw std::runtime_error("no driver tree " + name);
  }
  tree_maker maker(root);
  for (std::string line; std::getline(list, line);) {
    maker.take(line);
  }
  return maker.finish();
}

std::vector<std::string> driver_tree_names() {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator each(GPUSHM_DRIVERS_DIR, failed);
       !failed && each != fs::directory_iterator();
       each.increment(failed)) {
    names.push_back(each->path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void put_file(const std::string& path, const std::string& text, unsigned mode) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    throw std::runtime_error("cannot write " + path);
  }
  fs::permissions(path, static_cast<fs::perms>(mode));
}

void put_link(const std::string& path, const std::string& target) {
  fs::create_directories(fs::path(path).parent_path());
  fs::create_symlink(target, path);
}

}  // namespace gpushm_tests
