// SPDX-License-Identifier: Apache-2.0
/// Which sanitizer this program is compiled with. GCC before 14 defines a macro for each; other
/// compilers support `__has_feature`.
#pragma once

namespace gpushm::base {

#if defined(__has_feature)
inline constexpr bool under_address_sanitizer = __has_feature(address_sanitizer);
inline constexpr bool under_thread_sanitizer = __has_feature(thread_sanitizer);
#else
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool under_address_sanitizer = true;
#else
inline constexpr bool under_address_sanitizer = false;
#endif
#ifdef __SANITIZE_THREAD__
inline constexpr bool under_thread_sanitizer = true;
#else
inline constexpr bool under_thread_sanitizer = false;
#endif
#endif

inline constexpr bool under_sanitizer = under_address_sanitizer || under_thread_sanitizer;

}  // namespace gpushm::base
