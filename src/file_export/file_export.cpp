// SPDX-License-Identifier: Apache-2.0
#include "gpushm/file_export.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/report/c_interface.hpp"
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
                  "a live process is exporting to this file",
                  "stop that process, or export to another file");
    }
    throw why.in("export", why.object());  // the caller requested an export, not a broker
  }
}

connect_options connect_to(const broker& broker) {
  connect_options result;
  result.socket_path = broker.socket_path();
  return result;
}

}  // namespace

}  // namespace gpushm

struct gpushm_file_export {
 public:
  gpushm_file_export(std::string path, const gpushm::file_export_options& options)
      : path_(std::move(path)),
        file_mode_(options.file_mode),
        broker_(gpushm::start_broker(path_, options)),
        client_(gpushm::client::connect(gpushm::connect_to(broker_))) {}

  void write(const gpushm_segment* segment) {
    const std::string socket = std::filesystem::path(broker_.socket_path()).filename().string();
    auto ticket = gpushm::glue::sized<gpushm_ticket>();
    gpushm::glue::check(gpushm_export_segment(segment, gpushm::glue::text(socket), &ticket));
    if (file_) {
      file_->replace(gpushm::glue::bytes_of(ticket));
    } else {
      file_.emplace(path_, gpushm::glue::bytes_of(ticket), file_mode_);
    }
  }
  [[nodiscard]] gpushm_client* client() const noexcept { return client_.handle(); }

 private:
  std::string path_;
  unsigned int file_mode_;
  gpushm::broker broker_;
  gpushm::client client_;
  std::optional<gpushm::ticket_file> file_;  // destroyed first, while its broker still runs
};

using gpushm::base::c_call;
using gpushm::base::out;
using gpushm::base::text_in;

gpushm_errc gpushm_file_export_begin(gpushm_string path,
                                     const gpushm_file_export_options* options,
                                     gpushm_file_export** file_export) {
  return c_call([&] {
    gpushm_file_export*& created = out(file_export, "export");
    const auto from = gpushm::base::options_in(options, "export");
    gpushm::file_export_options wanted;
    if (from.file_mode != 0) {
      wanted.file_mode = from.file_mode;
    }
    if (from.socket_mode != 0) {
      wanted.socket_mode = from.socket_mode;
    }
    wanted.accept_fake_chunks = from.accept_fake_chunks;
    created = std::make_unique<gpushm_file_export>(std::string(text_in(path, "export")), wanted)
                  .release();
  });
}

void gpushm_file_export_end(gpushm_file_export* file_export) {
  const gpushm::base::held_log_lines lines;
  const std::unique_ptr<gpushm_file_export> ended(file_export);
}

gpushm_client* gpushm_file_export_client(const gpushm_file_export* file_export) {
  return file_export == nullptr ? nullptr : file_export->client();
}

gpushm_errc gpushm_file_export_write(gpushm_file_export* file_export,
                                     const gpushm_segment* segment) {
  return c_call([&] {
    if (file_export == nullptr) {
      throw gpushm::error(gpushm::errc::invalid_argument,
                          "file_export",
                          {},
                          "this file_export object is empty",
                          "begin an export first; a moved-from object is empty");
    }
    file_export->write(segment);
  });
}
