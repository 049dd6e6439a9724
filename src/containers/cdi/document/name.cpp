// SPDX-License-Identifier: Apache-2.0
#include "containers/cdi/document/name.hpp"

namespace gpushm::cdi {

namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_alphanumeric(char c) {
  return is_letter(c) || (c >= '0' && c <= '9');
}

std::optional<std::string> why_invalid_name(std::string_view text,
                                            bool (*may_begin)(char),
                                            std::string_view begin,
                                            std::string_view inside) {
  if (text.empty()) {
    return "it must not be empty";
  }
  if (!may_begin(text.front())) {
    return "it must begin with " + std::string(begin);
  }
  for (const char c : text) {
    if (!is_alphanumeric(c) && inside.find(c) == std::string_view::npos) {
      std::string why = "it may contain only ASCII letters, digits and";
      for (const char allowed : inside) {
        why.append(" ").push_back(allowed);
      }
      return why;
    }
  }
  if (!is_alphanumeric(text.back())) {
    return "it must end with a letter or a digit";
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_invalid_vendor(std::string_view text) {
  return why_invalid_name(text, is_letter, "a letter", "_-.");
}

std::optional<std::string> why_invalid_class(std::string_view text) {
  return why_invalid_name(text, is_letter, "a letter", "_-.");
}

std::optional<std::string> why_invalid_device(std::string_view text) {
  return why_invalid_name(text, is_alphanumeric, "a letter or a digit", "_-.:");
}

std::optional<qualified_name> parse_qualified_name(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view kind = text.substr(0, equals);
  const std::string_view device = text.substr(equals + 1);
  const std::size_t slash = kind.find('/');
  if (slash == std::string_view::npos || why_invalid_vendor(kind.substr(0, slash)) ||
      why_invalid_class(kind.substr(slash + 1)) || why_invalid_device(device)) {
    return std::nullopt;
  }
  return qualified_name{std::string(kind), std::string(device)};
}

}  // namespace gpushm::cdi
