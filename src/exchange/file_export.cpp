// SPDX-License-Identifier: Apache-2.0
#include "gpushm/file_export.hpp"

#include <filesystem>
#include <optional>
#include <utility>

#include "gpushm/broker.hpp"
#include "gpushm/error.hpp"

namespace gpushm {

namespace {

broker_options options_for(const std::string& path, const file_export_options& options) {
  broker_options result;
  result.socket_path = path + ".sock";
  result.domain = "file";
  result.mode = static_cast<mode_t>(options.socket_mode);
  result.accept_fake_chunks = options.accept_fake_chunks;
  return result;
}

bool is_exported(const std::string& path) {
  try {
    static_cast<void>(read_ticket_file(path));
    return true;
  } catch (const error&) {
    return false;
  }
}

broker start_broker(const std::string& path, const file_export_options& options) {
  try {
    return broker::start(options_for(path, options));
  } catch (const error& why) {
    if (why.code() == errc::address_in_use && is_exported(path)) {
      throw error(errc::address_in_use,
                  "export",
                  path,
                  "a living process exports into this file",
                  "stop that process, or export into another file");
    }
    throw why.in("export", why.object());  // that there is a broker is nothing the caller asked for
  }
}

connect_options connect_to(const broker& to) {
  connect_options result;
  result.socket_path = to.socket_path();
  return result;
}

}  // namespace

class file_export::impl {
 public:
  impl(std::string path, const file_export_options& options)
      : path_(std::move(path)),
        file_mode_(options.file_mode),
        broker_(start_broker(path_, options)),
        client_(client::connect(connect_to(broker_))) {}

  void write(const segment& what) {
    const std::string socket = std::filesystem::path(broker_.socket_path()).filename().string();
    const auto bytes = export_segment(what, socket);
    file_.reset();  // its lock would make the path look like somebody else's
    file_.emplace(path_, bytes, file_mode_);
  }
  [[nodiscard]] gpushm::client& client() noexcept { return client_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
  unsigned int file_mode_;
  broker broker_;
  gpushm::client client_;
  std::optional<ticket_file> file_;  // goes first: who still finds it, finds the broker
};

file_export::file_export(std::unique_ptr<impl> made) noexcept : impl_(std::move(made)) {}
file_export::file_export(file_export&&) noexcept = default;
file_export& file_export::operator=(file_export&&) noexcept = default;
file_export::~file_export() = default;

file_export file_export::begin(const std::string& path, const file_export_options& options) {
  return file_export(std::make_unique<impl>(path, options));
}

file_export::impl& file_export::filled() const {
  if (!impl_) {
    throw error(errc::invalid_argument,
                "file_export",
                {},
                "this file_export object is empty",
                "begin an export first; a moved-from object is empty");
  }
  return *impl_;
}

client& file_export::client() {
  return filled().client();
}
void file_export::write(const segment& what) {
  filled().write(what);
}
const std::string& file_export::path() const {
  return filled().path();
}

}  // namespace gpushm
