// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpushm::kube {

/// Text that may stand as a value in a URL's query.
[[nodiscard]] std::string query_escaped(std::string_view text);

/// What to do about a request that was refused for want of a permission. `verb` is Kubernetes'
/// ("list").
[[nodiscard]] std::string permission_advice(std::string_view verb, std::string_view path);

}  // namespace gpushm::kube
