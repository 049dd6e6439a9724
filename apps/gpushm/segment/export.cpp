// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "apps/gpushm/command.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/exit_status.hpp"
#include "apps/gpushm/json_output.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/connect.hpp"
#include "apps/gpushm/segment/describe.hpp"
#include "apps/gpushm/segment/device_memory.hpp"
#include "apps/gpushm/segment/holding.hpp"
#include "apps/gpushm/segment/metadata.hpp"
#include "apps/gpushm/segment/transfer.hpp"
#include "apps/support/stop_signal.hpp"
#include "base/text/text_layout.hpp"
#include "gpu/driver/device_text.hpp"
#include "gpushm/file_export.hpp"

namespace gpushm::cli {

namespace {

/// What `export` allocates; automatic: cuda_vmm on a GPU, host without one.
enum class export_kind : std::uint8_t { automatic, cuda_vmm, cuda_ipc, host };

struct export_arguments {
  std::string file;
  std::optional<std::uint64_t> size_bytes;
  std::string from;
  std::optional<std::uint8_t> fill;
  std::string device = "auto";
  export_kind kind = export_kind::automatic;
  std::string metadata;  ///< or "@FILE"
  bool until_released = false;
  std::optional<std::chrono::milliseconds> timeout;
  file_export_options options;
  bool json = false;
};

void add_export_arguments(CLI::App& app, export_arguments& arguments) {
  app.add_option("--file", arguments.file, "File that importers open; the socket is FILE.sock")
      ->required()
      ->type_name("FILE");
  auto* size = add_size(
      app, "--size", "Size, such as 64MiB (unless --from is given)", [&](std::uint64_t value) {
        arguments.size_bytes = value;
      });
  auto* from =
      app.add_option("--from", arguments.from, "Fill it with this file and use the file's size")
          ->type_name("FILE")
          ->excludes(size);
  add_fill(app, arguments.fill)->excludes(from);
  add_device(app,
             "--device",
             "auto (default), host, an ordinal, GPU-<uuid> or MIG-<uuid>",
             arguments.device);
  add_choice(app,
             "--kind",
             "Kind of memory (default: auto, which is cuda-vmm on a GPU, else host)",
             arguments.kind,
             {{"auto", export_kind::automatic},
              {"cuda-vmm", export_kind::cuda_vmm},
              {"cuda-ipc", export_kind::cuda_ipc},
              {"host", export_kind::host}});
  app.add_option("--metadata", arguments.metadata, "Metadata to publish with it, up to 64 KiB")
      ->type_name("TEXT|@FILE");
  app.add_flag("--until-released",
               arguments.until_released,
               "Exit when other processes have imported it and the last one has released it");
  add_duration(app, "--timeout", "Time limit of the export (default: no limit)", [&](auto value) {
    arguments.timeout = value;
  });
  add_mode(app, "--file-mode", "Permissions of the file (default: 0644)", [&](mode_t mode) {
    arguments.options.file_mode = mode;
  });
  add_mode(app, "--socket-mode", "Permissions of the socket (default: 0666)", [&](mode_t mode) {
    arguments.options.socket_mode = mode;
  });
  app.add_flag("--accept-fake-chunks",
               arguments.options.accept_fake_chunks,
               "Accept the memory of the fake GPU driver (tests only)");
  add_json(app, arguments.json);
}

void check(const export_arguments& arguments) {
  if (!arguments.size_bytes && arguments.from.empty()) {
    throw usage_error(errc::invalid_argument,
                      "export",
                      arguments.file,
                      "no size is given",
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
                      "the path names a directory",
                      "name the file, for instance --file /shared/weights");
  }
  const bool on_host = driver::normal_device(arguments.device) == "host";
  const bool host_kind = arguments.kind == export_kind::host;
  if (host_kind && !on_host && arguments.device != "auto") {
    throw usage_error(errc::invalid_argument,
                      "export",
                      arguments.file,
                      "--kind host contradicts --device " + arguments.device,
                      "omit one of them");
  }
  if (on_host && !host_kind && arguments.kind != export_kind::automatic) {
    throw usage_error(errc::invalid_argument,
                      "export",
                      arguments.file,
                      "this --kind is GPU memory, but --device is host",
                      "omit --kind, or name a GPU");
  }
}

/// The device for `create_options`. A requested GPU never falls back to the host.
std::string device_of(const export_arguments& arguments) {
  if (arguments.kind == export_kind::host) {
    return "host";
  }
  const bool any = arguments.device == "auto";
  return any && arguments.kind != export_kind::automatic ? "0" : arguments.device;
}

/// Memory that other processes can import through a file during this object's lifetime.
/// Thread-safety: distinct objects: safe; shared objects: unsafe.
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
      create_options options;
      options.size_bytes = size_bytes;
      options.device = device;
      segment_ = out_.client().create(name_, options);
    }
  }
  exported_memory(const exported_memory&) = delete;
  exported_memory& operator=(const exported_memory&) = delete;
  ~exported_memory() {
    if (memory_) {
      try {
        segment_.unshare();  // no new importer can get the memory freed below
      } catch (const error& why) {
        note(why.what());
      }
    }
  }

  [[nodiscard]] file_export& out() noexcept { return out_; }
  [[nodiscard]] segment& memory() noexcept { return segment_; }

 private:
  std::string name_;
  std::optional<device_memory> memory_;  // destroyed after segment_ and out_
  segment segment_;
  file_export out_;  // destroyed first, with the file: while it exists, so does the segment
};

