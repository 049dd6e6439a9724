// SPDX-License-Identifier: Apache-2.0
// The rules for quotas: the last ones, a file that is read again, and what operators set.
#include <fmt/core.h>

#include <mutex>
#include <string>
#include <utility>

#include "base/files/file.hpp"
#include "base/files/staged_file.hpp"
#include "base/report/log.hpp"
#include "broker/hub/hub.hpp"
#include "domains/serve/domain_set.hpp"
#include "gpushm/error.hpp"

namespace gpushm::domains {

namespace {

constexpr const char* kept_quotas = "/quotas";

}  // namespace

core::quotas domain_set::quotas_of(const std::string& domain) const {
  const std::uint64_t whole = options_.limits.quota_bytes;
  const std::uint64_t each = options_.limits.quota_bytes_per_principal;
  return rules_.of(domain, {.domain = {whole, whole}, .principal = {each, each}});
}

void domain_set::post_quotas(const std::string& domain, served& served) noexcept {
  if (!served.serving || served.has_quotas == quotas_number_) {
    return;
  }
  try {
    served.serving->get().post(
        [quotas = quotas_of(domain)](broker_detail::hub& hub) { hub.set_quotas(quotas); });
    served.has_quotas = quotas_number_;
  } catch (const std::exception& why) {  // `check` tries again
    base::log(log_level::warning, why.what());
  }
}

/// The last ones that were set: a file that is wrong now must not end them.
void domain_set::read_kept_quotas() {
  const std::string path = locks_ + kept_quotas;
  try {
    if (const auto text = base::read_small_file(path)) {
      rules_ = quota_rules(*text, path);
      quota_text_ = *text;
    }
  } catch (const error& why) {
    base::log(log_level::error, why.what());
  }
  read_quota_file();
}

void domain_set::read_quota_file() {
  if (options_.quota_file.empty()) {
    return;
  }
  const auto text = base::read_small_file(options_.quota_file);
  if (!text) {
    if (!std::exchange(quota_file_is_missing_, true)) {
      base::log(log_level::error,
                fmt::format("{} cannot be read: the quotas that it had before apply",
                            options_.quota_file));
    }
    return;
  }
  quota_file_is_missing_ = false;
  if (std::exchange(quota_file_text_, *text) == *text) {
    return;
  }
  try {
    replace_quotas(*text, options_.quota_file);
    base::log(log_level::info, "read the quotas in " + options_.quota_file);
  } catch (const error& why) {
    if (why.code() != errc::invalid_argument) {
      quota_file_text_.clear();  // tried again
    }
    base::log(log_level::error, fmt::format("{}; the quotas before apply", why.what()));
  }
}

void domain_set::set_quotas(const std::string& text) {
  if (!options_.quota_file.empty()) {
    throw error(errc::invalid_argument,
                "set quotas",
                {},
                "the quotas are those in " + options_.quota_file,
                "change that file, which is read again, or start gpushm-brokerd without --quotas");
  }
  replace_quotas(text, "the given text");
}

void domain_set::replace_quotas(const std::string& text, const std::string& source) {
  const std::lock_guard one_at_a_time(quotas_mutex_);
  quota_rules rules(text, source);
  base::staged_file file("keep quotas", locks_ + kept_quotas);
  file.write(text);
  file.commit();
  const std::lock_guard lock(mutex_);
  rules_ = std::move(rules);
  quota_text_ = text;
  ++quotas_number_;
  for (auto& [domain, each] : open_) {
    post_quotas(domain, each);
  }
}

}  // namespace gpushm::domains
