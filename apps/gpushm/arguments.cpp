// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/arguments.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "apps/gpushm/cdi/cdi_arguments.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/inspect/arguments.hpp"
#include "apps/gpushm/k8s/k8s_arguments.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/support/duration.hpp"
#include "base/names.hpp"

namespace gpushm::cli {

namespace {

// CLI11 keeps references to what it fills in; each command's arguments live as long as the parser
// and are copied into the request.
struct all_arguments {
  serve_arguments serve;
  create_arguments create;
  open_arguments open;
  list_arguments list;
  stat_arguments stat;
  remove_arguments remove;
  release_arguments release;
  wait_arguments wait;
  export_arguments exported;
  import_arguments imported;
  version_arguments version;
  demo_arguments demo;
  demo_role_arguments role;
  doctor_arguments doctor;
  explain_arguments explain;
  topo_arguments topo;
  matrix_arguments matrix;
  probe_driver_arguments probe_driver;
  measure_worker_arguments measure_worker;
  trial_worker_arguments trial_worker;
};

void add_serve(CLI::App& app, serve_arguments& out) {
  broker_options& broker = out.broker;
  app.add_option(
         "--socket", broker.socket_path, "Where to listen (else $GPUSHM_SOCKET, /run/gpushm/d/…)")
      ->type_name("PATH");
  app.add_option("--domain", broker.domain, "Name of the domain (default: default)")
      ->type_name("NAME");
  add_mode(app, "--mode", "Permissions of the socket (default: 0660)", [&](mode_t mode) {
    broker.mode = mode;
  });
  app.add_option("--group", out.group, "Group that owns the socket")->type_name("NAME|GID");
  add_text(app,
           "--ready-fd",
           "N",
           "Write a line feed to this descriptor when ready, and close it",
           [&](const std::string& text) {
             out.ready_fd = parse_number<int>("--ready-fd", text, 10, "a descriptor's number");
           });
  add_size(
      app, "--quota", "Most bytes of all segments (default: no limit)", [&](std::uint64_t value) {
        broker.limits.quota_bytes = value;
      });
  add_size(app,
           "--quota-per-principal",
           "Most bytes of the segments of one pod, container or uid (default: no limit)",
           [&](std::uint64_t value) { broker.limits.quota_bytes_per_principal = value; });
  add_size(app,
           "--memory",
           "Most memory that members can make the broker hold (default: half of what it may use, "
           "at most 1 GiB)",
           [&](std::uint64_t value) { broker.limits.memory_bytes = value; });
  add_count(app, "--max-segments", "Most segments (default: 65536)", broker.limits.max_segments);
  add_count(app,
            "--max-connections",
            "Most clients at a time (default: 4096)",
            broker.limits.max_connections);
  add_duration(app,
               "--fence-delay",
               "How long what a dead client had is kept where nothing proves that its GPU work has "
               "ended (default: 5s)",
               [&](auto value) {
                 if (value > std::chrono::hours(1)) {
                   refuse("--fence-delay", app::duration_text(value), "an hour or less");
                 }
                 broker.limits.fence_delay_ms = static_cast<std::uint32_t>(value.count());
               });
  app.add_option("--log-level", out.log_level, "What is logged to standard error (default: info)")
      ->type_name("debug|info|warning|error|off")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}).description(""));
  app.add_flag("--accept-fake-chunks",
               broker.accept_fake_chunks,
               "Accept the memory of the fake GPU driver (tests only)");
}

void add_create(CLI::App& app, create_arguments& out) {
  app.add_option("NAME", out.name, "Name of the segment")->required()->type_name("");
  auto* size =
      add_size(app, "--size", "Bytes, such as 64MiB (this or --from)", [&](std::uint64_t value) {
        out.size_bytes = value;
      });
  auto* from = app.add_option("--from", out.from, "Fill it with this file; the size is the file's")
                   ->type_name("FILE")
                   ->excludes(size);
  app.add_option("--device",
                 out.options.device,
                 "auto (default), host, an ordinal, GPU-<uuid> or MIG-<uuid>")
      ->type_name("DEVICE");
  add_choice(app,
             "--lifetime",
             "When it is freed (default: leased, with its last lease)",
             out.options.lifetime,
             {{"leased", lifetime::leased}, {"persistent", lifetime::persistent}});
  add_size(app,
           "--chunk",
           "Size of one physical allocation (default: one for all)",
           [&](std::uint64_t value) { out.options.chunk_bytes = value; });
  app.add_flag("--huge-pages", out.options.huge_pages, "Host memory in 2 MiB pages");
  add_fill(app, out.fill)->excludes(from);
  app.add_option("--metadata", out.metadata, "Published with it, up to 64 KiB")
      ->type_name("TEXT|@FILE");
  auto* hold = app.add_flag("--hold", out.hold, "Keep it until SIGINT or SIGTERM");
  app.add_flag(
         "--until-released", out.until_released, "Keep it until everybody who opened it is done")
      ->excludes(hold);
  add_duration(
      app, "--timeout", "Longest --hold or --until-released (default: no limit)", [&](auto value) {
        out.timeout = value;
      });
  add_connection(app, out.connection);
}

