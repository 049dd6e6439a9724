// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gpushm::dra {

struct slice_options {
  std::string driver;
  std::string node;
  unsigned devices = 0;
};

/// The one slice of this driver on this node. The name is always the same, so that two cannot come
/// to be by chance.
[[nodiscard]] std::string slice_name(const slice_options& options);
/// "share-0", …
[[nodiscard]] std::string device_name(unsigned index);

/// The ResourceSlice as `version` of resource.k8s.io writes it: v1, v1beta2 and v1beta1 are known,
/// the last has what it says of a device one level deeper.
[[nodiscard]] nlohmann::json make_slice(const slice_options& options,
                                        std::string_view version,
                                        const std::string& node_uid,
                                        std::int64_t generation);

/// Everything in `wanted` is in `found` too: a server may add fields.
[[nodiscard]] bool contains(const nlohmann::json& found, const nlohmann::json& wanted);

/// 0 when it says none.
[[nodiscard]] std::int64_t generation_of(const nlohmann::json& slice);

}  // namespace gpushm::dra
