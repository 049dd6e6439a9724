// SPDX-License-Identifier: Apache-2.0
// The functions of versions.h.
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/report/c_interface.hpp"
#include "base/segments/versioned_names.hpp"
#include "client/c/c_handles.hpp"
#include "gpushm/versions.h"

using gpushm::base::c_call;
using gpushm::base::out;
using gpushm::base::result_out;
using gpushm::base::text_in;
using gpushm::client_detail::usable;
using gpushm::wire::version_change;

static_assert(GPUSHM_MAX_VERSION == gpushm::base::max_version_number);

struct gpushm_version_list {
  std::vector<gpushm::wire::version_info> versions;
  std::vector<std::string> aliases;  ///< of each of them
};

namespace {

gpushm_errc change(gpushm_client* client,
                   gpushm_string name,
                   version_change change,
                   uint64_t number,
                   gpushm_string alias,
                   std::string_view operation) {
  return c_call([&] {
    const auto called = text_in(name, operation);
    usable(client, operation, called)
        .change_version(called, change, number, text_in(alias, operation));
  });
}

}  // namespace

gpushm_errc gpushm_client_create_version(gpushm_client* client,
                                         gpushm_string name,
                                         const gpushm_version_options* options,
                                         uint64_t* number) {
  constexpr std::string_view operation = "create version";
  return c_call([&] {
    const auto called = text_in(name, operation);
    auto& impl = usable(client, operation, called);
    std::uint64_t& result = out(number, operation);
    const auto wanted = gpushm::base::options_in(options, operation);
    std::vector<std::string> parts;
    if (wanted.part_count > gpushm::wire::max_parts) {
      gpushm::base::throw_invalid(operation,
                                  "there are " + std::to_string(wanted.part_count) + " parts",
                                  "name at most " + std::to_string(gpushm::wire::max_parts));
    }
    if (wanted.part_count != 0) {
      for (const gpushm_string& each :
           std::span(&out(wanted.parts, operation), wanted.part_count)) {
        parts.emplace_back(text_in(each, operation));
      }
    }
    result = impl.create_version(called,
                                 wanted.number,
                                 std::move(parts),
                                 wanted.has_keep_versions ? wanted.keep_versions : 1,
                                 wanted.keep_bytes);
  });
}

gpushm_errc gpushm_client_withdraw_version(gpushm_client* client,
                                           gpushm_string name,
                                           uint64_t number) {
  return change(client, name, version_change::withdraw, number, {}, "withdraw");
}

gpushm_errc gpushm_client_move_alias(gpushm_client* client,
                                     gpushm_string name,
                                     gpushm_string alias,
                                     uint64_t number) {
  return change(client, name, version_change::move_alias, number, alias, "move alias");
}

gpushm_errc gpushm_client_remove_alias(gpushm_client* client,
                                       gpushm_string name,
                                       gpushm_string alias) {
  return change(client, name, version_change::remove_alias, 0, alias, "remove alias");
}

gpushm_errc gpushm_client_resolve_version(gpushm_client* client,
                                          gpushm_string name,
                                          uint64_t* number) {
  return c_call([&] {
    const auto called = text_in(name, "resolve");
    auto& impl = usable(client, "resolve", called);
    std::uint64_t& result = out(number, "resolve");
    result = impl.resolve_version(called);
  });
}

gpushm_errc gpushm_client_list_versions(gpushm_client* client,
                                        gpushm_string name,
                                        gpushm_version_list** list) {
  constexpr std::string_view operation = "list versions";
  return c_call([&] {
    const auto called = text_in(name, operation);
    auto& impl = usable(client, operation, called);
    gpushm_version_list*& result = out(list, operation);
    auto made = std::make_unique<gpushm_version_list>();
    made->versions = impl.list_versions(called);
    for (const gpushm::wire::version_info& each : made->versions) {
      std::string& text = made->aliases.emplace_back();
      for (const std::string& alias : each.aliases) {
        text += (text.empty() ? "" : ",") + alias;
      }
    }
    result = made.release();
  });
}

size_t gpushm_version_list_size(const gpushm_version_list* list) {
  return list == nullptr ? 0 : list->versions.size();
}

gpushm_errc gpushm_version_list_get(const gpushm_version_list* list,
                                    size_t index,
                                    gpushm_version_info* info) {
  constexpr std::string_view operation = "list versions";
  return c_call([&] {
    if (index >= gpushm_version_list_size(list)) {
      gpushm::base::throw_invalid(operation,
                                  "there is no version " + std::to_string(index) + " in the list",
                                  "stay below gpushm_version_list_size");
    }
    const gpushm::wire::version_info& from = list->versions[index];
    gpushm_version_info result{};
    result.number = from.number;
    result.bytes = from.bytes;
    result.held = from.held;
    result.state = static_cast<gpushm_version_state>(from.state);
    result.withdrawn = from.withdrawn;
    result.aliases = gpushm::base::c_text(list->aliases[index]);
    result_out(result, info, operation);
  });
}

void gpushm_version_list_free(gpushm_version_list* list) {
  const std::unique_ptr<gpushm_version_list> ended(list);
}
