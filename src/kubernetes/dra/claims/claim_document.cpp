// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/claims/claim_document.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "base/files/file.hpp"
#include "base/files/syscall.hpp"
#include "containers/cdi/document/share_device.hpp"
#include "containers/cdi/document/write.hpp"
#include "gpushm/error.hpp"
#include "kubernetes/dra/claims/allocation.hpp"

namespace gpushm::dra {

namespace {

constexpr std::string_view file_prefix = "gpushm.dev-claim-";
constexpr std::string_view file_suffix = ".json";
constexpr const char* remove_operation = "remove CDI document";

/// The UID from the name of a finished document or of a temporary file ("….json.tmp.Ab12Cd") left
/// by a process that exited; else empty.
std::string uid_of_file(const std::string& name) {
  const std::size_t end = name.find(file_suffix, file_prefix.size());
  return name.starts_with(file_prefix) && end != std::string::npos
             ? name.substr(file_prefix.size(), end - file_prefix.size())
             : std::string();
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code failed;
  for (std::filesystem::directory_iterator each(directory, failed), end; each != end && !failed;
       each.increment(failed)) {
    names.push_back(each->path().filename().string());
  }
  if (failed && failed != std::errc::no_such_file_or_directory) {
    base::throw_errno(failed.value(), "list CDI documents", directory, "readdir");
  }
  return names;
}

void add_preload(const prepared_claim& claim, const cdi::ipc_files* files, cdi::edits& changes) {
  if (files == nullptr) {
    throw error(errc::system_error,
                "describe claim",
                to_string(claim.claim),
                "it has the parameter ipc, but this node's agent could not install the libraries "
                "for it",
                "see the log of gpushmd at its start, and --ipc-source");
  }
  cdi::edits added = cdi::preload_edits(*files);
  changes.env.push_back(cdi::ipc_domain_variable(claim.domain));
  std::move(added.mounts.begin(), added.mounts.end(), std::back_inserter(changes.mounts));
  changes.hooks = std::move(added.hooks);
}

}  // namespace

std::string cdi_device_name(const std::string& claim_uid, const std::string& device) {
  // Old engines reject names that begin with a digit, as UIDs can.
  return fmt::format("{}-{}", domain_of(claim_uid), device);
}

cdi::document claim_document(const prepared_claim& claim,
                             const std::string& directory,
                             const cdi::ipc_files* files) {
  cdi::document result = cdi::share_document({claim.domain});
  result.kind = claim_kind;
  cdi::device shared = std::move(result.devices.front());
  shared.changes.mounts.front().host_path = directory;
  result.devices.clear();
  for (const prepared_device& each : claim.devices) {
    shared.name = cdi_device_name(claim.claim.uid, each.device);
    shared.changes.env.clear();
    shared.changes.hooks.clear();
    shared.changes.mounts.resize(1);
    if (each.ipc) {
      add_preload(claim, files, shared.changes);
    }
    const bool known = std::any_of(result.devices.begin(),
                                   result.devices.end(),
                                   [&](const auto& other) { return other.name == shared.name; });
    if (!known) {
      result.devices.push_back(shared);
    }
  }
  result.version = cdi::minimum_version(result);
  return result;
}

std::string claim_documents::path_of(const std::string& claim_uid) const {
  return fmt::format("{}/{}{}{}", directory_, file_prefix, claim_uid, file_suffix);
}

void claim_documents::write(const prepared_claim& claim,
                            const std::string& domain_directory) const {
  const std::string path = path_of(claim.claim.uid);
  const cdi::document content =
      claim_document(claim, domain_directory, files_ ? &*files_ : nullptr);
  if (base::read_small_file(path) != cdi::to_text(content, cdi::format::json)) {
    cdi::write_file(content, path, cdi::format::json);
  }
}

void claim_documents::remove(const std::string& claim_uid) const {
  const std::string path = path_of(claim_uid);
  base::checked(remove_operation, path, "unlink", [&] { return ::unlink(path.c_str()); }, {ENOENT});
}

void claim_documents::remove_unfinished(const std::string& claim_uid) const {
  for (const std::string& name : names_in(directory_)) {
    if (uid_of_file(name) == claim_uid && !name.ends_with(file_suffix)) {
      const std::string path = directory_ + "/" + name;
      base::checked(
          remove_operation, path, "unlink", [&] { return ::unlink(path.c_str()); }, {ENOENT});
    }
  }
}

std::vector<std::string> claim_documents::list(bool finished) const {
  std::vector<std::string> uids;
  for (const std::string& name : names_in(directory_)) {
    std::string uid = uid_of_file(name);
    if (!uid.empty() && name.ends_with(file_suffix) == finished) {
      uids.push_back(std::move(uid));
    }
  }
  std::sort(uids.begin(), uids.end());
  uids.erase(std::unique(uids.begin(), uids.end()), uids.end());
  return uids;
}

}  // namespace gpushm::dra
