// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace gpushm::dra {

struct slice_options {
  std::string driver;
  std::string node;
  unsigned devices = 0;
};

/// The name of this driver's only slice on this node. It is constant, so that a second slice cannot
/// be created by accident.
[[nodiscard]] std::string slice_name(const slice_options& options);
/// "share-0", …
[[nodiscard]] std::string device_name(unsigned index);

/// The ResourceSlice as `version` of resource.k8s.io writes it: v1, v1beta2 and v1beta1, which
/// nests device properties one level deeper.
[[nodiscard]] nlohmann::json make_slice(const slice_options& options,
                                        std::string_view version,
                                        const std::string& node_uid,
                                        std::int64_t generation);

/// Whether `slice` belongs to this driver and node, and so may be written and removed. The name is
/// not evidence: any client that may create slices can use any free name.
[[nodiscard]] bool is_of_this_node(const nlohmann::json& slice, const slice_options& options);
/// Whether it also belongs to this node's pool. Driver, node and name of the pool never change.
[[nodiscard]] bool is_in_own_pool(const nlohmann::json& slice, const slice_options& options);

/// The first field of `expected` that `stored` lacks or that differs ("spec.devices[0].name");
/// empty: none. A server may add fields. Ignores apiVersion and kind, which list items lack, and
/// v1beta1's deeper nesting of device properties.
[[nodiscard]] std::string difference(const nlohmann::json& stored, const nlohmann::json& expected);

/// The string at a JSON pointer; empty when absent.
[[nodiscard]] std::string text_in(const nlohmann::json& object, const char* pointer);
/// 0 when absent.
[[nodiscard]] std::int64_t generation_of(const nlohmann::json& slice);
/// Wraps around to the first: the slice is the only one of its pool.
[[nodiscard]] std::int64_t generation_after(std::int64_t generation);

}  // namespace gpushm::dra
