// SPDX-License-Identifier: Apache-2.0
#include "gpushm/error.hpp"

#include "base/text.hpp"

namespace gpushm {

namespace {

// One line that is fit for any terminal or log: names, paths and causes may be a peer's.
std::string compose(std::string_view operation,
                    std::string_view object,
                    std::string_view cause,
                    std::string_view next_step) {
  std::string text(operation);
  if (!object.empty()) {
    if (!text.empty()) {
      text += ' ';
    }
    text += '"';
    text += object;
    text += '"';
  }
  if (!text.empty()) {
    text += ": ";
  }
  text += cause;
  if (!next_step.empty()) {
    text += " (";
    text += next_step;
    text += ')';
  }
  return base::printable(text);
}

}  // namespace

struct error::parts {
  errc code;
  std::string operation;
  std::string object;
  std::string cause;
  std::string next_step;
};

error::error(errc code,
             std::string_view operation,
             std::string_view object,
             std::string_view cause,
             std::string_view next_step)
    : std::runtime_error(compose(operation, object, cause, next_step)),
      parts_(std::make_shared<const parts>(parts{code,
                                                 std::string(operation),
                                                 std::string(object),
                                                 std::string(cause),
                                                 std::string(next_step)})) {}

error::error(const error&) noexcept = default;
error& error::operator=(const error&) noexcept = default;
error::~error() = default;

errc error::code() const noexcept {
  return parts_->code;
}
const std::string& error::operation() const noexcept {
  return parts_->operation;
}
const std::string& error::object() const noexcept {
  return parts_->object;
}
const std::string& error::cause() const noexcept {
  return parts_->cause;
}
const std::string& error::next_step() const noexcept {
  return parts_->next_step;
}

error error::in(std::string_view operation, std::string_view object) const {
  return {parts_->code, operation, object, parts_->cause, parts_->next_step};
}

}  // namespace gpushm
