// SPDX-License-Identifier: Apache-2.0
// The compiled part of fmt, built from the distribution's headers. The instantiations are those of
// fmt's own src/format.cc.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&,
                         string_view,
                         basic_format_args<FMT_BUFFER_CONTEXT(type_identity_t<char>)>,
                         locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