void show(const export_arguments& arguments,
          const segment& exported,
          std::uint64_t metadata_bytes) {
  const std::string socket = arguments.file + ".sock";
  if (arguments.json) {
    json document = to_json(exported);
    document["metadata_bytes"] = metadata_bytes;
    document["requested_device"] = arguments.device;
    document["file"] = arguments.file;
    document["socket"] = socket;
    print_json(json{{"exported", std::move(document)}});
    return;
  }
  print_line(fmt::format("exported \"{}\"", arguments.file));
  fields lines = segment_fields(exported);
  lines.emplace_back("socket", socket);
  print(base::fields_text(lines, 2));
}

void check_not_stopped(const app::stop_signal& stop, const std::string& file) {
  if (stop.pending()) {
    throw error(errc::system_error,
                "export",
                file,
                "interrupted by a signal before it was complete",
                "run it again");
  }
}

int run_export(const export_arguments& arguments) {
  check(arguments);
  print_warnings();
  const std::string metadata = read_metadata(arguments.metadata);
  std::uint64_t size_bytes = arguments.size_bytes.value_or(0);
  std::optional<input_file> input;
  if (!arguments.from.empty()) {
    input = open_input(arguments.from);
    size_bytes = input->size_bytes;
  }
  // From here on a signal must not skip the cleanup.
  const app::stop_signal stop;
  exported_memory exported(arguments, size_bytes);
  segment& memory = exported.memory();
  if (input) {
    load(memory, input->fd.get(), arguments.from, [&] { check_not_stopped(stop, arguments.file); });
  } else if (arguments.fill) {
    memory.fill(std::byte{*arguments.fill});
  }
  check_not_stopped(stop, arguments.file);
  // Before others can import it, so that no event is missed.
  client& broker = exported.out().client();
  std::optional<subscription> events;
  if (arguments.until_released) {
    events = broker.subscribe(memory.name());
  }
  memory.publish(metadata);
  exported.out().write(memory);
  show(arguments, memory, metadata.size());
  flush_output();
  return events ? wait_released(broker, *events, memory, stop, arguments.timeout)
                : hold(memory, stop, arguments.timeout);
}

}  // namespace

void add_export(command_list& commands) {
  add_command<export_arguments>(commands,
                                "export",
                                "Allocate memory and share it through a file",
                                add_export_arguments,
                                run_export);
}

}  // namespace gpushm::cli
