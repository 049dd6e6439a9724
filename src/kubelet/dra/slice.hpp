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

/// Whether `slice` is of this driver and this node, and so may be written and removed here. The
/// name of a slice says nothing: any client that may create slices can take any name that is free.
[[nodiscard]] bool is_of_this_node(const nlohmann::json& slice, const slice_options& options);
/// Whether it is of this node's pool as well. Driver, node and name of the pool never change.
[[nodiscard]] bool is_in_own_pool(const nlohmann::json& slice, const slice_options& options);

/// The first field of `wanted` that `found` does not have or has otherwise
/// ("spec.devices[0].name"); empty: there is none. A server may add fields. What a slice says of
/// itself does not count: items of a list have no apiVersion and kind, and v1beta1 has what it says
/// of a device a level deeper.
[[nodiscard]] std::string difference(const nlohmann::json& found, const nlohmann::json& wanted);

/// The text at a JSON pointer; empty when there is none.
[[nodiscard]] std::string text_in(const nlohmann::json& object, const char* pointer);
/// 0 when it says none.
[[nodiscard]] std::int64_t generation_of(const nlohmann::json& slice);
/// After the last one comes the first: the slice that has it is the only one of its pool.
[[nodiscard]] std::int64_t generation_after(std::int64_t generation);

}  // namespace gpushm::dra
