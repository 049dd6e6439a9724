// SPDX-License-Identifier: Apache-2.0
// Versions of names, and aliases (docs/adr/0046).
#include <map>
#include <utility>

#include "base/segments/names.hpp"
#include "base/segments/versioned_names.hpp"
#include "client/segment/client_impl.hpp"
#include "client/segment/segment_impl.hpp"

namespace gpushm::client_detail {

void client_impl::check_knows(const connection& broker,
                              std::string_view operation,
                              std::string_view name) {
  if (!broker.knows_versions()) {
    throw error(errc::unsupported_version,
                operation,
                name,
                "the broker is older than this library: it has no versions of names",
                "update gpushm-brokerd, or use a name without \"@\"");
  }
}

wire::body client_impl::request_about_version(wire::body message,
                                              std::string_view operation,
                                              std::string_view name) {
  const auto connected = broker();
  check_knows(*connected, operation, name);
  return std::move(
      connected->request(std::move(message), {operation, name}, request_deadline()).body);
}

std::uint64_t client_impl::create_version(std::string_view base,
                                          std::uint64_t number,
                                          std::vector<std::string> parts,
                                          std::uint32_t keep_versions,
                                          std::uint64_t keep_bytes) {
  constexpr std::string_view operation = "create version";
  check_usable(operation, base);
  base::check_name(operation, base);
  const wire::body reply = request_about_version(
      wire::create_version{std::string(base), number, std::move(parts), keep_versions, keep_bytes},
      operation,
      base);
  const auto* const created = std::get_if<wire::version_created>(&reply);
  if (created == nullptr || created->number == 0 || created->number > base::max_version_number) {
    throw unexpected_reply({operation, base});
  }
  return created->number;
}

void client_impl::change_version(std::string_view base,
                                 wire::version_change change,
                                 std::uint64_t number,
                                 std::string_view alias) {
  const std::string_view operation = change == wire::version_change::withdraw     ? "withdraw"
                                     : change == wire::version_change::move_alias ? "move alias"
                                                                                  : "remove alias";
  check_usable(operation, base);
  base::check_name(operation, base);
  static_cast<void>(request_about_version(
      wire::change_version{std::string(base), number, change, std::string(alias)},
      operation,
      base));
}

std::uint64_t client_impl::resolve_version(std::string_view name) {
  constexpr std::string_view operation = "resolve";
  check_usable(operation, name);
  base::check_segment_name(operation, name);
  const wire::body reply = request_about_version(wire::resolve{std::string(name)}, operation, name);
  const auto* const resolved = std::get_if<wire::resolved>(&reply);
  if (resolved == nullptr || resolved->number == 0 || resolved->number > base::max_version_number) {
    throw unexpected_reply({operation, name});
  }
  return resolved->number;
}

std::vector<wire::version_info> client_impl::list_versions(std::string_view base) {
  constexpr std::string_view operation = "list versions";
  check_usable(operation, base);
  base::check_name(operation, base);
  wire::body reply = request_about_version(wire::list_versions{std::string(base)}, operation, base);
  auto* const list = std::get_if<wire::versions>(&reply);
  if (list == nullptr) {
    throw unexpected_reply({operation, base});
  }
  return std::move(list->versions);
}

/// The lease on the first one keeps the version, so that the others are found, too.
client_impl::same_versions client_impl::open_same_versions(std::span<const std::string> names,
                                                           const open_options& options,
                                                           std::span<open_outcome> results) {
  const auto deadline = base::deadline_after(options.timeout);
  same_versions same{{names.begin(), names.end()}, {}};
  same.aliases.resize(names.size());
  struct version {
    std::uint64_t number = 0;
    std::optional<segment_lease::name_word> word;
  };
  std::map<std::pair<std::string_view, std::string_view>, version> versions;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!base::is_versioned_name(names[i])) {
      continue;
    }
    const auto parsed = base::parse_versioned_name("open", names[i]);
    if (parsed.number != 0) {
      continue;
    }
    version& one = versions[{parsed.base, parsed.alias}];
    if (one.number != 0) {
      same.names[i] = base::text_of({parsed.base, one.number, {}, parsed.part});
      same.aliases[i] = one.word;
      continue;
    }
    try {
      open_options first = options;
      first.timeout = time_left(deadline);
      results[i].opened = open(names[i], first);
      one.number = base::parse_versioned_name("open", results[i].opened->info().name).number;
      one.word = leases_->word_of(results[i].opened->mapped(), names[i], options.device);
    } catch (const error& why) {
      if (why.code() == errc::cancelled) {
        throw;
      }
      results[i].failure = why;
    }
  }
  return same;
}

}  // namespace gpushm::client_detail
