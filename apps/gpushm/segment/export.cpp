// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <optional>

#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/device_memory.hpp"
#include "apps/gpushm/segment/holding.hpp"
#include "apps/gpushm/segment/metadata.hpp"
#include "apps/gpushm/segment/transfer.hpp"
#include "apps/support/stop_signal.hpp"
#include "apps/support/table.hpp"

namespace gpushm::cli {

namespace {

void check(const export_arguments& arguments) {
  if (!arguments.size_bytes && arguments.from.empty()) {
    throw usage_error(errc::invalid_argument,
                      "export",
                      arguments.file,
                      "how large is not said",
                      "give --size, for instance --size 64MiB, or --from FILE");
  }
  if (arguments.size_bytes == 0U) {
    throw usage_error(errc::invalid_argument,
                      "export",
                      arguments.file,
                      "0 bytes cannot be shared",
                      "give a size of at least one byte");
  }
  if (std::filesystem::path(arguments.file).filename().empty()) {
    throw usage_error(errc::invalid_argument,
                      "export",
                      arguments.file,
                      "this names a directory",
                      "name the file, for instance --file /shared/weights");
  }
  const bool on_host = arguments.device == "host";
  const bool wants_host = arguments.kind == export_kind::host;
  if (wants_host && !on_host && arguments.device != "auto") {
    throw usage_error(errc::invalid_argument,
                      "export",
                      arguments.file,
                      "--kind host and --device " + arguments.device + " contradict each other",
                      "leave one of them out");
  }
  if (on_host && !wants_host && arguments.kind != export_kind::automatic) {
    throw usage_error(errc::invalid_argument,
                      "export",
                      arguments.file,
                      "this kind of memory is on GPUs, and --device is host",
                      "leave --kind out, or name a GPU");
  }
}

/// The device for `create_options`; a GPU that was asked for never becomes the host.
std::string device_of(const export_arguments& arguments) {
  if (arguments.kind == export_kind::host) {
    return "host";
  }
  const bool any = arguments.device == "auto";
  return any && arguments.kind != export_kind::automatic ? "0" : arguments.device;
}

/// Memory that others can reach through a file, as long as this lives. Distinct objects: safe.
/// Shared objects: unsafe.
class exported_memory {
 public:
  exported_memory(const export_arguments& arguments, std::uint64_t size_bytes)
      : name_(std::filesystem::path(arguments.file).filename().string()),
        out_(file_export::begin(arguments.file, arguments.options)) {
    const std::string device = device_of(arguments);
    if (arguments.kind == export_kind::cuda_ipc) {
      memory_.emplace(driver::find_device(device), size_bytes, arguments.file);
      share_options unpublished;
      unpublished.publish = false;
      segment_ = out_.client().share(name_, memory_->data(), size_bytes, unpublished);
    } else {
      create_options wanted;
      wanted.size_bytes = size_bytes;
      wanted.device = device;
      segment_ = out_.client().create(name_, wanted);
    }
  }
  exported_memory(const exported_memory&) = delete;
  exported_memory& operator=(const exported_memory&) = delete;
  ~exported_memory() {
    if (memory_) {
      try {
        segment_.unshare();  // from here on nobody new gets what is freed below
      } catch (const error& why) {
        note(why.what());
      }
    }
  }

  [[nodiscard]] file_export& out() noexcept { return out_; }
  [[nodiscard]] segment& memory() noexcept { return segment_; }

 private:
  std::string name_;
  std::optional<device_memory> memory_;  // goes after all that leads to it
  segment segment_;
  file_export out_;  // goes first, and the file with it: who finds it, finds the segment
};

void show(const export_arguments& arguments, const segment& made, std::uint64_t metadata_bytes) {
  const std::string socket = arguments.file + ".sock";
  if (arguments.json) {
    json document = to_json(made);
    document["metadata_bytes"] = metadata_bytes;
    document["requested_device"] = arguments.device;
    document["file"] = arguments.file;
    document["socket"] = socket;
    print_json(json{{"exported", std::move(document)}});
    return;
  }
  print_line("exported \"" + arguments.file + "\"");
  fields lines = segment_fields(made);
  lines.emplace_back("socket", socket);
  print(app::fields_text(lines, 2));
}

void check_not_stopped(const app::stop_signal& stop, const std::string& file) {
  if (stop.pending()) {
    throw error(errc::system_error,
                "export",
                file,
                "a signal stopped it before it was complete",
                "start it again");
  }
}

}  // namespace

int run_export(const export_arguments& arguments) {
  check(arguments);
  tell_warnings();
  const std::string metadata = read_metadata(arguments.metadata);
  std::uint64_t size_bytes = arguments.size_bytes.value_or(0);
  std::optional<input_file> input;
  if (!arguments.from.empty()) {
    input = open_input(arguments.from);
    size_bytes = input->size_bytes;
  }
  // From here on there is something to tidy up.
  const app::stop_signal stop;
  exported_memory exported(arguments, size_bytes);
  segment& made = exported.memory();
  if (input) {
    load(made, input->fd.get(), arguments.from, [&] { check_not_stopped(stop, arguments.file); });
  } else if (arguments.fill) {
    made.fill(std::byte{*arguments.fill});
  }
  check_not_stopped(stop, arguments.file);
  // Before others can see it, so that no importer is missed.
  client& broker = exported.out().client();
  std::optional<subscription> events;
  if (arguments.until_released) {
    events = broker.subscribe(made.name());
  }
  made.publish(metadata);
  exported.out().write(made);
  show(arguments, made, metadata.size());
  flush_output();
  return events ? wait_released(broker, *events, made, stop, arguments.timeout)
                : hold(made, stop, arguments.timeout);
}

}  // namespace gpushm::cli
