// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpushm_tests {

// A driver installation of small files: tests/data/discover/drivers/NAME.txt, one line per file.
// "{v}" is the version.
//
//   version V               of the libraries; comes first
//   module V                of the loaded kernel module
//   libs DIR NAME[:N]...    NAME.so.{v}, with the SONAME NAME.so.N and a link of that name
//   lib PATH SONAME         one library ("-": without a SONAME); lib32: of a 32-bit PC
//   link PATH TARGET
//   file PATH, exec PATH, dir PATH
//   cache PATH              an entry of etc/ld.so.cache; cache-old: with the old format first
//   dev                     the GPUs' nodes are in the tree's /dev

struct driver_tree {
  std::string root;
  std::string module_version;  ///< empty: not loaded
  bool own_dev = false;
};

/// Creates it in the directory `root`. Throws std::runtime_error, also when the list does not
/// exist.
driver_tree make_driver_tree(const std::string& name, const std::string& root);

/// The names of all lists, sorted; empty without the source tree.
[[nodiscard]] std::vector<std::string> driver_tree_names();

/// Writes a file and creates its parent directories.
void put_file(const std::string& path, const std::string& text, unsigned mode = 0644);
void put_link(const std::string& path, const std::string& target);

}  // namespace gpushm_tests