void add_open(CLI::App& app, open_arguments& out) {
  app.add_option("NAME", out.name, "Name of the segment")->required()->type_name("");
  add_duration(
      app, "--wait", "How long to wait for the name (default: not at all)", [&](auto value) {
        out.options.timeout = value;
      });
  app.add_option(
         "--device", out.options.device, "The GPU that will use it (default: the segment's own)")
      ->type_name("DEVICE");
  add_access(app, out.options.access);
  add_use(app, out.use);
  add_size(app, "--expect-size", "Fail unless it has exactly this size", [&](std::uint64_t value) {
    out.options.expected_size_bytes = value;
  });
  add_connection(app, out.connection);
}

void add_export(CLI::App& app, export_arguments& out) {
  app.add_option("--file", out.file, "File that importers look for; the socket is FILE.sock")
      ->required()
      ->type_name("FILE");
  auto* size =
      add_size(app, "--size", "Bytes, such as 64MiB (this or --from)", [&](std::uint64_t value) {
        out.size_bytes = value;
      });
  auto* from = app.add_option("--from", out.from, "Fill it with this file; the size is the file's")
                   ->type_name("FILE")
                   ->excludes(size);
  add_fill(app, out.fill)->excludes(from);
  app.add_option(
         "--device", out.device, "auto (default), host, an ordinal, GPU-<uuid> or MIG-<uuid>")
      ->type_name("DEVICE");
  add_choice(app,
             "--kind",
             "What is allocated (default: auto, cuda-vmm on a GPU)",
             out.kind,
             {{"auto", export_kind::automatic},
              {"cuda-vmm", export_kind::cuda_vmm},
              {"cuda-ipc", export_kind::cuda_ipc},
              {"host", export_kind::host}});
  app.add_option("--metadata", out.metadata, "Published with it, up to 64 KiB")
      ->type_name("TEXT|@FILE");
  app.add_flag("--until-released",
               out.until_released,
               "End when somebody imported it and the last who did is done");
  add_duration(app, "--timeout", "Longest time to export it (default: no limit)", [&](auto value) {
    out.timeout = value;
  });
  add_mode(app, "--file-mode", "Permissions of the file (default: 0644)", [&](mode_t mode) {
    out.options.file_mode = mode;
  });
  add_mode(app, "--socket-mode", "Permissions of the socket (default: 0666)", [&](mode_t mode) {
    out.options.socket_mode = mode;
  });
  app.add_flag("--accept-fake-chunks",
               out.options.accept_fake_chunks,
               "Accept the memory of the fake GPU driver (tests only)");
  add_json(app, out.json);
}

void add_import(CLI::App& app, import_arguments& out) {
  app.add_option("--file", out.file, "File of a living exporter")->required()->type_name("FILE");
  add_duration(app, "--timeout", "How long to wait for it (default: not at all)", [&](auto value) {
    out.options.timeout = value;
  });
  app.add_option(
         "--device", out.options.device, "The GPU that will use it (default: the memory's own)")
      ->type_name("DEVICE");
  add_access(app, out.options.access);
  add_use(app, out.use);
  add_json(app, out.json);
}

void add_demo(CLI::App& app, demo_arguments& out) {
  app.add_option("--device", out.device, "auto (default), host, an ordinal or a UUID")
      ->type_name("DEVICE");
  app.add_option("--consumer-device",
                 out.consumer_device,
                 "The GPU that the consumers use (default: the same)")
      ->type_name("DEVICE");
  add_size(app,
           "--size",
           "Size of the segment (default: 1GiB, less if little is free)",
           [&](std::uint64_t value) { out.size_bytes = value; });
  add_duration(
      app, "--timeout", "Longest time for the whole demo (default: by size)", [&](auto value) {
        out.timeout = value;
      });
  app.add_flag(
      "--isolated", out.isolated, "Own namespaces and an unprivileged uid for each process");
  add_choice(app,
             "--corrupt",
             "Damage one byte (tests only)",
             out.corrupt,
             {{"fill", corrupt_stage::fill},
              {"rewrite", corrupt_stage::rewrite},
              {"survive", corrupt_stage::survive}})
      ->group("");
  add_json(app, out.json);
}

