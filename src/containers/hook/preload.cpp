// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <utility>

#include "base/files/syscall.hpp"
#include "base/text/text.hpp"
#include "containers/elf/loading.hpp"
#include "containers/hook/hook.hpp"
#include "containers/hook/temporary_tmpfs.hpp"
#include "gpushm/error.hpp"

namespace gpushm::hook {

namespace {

constexpr std::string_view operation = "preload a library";
constexpr const char* file = "/etc/ld.so.preload";
constexpr std::size_t max_file_bytes = 65'536;

// As glibc's loader reads the file: comments end with the line.
constexpr std::string_view separators = ": \t\n";

#if defined(__x86_64__)
constexpr const char* loader = "/lib64/ld-linux-x86-64.so.2";
constexpr std::string_view loader_name = "ld-linux-x86-64.so.2";
constexpr std::array library_directories{"/lib/x86_64-linux-gnu",
                                         "/usr/lib/x86_64-linux-gnu",
                                         "/lib64",
                                         "/usr/lib64",
                                         "/lib",
                                         "/usr/lib"};
#elif defined(__aarch64__)
constexpr const char* loader = "/lib/ld-linux-aarch64.so.1";
constexpr std::string_view loader_name = "ld-linux-aarch64.so.1";
constexpr std::array library_directories{"/lib/aarch64-linux-gnu",
                                         "/usr/lib/aarch64-linux-gnu",
                                         "/lib64",
                                         "/usr/lib64",
                                         "/lib",
                                         "/usr/lib"};
#else
#error "unsupported machine"
#endif
// Of glibc. From 2.34 on, libc.so.6 has what was in the others, which are still installed.
constexpr std::array<std::string_view, 6> c_libraries{
    "libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", loader_name};

/// Throws why the library is not preloaded, as the warning shows it.
[[noreturn]] void refuse(std::string_view object, std::string_view cause) {
  throw error(errc::invalid_argument, operation, object, cause);
}

/// Opens for reading what `seen` (O_PATH) refers to, if it is a regular file: opening a device or a
/// pipe of the image has side effects.
base::unique_fd open_regular(const base::unique_fd& seen) {
  struct stat about {};
  return seen && ::fstat(seen.get(), &about) == 0 && S_ISREG(about.st_mode)
             ? base::unique_fd(
                   ::open(descriptor_path(seen).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC))
             : base::unique_fd();
}

std::optional<elf::loading> loading_of(const base::unique_fd& seen) {
  const base::unique_fd opened = open_regular(seen);
  return opened ? elf::read_loading(opened.get()) : std::nullopt;
}

void check_loader(const container_root& root) {
  const auto loading = loading_of(root.open(loader, O_PATH));
  if (!loading) {
    refuse(loader,
           "the image has no glibc of this architecture (musl, static programs and other "
           "architectures are not supported)");
  }
  // Loaders of musl's compatibility packages also have this path.
  if (!loading->native || loading->soname != loader_name) {
    refuse(loader, "it is not the loader of a glibc of this architecture");
  }
}

/// The versions that a library of the image's glibc defines; empty without such a library.
std::vector<std::string> versions_in(const container_root& root, const std::string& library) {
  for (const char* directory : library_directories) {
    auto found = loading_of(root.open(std::string(directory).append("/").append(library), O_PATH));
    if (found && found->native && found->soname == library) {
      return std::move(found->defined_versions);
    }
  }
  return {};
}

/// A library that the loader cannot load would end every program of the container.
void check_library(const container_root& root, const std::string& library) {
  const auto loading = loading_of(root.open_without_links(library, O_PATH));
  if (!loading || !loading->native) {
    refuse(library, "it is not mounted there, or not a library of this architecture");
  }
  std::map<std::string, std::vector<std::string>> defined;
  for (const std::string& each : loading->libraries) {
    if (std::find(c_libraries.begin(), c_libraries.end(), each) == c_libraries.end()) {
      refuse(library, "it needs " + each + ", which an image may lack");
    }
    defined.emplace(each, versions_in(root, each));
  }
  for (const elf::needed_version& each : loading->needed_versions) {
    const std::vector<std::string>& versions = defined[each.library];
    if (std::find(versions.begin(), versions.end(), each.version) == versions.end()) {
      refuse(library,
             "it needs " + each.version + " of " + each.library +
                 ", which the image's glibc does not have");
    }
  }
}

/// The file that the container's loader will read. Creates an empty one if the image has none.
base::unique_fd open_target(const container_root& root) {
  // On a volume, or mounted by another runtime.
  base::unique_fd target = root.open_without_links(file, O_PATH);
  if (!target) {
    target = root.open(file, O_PATH);
  }
  if (!target && errno == ENOENT) {
    root.write(base::directory_of(file), std::string(base::name_of(file)), {});
    target = root.open(file, O_PATH);
  }
  if (!target) {
    base::throw_errno(errno, operation, file, "open");
  }
  return target;
}

/// Gives the new file the label of the covered one: without it, SELinux denies the container
/// access.
void copy_label(const base::unique_fd& source, const base::unique_fd& target) {
  constexpr const char* label = "security.selinux";
  std::array<char, 256> value{};
  const auto length =
      ::getxattr(descriptor_path(source).c_str(), label, value.data(), value.size());
  if (length > 0) {
    static_cast<void>(::setxattr(
        descriptor_path(target).c_str(), label, value.data(), static_cast<std::size_t>(length), 0));
  }
}

/// Mounts a file with that text, read-only, over `target`.
void cover(const container_root& root,
           const base::unique_fd& target,
           const std::string& directory,
           std::string_view text) {
  const temporary_tmpfs scratch(root, directory, operation);
  const base::unique_fd written = scratch.make_file("preload", text);
  copy_label(target, written);
  const base::unique_fd mount(base::checked(operation, file, "open_tree", [&] {
    return ::open_tree(written.get(), "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
  }));
  mount_attr attributes{};
  attributes.attr_set =
      MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  base::checked(operation, file, "mount_setattr", [&] {
    return ::mount_setattr(mount.get(), "", AT_EMPTY_PATH, &attributes, sizeof attributes);
  });
  base::checked(operation, file, "move_mount", [&] {
    return ::move_mount(
        mount.get(), "", target.get(), "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
  });
}

void preload_library(const container_root& root, const std::string& library) {
  check_loader(root);
  check_library(root, library);
  const base::unique_fd target = open_target(root);
  const base::unique_fd opened = open_regular(target);
  const auto text = opened ? read_open_file(opened.get(), max_file_bytes + 1) : std::nullopt;
  if (!text) {
    refuse(file, "it cannot be read as a regular file");
  }
  if (text->size() > max_file_bytes) {
    refuse(file, "it is larger than 64 KiB");
  }
  if (const auto merged = with_preloaded(*text, library)) {
    cover(root, target, std::string(base::directory_of(library)), *merged);
  }
}

}  // namespace

std::optional<std::string> with_preloaded(std::string_view text, std::string_view library) {
  std::string kept;
  bool first = true;
  for (const std::string_view line : base::lines_of(text)) {
    const auto words = base::split(line.substr(0, line.find('#')), separators);
    if (!words.empty() && std::exchange(first, false) && words.front() == library) {
      return std::nullopt;
    }
    if (base::trim(line) != library) {
      kept.append(line).append("\n");
    }
  }
  return std::string(library).append("\n").append(kept);
}

void preload(const container_root& root, const hook_options& options) {
  const std::string library = options.last("library");
  if (!library.starts_with('/') || library.find_first_of(": \t\n#") != std::string::npos) {
    throw error(errc::invalid_argument,
                operation,
                library,
                "--library is not an absolute path without blanks, colons and \"#\"",
                "generate the CDI document again");
  }
  try {
    preload_library(root, library);
  } catch (const error& failure) {
    // The container starts without it: its programs work as without the device.
    warn(std::string("warning: ")
             .append(library)
             .append(" is not preloaded: ")
             .append(failure.what()));
  }
}

}  // namespace gpushm::hook
