// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/arguments.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iterator>
#include <memory>

#include "apps/gpushm/cdi/cdi_arguments.hpp"
#include "apps/gpushm/channel/channel_arguments.hpp"
#include "apps/gpushm/command_table.hpp"
#include "apps/gpushm/commands.hpp"
#include "apps/gpushm/completion.hpp"
#include "apps/gpushm/inspect/arguments.hpp"
#include "apps/gpushm/k8s/k8s_arguments.hpp"
#include "apps/gpushm/options.hpp"
#include "apps/gpushm/output.hpp"
#include "apps/gpushm/segment/slice_text.hpp"
#include "apps/gpushm/usage.hpp"
#include "apps/support/duration.hpp"

namespace gpushm::cli {

namespace {

// CLI11 keeps references to its targets: each command's arguments live as long as the parser and
// are copied into the request.
struct all_arguments {
  serve_arguments serve;
  create_arguments create;
  load_arguments load;
  open_arguments open;
  list_arguments list;
  stat_arguments stat;
  remove_arguments remove;
  release_arguments release;
  wait_arguments wait;
  export_arguments exported;
  import_arguments imported;
  quotas_arguments quotas;
  lost_gpu_arguments lost_gpu;
  run_arguments run;
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
  trial_side_arguments trial_side;
};

void add_serve(CLI::App& app, serve_arguments& out) {
  broker_options& broker = out.broker;
  app.add_option(
         "--socket",
         broker.socket_path,
         "Socket to listen on (else $GPUSHM_SOCKET, /run/gpushm/d/…, $XDG_RUNTIME_DIR/gpushm/d/…)")
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
           "Write a line feed to this descriptor when ready, then close it",
           [&](const std::string& text) {
             out.ready_fd = parse_number<int>("--ready-fd", text, 10, "a file descriptor number");
           });
  app.add_flag("--detach", out.detach, "Return when it is ready; it continues in the background");
  add_duration(app,
               "--idle-exit",
               "Exit after this time without a client and without a segment (default: never)",
               [&](auto value) { out.idle_exit = value; });
  add_size(app,
           "--quota",
           "Maximum size of all segments in host memory, and on each GPU (default: no limit)",
           [&](std::uint64_t value) { broker.limits.quota_bytes = value; });
  add_size(app,
           "--quota-per-principal",
           "The same for the segments of one pod, container or uid (default: no limit)",
           [&](std::uint64_t value) { broker.limits.quota_bytes_per_principal = value; });
  add_size(app,
           "--memory",
           "Maximum memory of the broker that members can occupy (default: half of the memory "
           "available to it, at most 1 GiB)",
           [&](std::uint64_t value) { broker.limits.memory_bytes = value; });
  add_count(app,
            "--max-segments",
            "Maximum number of segments (default: 65536)",
            broker.limits.max_segments);
  add_count(app,
            "--max-connections",
            "Maximum number of concurrent clients (default: 4096)",
            broker.limits.max_connections);
  add_duration(
      app,
      "--fence-delay",
      "How long the leases of a dead client are kept if nothing proves that its GPU work "
      "has ended (default: 5s)",
      [&](auto value) {
        if (value > std::chrono::hours(1)) {
          refuse("--fence-delay", app::duration_text(value), "a duration of at most one hour");
        }
        broker.limits.fence_delay_ms = static_cast<std::uint32_t>(value.count());
      });
  add_text(app,
           "--log-level",
           "debug|info|warning|error|off",
           "Lowest level that is logged to standard error (default: info)",
           [&](const std::string& text) {
             constexpr auto levels =
                 std::to_array<std::string_view>({"debug", "info", "warning", "error", "off"});
             if (std::find(levels.begin(), levels.end(), text) == levels.end()) {
               refuse("--log-level", text, "one of debug|info|warning|error|off");
             }
             out.log_level = text;
           });
  app.add_flag("--accept-fake-chunks",
               broker.accept_fake_chunks,
               "Accept the memory of the fake GPU driver (tests only)");
}

void add_create(CLI::App& app, create_arguments& out) {
  app.add_option("NAME", out.name, "Name of the segment")->required()->type_name("");
  auto* size = add_size(
      app, "--size", "Size, such as 64MiB (unless --from is given)", [&](std::uint64_t value) {
        out.size_bytes = value;
      });
  auto* from = app.add_option("--from", out.from, "Fill it with this file and use the file's size")
                   ->type_name("FILE")
                   ->excludes(size);
  add_device(app,
             "--device",
             "auto (default), host, an ordinal, GPU-<uuid> or MIG-<uuid>",
             out.options.device);
  add_choice(app,
             "--lifetime",
             "When it is freed (leased, the default: with its last lease)",
             out.options.lifetime,
             {{"leased", lifetime::leased}, {"persistent", lifetime::persistent}});
  add_size(app,
           "--chunk",
           "Size of each physical allocation (default: a single one)",
           [&](std::uint64_t value) { out.options.chunk_bytes = value; });
  app.add_flag("--huge-pages", out.options.huge_pages, "Allocate host memory in 2 MiB pages");
  add_fill(app, out.fill)->excludes(from);
  app.add_option("--metadata", out.metadata, "Metadata to publish with it, up to 64 KiB")
      ->type_name("TEXT|@FILE");
  auto* hold = app.add_flag("--hold", out.hold, "Keep it until SIGINT or SIGTERM");
  app.add_flag("--until-released",
               out.until_released,
               "Keep it until other processes have opened it and the last one has released it")
      ->excludes(hold);
  add_duration(app,
               "--timeout",
               "Time limit of --hold and --until-released (default: no limit)",
               [&](auto value) { out.timeout = value; });
  add_connection(app, out.connection);
}

void add_load(CLI::App& app, load_arguments& out) {
  app.add_option("FILE", out.paths, "Safetensors files, an index, or the folder of a model")
      ->required()
      ->type_name("");
  app.add_option("--name", out.name, "Name of the segment")->required()->type_name("NAME");
  add_device(app,
             "--device",
             "auto (default), host, an ordinal, GPU-<uuid> or MIG-<uuid>",
             out.options.device);
  add_text(app,
           "--threads",
           "N",
           "Threads that read (default: as many as CPUs, 8 to 16)",
           [&](const std::string& text) {
             constexpr const char* expected = "a number from 1 to 64";
             out.options.threads =
                 parse_number<decltype(out.options.threads)>("--threads", text, 10, expected);
             if (out.options.threads < 1 || out.options.threads > 64) {
               refuse("--threads", text, expected);
             }
           });
  add_choice(
      app,
      "--read",
      "How files are read (auto: direct unless they are in the page cache)",
      out.options.reading,
      {{"auto", reading::automatic}, {"cached", reading::cached}, {"direct", reading::direct}});
  add_choice(app,
             "--verify",
             "Whether files that were loaded before are read (auto: if their stamps have changed)",
             out.options.verify,
             {{"auto", verify::automatic}, {"full", verify::full}});
  add_texts(
      app,
      "--tensors",
      "PATTERN",
      "Load these tensors only: a name, or a pattern such as 'model.layers.*' (may be repeated)",
      [&](const std::string& text) { out.options.tensors.push_back(text); });
  add_texts(
      app,
      "--slice",
      "NAME=DIM:BEGIN-END",
      "Load a range of a dimension of these tensors: elements, several (BEGIN-END,BEGIN-END), or "
      "of equal parts (BEGIN-END/PARTS); may be repeated",
      [&](const std::string& text) {
        auto slices = parse_slices(text);
        if (!slices) {
          refuse("--slice",
                 text,
                 "a slice such as w=0:0-512, w=0:0-4,8-12 or '*.q_proj.weight=0:1-2/8'");
        }
        out.options.slices.insert(out.options.slices.end(),
                                  std::move_iterator(slices->begin()),
                                  std::move_iterator(slices->end()));
      });
  app.add_flag("--replace",
               out.options.replace,
               "Remove another model of this name, or former contents of the files, and load");
  add_duration(app, "--timeout", "Time limit (default: an hour)", [&](auto value) {
    out.options.timeout = value;
  });
  add_connection(app, out.connection);
}

void add_open(CLI::App& app, open_arguments& out) {
  app.add_option("NAME", out.name, "Name of the segment")->required()->type_name("");
  add_duration(
      app, "--timeout", "How long to wait for the name (default: do not wait)", [&](auto value) {
        out.options.timeout = value;
      });
  add_device(
      app, "--device", "GPU that will access it (default: the segment's GPU)", out.options.device);
  add_access(app, out.options.access);
  add_use(app, out.use, out.connection.json);
  add_size(app, "--expect-size", "Fail unless it has exactly this size", [&](std::uint64_t value) {
    out.options.expected_size_bytes = value;
  });
  add_connection(app, out.connection);
}

void add_export(CLI::App& app, export_arguments& out) {
  app.add_option("--file", out.file, "File that importers open; the socket is FILE.sock")
      ->required()
      ->type_name("FILE");
  auto* size = add_size(
      app, "--size", "Size, such as 64MiB (unless --from is given)", [&](std::uint64_t value) {
        out.size_bytes = value;
      });
  auto* from = app.add_option("--from", out.from, "Fill it with this file and use the file's size")
                   ->type_name("FILE")
                   ->excludes(size);
  add_fill(app, out.fill)->excludes(from);
  add_device(
      app, "--device", "auto (default), host, an ordinal, GPU-<uuid> or MIG-<uuid>", out.device);
  add_choice(app,
             "--kind",
             "Kind of memory (default: auto, which is cuda-vmm on a GPU, else host)",
             out.kind,
             {{"auto", export_kind::automatic},
              {"cuda-vmm", export_kind::cuda_vmm},
              {"cuda-ipc", export_kind::cuda_ipc},
              {"host", export_kind::host}});
  app.add_option("--metadata", out.metadata, "Metadata to publish with it, up to 64 KiB")
      ->type_name("TEXT|@FILE");
  app.add_flag("--until-released",
               out.until_released,
               "Exit when other processes have imported it and the last one has released it");
  add_duration(app, "--timeout", "Time limit of the export (default: no limit)", [&](auto value) {
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
  app.add_option("--file", out.file, "File of a live exporter")->required()->type_name("FILE");
  add_duration(
      app, "--timeout", "How long to wait for the file (default: do not wait)", [&](auto value) {
        out.options.timeout = value;
      });
  add_device(
      app, "--device", "GPU that will access it (default: the memory's GPU)", out.options.device);
  add_access(app, out.options.access);
  add_use(app, out.use, out.json);
  add_json(app, out.json);
}

void add_demo(CLI::App& app, demo_arguments& out) {
  add_device(app, "--device", "auto (default), host, an ordinal or a UUID", out.device);
  add_device(app,
             "--consumer-device",
             "GPU that the consumers use (default: the same GPU)",
             out.consumer_device);
  add_size(app,
           "--size",
           "Size of the segment (default: 1GiB, less if little is free)",
           [&](std::uint64_t value) { out.size_bytes = value; });
  add_duration(app,
               "--timeout",
               "Time limit of the whole demo (default: depends on the size)",
               [&](auto value) { out.timeout = value; });
  app.add_flag("--isolated",
               out.isolated,
               "Run each process in separate namespaces with an unprivileged uid");
  app.add_flag(
      "--channel", out.channel, "Show a channel; --size is that of a slot (default: 1MiB)");
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
    "One process creates a named segment of GPU or host memory; other processes open it by name.\n";
constexpr const char* footer =
    "Example:\n"
    "  export GPUSHM_SOCKET=/tmp/gpushm.socket\n"
    "  gpushm serve &\n"
    "  gpushm create hello --size 64MiB --fill 42 --lifetime persistent\n"
    "  gpushm open hello --checksum\n"
    "A complete demonstration: gpushm demo\n\n"
    "Exit status: 0 success, 1 the operation failed, 2 wrong usage.";

int print_usage_error(const usage_problem& problem) {
  note(problem.text);
  note(fmt::format("see: {} --help", problem.command));
  return exit_usage;
}

void add_run(CLI::App& app, run_arguments& out) {
  const auto program = std::make_shared<std::string>();
  app.add_option("PROGRAM", *program, "The program; its arguments follow, best after \"--\"")
      ->required()
      ->type_name("");
  auto* const domain =
      app.add_option("--domain", out.domain, "The domain to use, if several are mounted")
          ->type_name("NAME");
  app.add_option("--socket", out.socket, "The socket of its broker")
      ->type_name("PATH")
      ->excludes(domain);
  app.add_option(
         "--libraries",
         out.libraries,
         "Directory of libgpushm-ipc.so and libgpushm.so.1 (default: ../lib/gpushm/ipc from "
         "this program)")
      ->type_name("DIR");
  // Arguments of the program: in "remaining", even if they look like options.
  app.prefix_command();
  app.parse_complete_callback([&app, &out, program] {
    const std::vector<std::string> rest = app.remaining();
    const bool separated = !rest.empty() && rest.front() == "--";
    out.words = {*program};
    out.words.insert(out.words.end(), rest.begin() + (separated ? 1 : 0), rest.end());
  });
}

template <typename Arguments>
std::function<int()> bind(int (*run)(const Arguments&), const Arguments& arguments) {
  return [run, arguments] { return run(arguments); };
}

// All commands that `parse` adds. A missing name only costs time.
bool is_command(std::string_view name) {
  constexpr auto names = std::to_array<std::string_view>(
      {"serve",        "load",       "create",    "open",         "ls",
       "stat",         "rm",         "wait",      "release",      "export",
       "import",       "demo",       "demo-role", "run",          "doctor",
       "explain",      "topo",       "cdi",       "channel",      "quotas",
       "lost-gpu",     "k8s",        "matrix",    "probe-driver", "measure-worker",
       "trial-worker", "trial-side", "version",   "help"});
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Hidden commands that print what `root` declares; empty if `words` names none of them.
std::function<int()> table_command(const CLI::App& root, const std::vector<std::string>& words) {
  const std::string_view name = words.empty() ? std::string_view() : words.front();
  if (name == "complete" && words.size() > 1 && words[1] == "--") {
    return [table = command_table(root),
            rest = std::vector<std::string>(words.begin() + 2, words.end())] {
      print(completions(table, rest));
      return exit_ok;
    };
  }
  if (words.size() == 1 && (name == "command-table" || name == "man-page")) {
    return [text = name == "man-page" ? man_page(command_table(root))
                                      : command_table_text(command_table(root))] {
      print(text);
      return exit_ok;
    };
  }
  return nullptr;
}

}  // namespace

request parse(int argc, char** argv) {
  CLI::App root(about, "gpushm");
  root.get_formatter()->column_width(34);
  root.footer(footer);
  root.set_version_flag("--version", std::string("gpushm ") + GPUSHM_VERSION);
  root.require_subcommand(1);
  all_arguments all;
  request result;
  // Adding all commands takes longer than most of them run, so only the named one is added. Help
  // and unknown names need all of them.
  const std::vector<std::string> words = command_words(argc, argv);
  const std::string_view named = words.empty() ? std::string_view() : words.front();
  const auto is_needed = [&, known = is_command(named)](std::string_view name) {
    return !known || name == named;
  };
  const auto command = [&](const char* name,
                           const char* description,
                           auto add,
                           auto run,
                           auto& arguments,
                           const bool& json) {
    if (!is_needed(name)) {
      return;
    }
    CLI::App* app = root.add_subcommand(name, description);
    app->footer("");
    add(*app, arguments);
    app->callback([&result, &arguments, &json, run] {
      result.run = bind(run, arguments);
      result.json = json;
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
  command("load",
          "Load model weights into a segment, once for all who ask",
          add_load,
          run_load,
          all.load,
          all.load.connection.json);
  command("open",
          "Open a segment; checksum or save its bytes",
          add_open,
          run_open,
          all.open,
          all.open.connection.json);
  command(
      "ls",
      "List segments",
      [](CLI::App& app, list_arguments& out) {
        app.add_option("PREFIX", out.prefix, "List only names with this prefix")->type_name("");
        app.add_flag("-q,--names", out.names_only, "Print only the names, one per line");
        app.add_flag("-a,--all", out.all, "List the library's own segments, too (NAME/~…)");
        app.add_flag("--ipc", out.ipc, "List processes that export to unchanged programs");
        auto* const by =
            add_choice(app,
                       "--by",
                       "For operators of gpushm-brokerd: by pod, container or uid, with ages and "
                       "who has them open",
                       out.by_principal,
                       {{"principal", true}});
        for (CLI::Option* const each : add_node(app, out.node)) {
          each->needs(by);
        }
        add_connection(app, out.connection);
      },
      run_list,
      all.list,
      all.list.connection.json);
  command(
      "stat",
      "Show the broker's information about a segment or a timeline",
      [](CLI::App& app, stat_arguments& out) {
        auto* const name = app.add_option("NAME", out.name, "Name of the segment")->type_name("");
        auto* const node =
            app.add_flag("--broker",
                         out.broker,
                         "For operators, in place of NAME: gpushm-brokerd, its budgets beside "
                         "their limits, and who uses them")
                ->excludes(name);
        out.node.domain.clear();
        for (CLI::Option* const each : add_node(app, out.node)) {
          each->needs(node);
        }
        add_connection(app, out.connection);
      },
      run_stat,
      all.stat,
      all.stat.connection.json);
  command(
      "rm",
      "Remove segments; processes that have one open keep the memory",
      [](CLI::App& app, remove_arguments& out) {
        auto* const names = app.add_option("NAME", out.names, "Names of segments")->type_name("");
        auto* const unheld =
            app.add_flag("--unheld",
                         out.unheld,
                         "For operators of gpushm-brokerd: persistent segments that no process "
                         "has open, and that none opens meanwhile")
                ->excludes(names);
        app.add_option(
               "--principal", out.principal, "Only those of this one in `ls --by principal`")
            ->needs(unheld)
            ->type_name("TEXT");
        app.add_flag("--dry-run", out.dry_run, "Only show what would be removed")->needs(unheld);
        for (CLI::Option* const each : add_node(app, out.node)) {
          each->needs(unheld);
        }
        add_connection(app, out.connection);
      },
      run_remove,
      all.remove,
      all.remove.connection.json);
  command(
      "release",
      "End leases that wait for the end of a process that did not disconnect cleanly",
      [](CLI::App& app, release_arguments& out) {
        app.add_option("NAME", out.names, "Names of segments")->required()->type_name("");
        app.add_flag("--unfenced",
                     out.unfenced,
                     "Required: only you guarantee that the process no longer writes them")
            ->required();
        add_connection(app, out.connection);
      },
      run_release,
      all.release,
      all.release.connection.json);
  command(
      "wait",
      "Wait until a segment is published or removed",
      [](CLI::App& app, wait_arguments& out) {
        app.add_option("NAME", out.name, "Name of the segment")->required()->type_name("");
        add_duration(app, "--timeout", "How long to wait (default: 30s)", [&](auto value) {
          out.timeout = value;
        });
        app.add_flag("--removed", out.removed, "Wait until no such segment exists");
        add_connection(app, out.connection);
      },
      run_wait,
      all.wait,
      all.wait.connection.json);
  command(
      "quotas",
      "Show what the members of a domain of gpushm-brokerd use, and set quotas",
      [](CLI::App& app, quotas_arguments& out) {
        app.add_option("--domain", out.domain, "Name of the domain (default: default)")
            ->type_name("NAME");
        app.add_option("--set", out.set, "File of rules that replace those of the node first")
            ->type_name("FILE");
        add_run_dir(app, out.run_dir);
        add_json(app, out.json);
      },
      run_quotas,
      all.quotas,
      all.quotas.json);
  command(
      "lost-gpu",
      "Report that the memory on a GPU is gone: its segments in all domains of gpushm-brokerd end",
      [](CLI::App& app, lost_gpu_arguments& out) {
        app.add_option("UUID", out.uuid, "UUID of the GPU or MIG instance")
            ->required()
            ->type_name("");
        app.add_option(
               "--pci-address", out.pci_address, "Of the GPU: its MIG instances are lost, too")
            ->type_name("ADDRESS");
        add_run_dir(app, out.run_dir);
        add_json(app, out.json);
      },
      run_lost_gpu,
      all.lost_gpu,
      all.lost_gpu.json);
  command("export",
          "Allocate memory and share it through a file",
          add_export,
          run_export,
          all.exported,
          all.exported.json);
  command("import",
          "Map the memory that a file refers to; checksum or save its bytes",
          add_import,
          run_import,
          all.imported,
          all.imported.json);
  command("demo",
          "Share a segment, or a channel, between separate processes, which check every byte",
          add_demo,
          run_demo,
          all.demo,
          all.demo.json);
  command("run",
          "Run a program whose CUDA IPC then works between containers",
          add_run,
          run_run,
          all.run,
          never);
  command("demo-role", "", add_demo_role, run_demo_role, all.role, never);
  command("doctor",
          "Check whether sharing works on this machine, and suggest fixes",
          add_doctor,
          run_doctor,
          all.doctor,
          all.doctor.json);
  command("explain",
          "Explain an error, how to confirm its cause and how to fix it",
          add_explain,
          run_explain,
          all.explain,
          all.explain.json);
  command(
      "topo", "Show the GPUs and their connections", add_topo, run_topo, all.topo, all.topo.json);
  if (is_needed("channel")) {
    add_channel(root, result);
  }
  if (is_needed("cdi")) {
    add_cdi(root, result, words.size() > 1 ? words[1] : "");
  }
  if (is_needed("k8s")) {
    add_k8s(root, result);
  }
  command("matrix",
          "Test every way of sharing between real containers in every setting",
          add_matrix,
          run_matrix,
          all.matrix,
          all.matrix.json);
  command("probe-driver", "", add_probe_driver, run_probe_driver, all.probe_driver, never);
  command("measure-worker", "", add_measure_worker, run_measure_worker, all.measure_worker, never);
  command("trial-worker", "", add_trial_worker, run_trial_worker, all.trial_worker, never);
  command("trial-side", "", add_trial_side, run_trial_side, all.trial_side, never);
  if (is_needed("help")) {  // `command_words` writes it as COMMAND --help
    CLI::App* const help = root.add_subcommand("help", "Show the help of a command");
    help->footer("");
    help->add_option("COMMAND", "Name of the command")->type_name("");
  }
  command(
      "version",
      "Print the version",
      [](CLI::App& app, version_arguments& out) { add_json(app, out.json); },
      run_version,
      all.version,
      all.version.json);
  if (auto print_table = table_command(root, words)) {
    result.run = std::move(print_table);
    return result;
  }
  if (const auto unknown = find_unknown_command(root, words)) {
    result.status = print_usage_error(*unknown);
    return result;
  }
  try {
    root.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // from the last one
  } catch (const CLI::Success& shown) {                                  // help or version
    result.status = root.exit(shown);
    result.run = nullptr;
  } catch (const CLI::ParseError& failure) {
    result.run = nullptr;
    if (words.empty()) {
      print(root.help());
      result.status = exit_usage;
    } else {
      result.status = print_usage_error(describe_usage_error(root, failure));
    }
  }
  return result;
}

}  // namespace gpushm::cli