void add_demo_role(CLI::App& app, demo_role_arguments& out) {
  app.group("");
  app.add_option("ROLE", out.role)->required();
  app.add_option("--socket", out.socket);
  app.add_option("--name", out.name);
  app.add_option("--device", out.device);
  app.add_option("--size-bytes", out.size_bytes);
  app.add_option("--seed", out.seed);
  app.add_option("--answer-seed", out.answer_seed);
  add_duration(app, "--timeout", "", [&](auto value) { out.timeout = value; });
  app.add_flag("--isolate", out.isolate);
  app.add_option("--uid", out.uid);
  add_choice(app,
             "--corrupt",
             "",
             out.corrupt,
             {{"fill", corrupt_stage::fill},
              {"rewrite", corrupt_stage::rewrite},
              {"survive", corrupt_stage::survive}});
}

constexpr const char* about =
    "gpushm: POSIX shared memory for GPUs.\n"
    "A process creates a named segment of GPU or host memory, others open it by name.\n";
constexpr const char* footer =
    "A first try:\n"
    "  export GPUSHM_SOCKET=/tmp/gpushm.socket\n"
    "  gpushm serve &\n"
    "  gpushm create hello --size 64MiB --fill 42 --lifetime persistent\n"
    "  gpushm open hello --checksum\n"
    "or everything at once: gpushm demo\n\n"
    "Exit status: 0 success, 1 the operation failed, 2 wrong usage.";

int tell_usage(const CLI::App& root, const CLI::ParseError& failure, int argc, char** argv) {
  std::string text = failure.what();
  const CLI::App* command = &root;
  std::string name = "gpushm";
  int at = 1;
  for (auto below = root.get_subcommands(); !below.empty(); below = command->get_subcommands()) {
    command = below.back();
    name.append(" ").append(command->get_name());
    ++at;
  }
  const auto candidates = command->get_subcommands([](const CLI::App*) { return true; });
  if (!candidates.empty() && argc > at && argv[at][0] != '-') {
    text = "there is no command \"" + std::string(argv[at]) + "\"";
    for (const CLI::App* candidate : candidates) {
      if (!candidate->get_group().empty() &&
          base::edit_distance(argv[at], candidate->get_name(), 2) <= 2) {
        text += " (did you mean \"" + candidate->get_name() + "\"?)";
        break;
      }
    }
  }
  note(text);
  note("see: " + name + " --help");
  return exit_usage;
}

template <typename Arguments>
std::function<int()> bind(int (*run)(const Arguments&), const Arguments& arguments) {
  return [run, arguments] { return run(arguments); };
}

// All names that `parse` adds; one that is missing here costs time and nothing else.
bool is_command(std::string_view name) {
  constexpr auto names = std::to_array<std::string_view>(
      {"serve",        "create",         "open",         "ls",     "stat", "rm",
       "wait",         "release",        "export",       "import", "demo", "demo-role",
       "doctor",       "explain",        "topo",         "cdi",    "k8s",  "matrix",
       "probe-driver", "measure-worker", "trial-worker", "version"});
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

request parse(int argc, char** argv) {
  CLI::App root(about, "gpushm");
  root.get_formatter()->column_width(34);
  root.footer(footer);
  root.set_version_flag("--version", std::string("gpushm ") + GPUSHM_VERSION);
  root.require_subcommand(1);
  all_arguments all;
  request asked;
  // Setting up all commands takes longer than most of them run: when the command line names one, it
  // is the only one. Help and wrong names need them all.
  const std::string_view named = argc > 1 ? argv[1] : "";
  const auto wanted = [&, known = is_command(named)](std::string_view name) {
    return !known || name == named;
  };
  const auto command = [&](const char* name,
                           const char* description,
                           auto add,
                           auto run,
                           auto& arguments,
                           const bool& json) {
    if (!wanted(name)) {
      return;
    }
    CLI::App* app = root.add_subcommand(name, description);
    app->footer("");
    add(*app, arguments);
    app->callback([&asked, &arguments, &json, run] {
      asked.run = bind(run, arguments);
      asked.json = json;
    });
  };
  const bool never = false;
  command("serve", "Run a broker in the foreground", add_serve, run_serve, all.serve, never);
  command("create",
          "Create and publish a segment",
          add_create,
          run_create,
          all.create,
          all.create.connection.json);
  command("open",
          "Open a segment; check or save its bytes",
          add_open,
          run_open,
          all.open,
          all.open.connection.json);
  command(
      "ls",
      "List segments",
      [](CLI::App& app, list_arguments& out) {
        app.add_option("PREFIX", out.prefix, "Only names that start with this")->type_name("");
        app.add_flag("-q,--names", out.names_only, "Names alone, one a line");
        add_connection(app, out.connection);
      },
      run_list,
      all.list,
      all.list.connection.json);
  command(
      "stat",
      "Show all that the broker knows of a segment",
      [](CLI::App& app, stat_arguments& out) {
        app.add_option("NAME", out.name, "Name of the segment")->required()->type_name("");
        add_connection(app, out.connection);
      },
      run_stat,
      all.stat,
      all.stat.connection.json);
  command(
      "rm",
      "Remove segments; processes that have one open keep it",
      [](CLI::App& app, remove_arguments& out) {
        app.add_option("NAME", out.names, "Names of segments")->required()->type_name("");
        add_connection(app, out.connection);
      },
      run_remove,
      all.remove,
      all.remove.connection.json);
  command(
      "release",
      "End what waits for the end of a process that is gone without a goodbye",
      [](CLI::App& app, release_arguments& out) {
        app.add_option("NAME", out.names, "Names of segments")->required()->type_name("");
        app.add_flag(
               "--unfenced",
               out.unfenced,
               "Though the process may still write them: nothing else proves that it does not")
            ->required();
        add_connection(app, out.connection);
      },
      run_release,
      all.release,
      all.release.connection.json);
  command(
      "wait",
      "Wait until a segment is published, or removed",
      [](CLI::App& app, wait_arguments& out) {
        app.add_option("NAME", out.name, "Name of the segment")->required()->type_name("");
        add_duration(app, "--timeout", "How long to wait (default: 30s)", [&](auto value) {
          out.timeout = value;
        });
        app.add_flag("--removed", out.removed, "Wait until there is no such segment");
        add_connection(app, out.connection);
      },
      run_wait,
      all.wait,
      all.wait.connection.json);
  command("export",
          "Allocate memory and lead others to it through a file",
          add_export,
          run_export,
          all.exported,
          all.exported.json);
  command("import",
          "Map the memory that a file leads to; check or save its bytes",
          add_import,
          run_import,
          all.imported,
          all.imported.json);
  command("demo",
          "Show two processes sharing one segment, every byte checked",
          add_demo,
          run_demo,
          all.demo,
          all.demo.json);
  command("demo-role", "", add_demo_role, run_demo_role, all.role, never);
  command("doctor",
          "Say what helps or hinders sharing here, and what to do",
          add_doctor,
          run_doctor,
          all.doctor,
          all.doctor.json);
  command("explain",
          "Say what an error means, how to confirm it and how to fix it",
          add_explain,
          run_explain,
          all.explain,
          all.explain.json);
  command("topo",
          "Show the GPUs and how they are connected",
          add_topo,
          run_topo,
          all.topo,
          all.topo.json);
  if (wanted("cdi")) {
    add_cdi(root, asked, argc > 2 ? argv[2] : "");
  }
  if (wanted("k8s")) {
    add_k8s(root, asked);
  }
  command("matrix",
          "Try all ways of sharing between real containers in all settings",
          add_matrix,
          run_matrix,
          all.matrix,
          all.matrix.json);
  command("probe-driver", "", add_probe_driver, run_probe_driver, all.probe_driver, never);
  command("measure-worker", "", add_measure_worker, run_measure_worker, all.measure_worker, never);
  command("trial-worker", "", add_trial_worker, run_trial_worker, all.trial_worker, never);
  command(
      "version",
      "Print the version",
      [](CLI::App& app, version_arguments& out) { add_json(app, out.json); },
      run_version,
      all.version,
      all.version.json);
  try {
    root.parse(argc, argv);
  } catch (const CLI::Success& shown) {  // help or version
    asked.status = root.exit(shown);
    asked.run = nullptr;
  } catch (const CLI::ParseError& failure) {
    asked.run = nullptr;
    if (argc <= 1) {
      print(root.help());
      asked.status = exit_usage;
    } else {
      asked.status = tell_usage(root, failure, argc, argv);
    }
  }
  return asked;
}

}  // namespace gpushm::cli
