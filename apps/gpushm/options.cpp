// SPDX-License-Identifier: Apache-2.0
#include "apps/gpushm/options.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "apps/gpushm/output.hpp"
#include "apps/support/duration.hpp"
#include "base/text/size_text.hpp"

namespace gpushm::cli {

void refuse(const std::string& option, const std::string& text, const std::string& expected) {
  throw CLI::ValidationError(option, fmt::format("\"{}\" is not {}", text, expected));
}

CLI::Option* add_text(CLI::App& app,
                      const std::string& option,
                      const std::string& type,
                      const std::string& description,
                      const std::function<void(const std::string&)>& set) {
  return app.add_option_function<std::string>(option, set, description)->type_name(type);
}

CLI::Option* add_texts(CLI::App& app,
                       const std::string& option,
                       const std::string& type,
                       const std::string& description,
                       const std::function<void(const std::string&)>& add) {
  const auto add_all = [add](const std::vector<std::string>& texts) {
    for (const std::string& each : texts) {
      add(each);
    }
    return true;
  };
  // Not a vector: CLI11 reads "{}" as an empty one, and "[a,b]" as two texts unless further
  // arguments are another option's. These are patterns.
  return app.add_option(option, CLI::callback_t(add_all), description)
      ->type_name(type)
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

CLI::Option* add_size(CLI::App& app,
                      const std::string& option,
                      const std::string& description,
                      const std::function<void(std::uint64_t)>& set) {
  return add_text(app, option, "SIZE", description, [option, set](const std::string& text) {
    const auto value = base::parse_size(text);
    if (!value) {
      refuse(option, text, "a size such as 4096, 64MiB or 1.5GiB (64MB is 64 million bytes)");
    }
    set(*value);
  });
}

CLI::Option* add_duration(CLI::App& app,
                          const std::string& option,
                          const std::string& description,
                          const std::function<void(std::chrono::milliseconds)>& set) {
  return add_text(app, option, "TIME", description, [option, set](const std::string& text) {
    const auto value = app::parse_duration(text);
    if (!value) {
      refuse(option, text, "a duration such as 500ms, 10s or 2m");
    }
    set(*value);
  });
}

CLI::Option* add_device(CLI::App& app,
                        const std::string& option,
                        const std::string& description,
                        std::string& target) {
  return add_text(app, option, "DEVICE", description, [option, &target](const std::string& text) {
    if (text.empty()) {
      refuse(option,
             text,
             "a device such as host, 0, cuda:1, GPU-<uuid> or MIG-<uuid> (leave the option out for "
             "the default)");
    }
    target = text;
  });
}

void add_count(CLI::App& app,
               const std::string& option,
               const std::string& description,
               std::uint32_t& target) {
  add_text(app, option, "N", description, [option, &target](const std::string& text) {
    constexpr std::uint32_t max_count = 16'777'216;
    constexpr const char* expected = "a number from 1 to 16777216";
    const auto value = parse_number<std::uint32_t>(option, text, 10, expected);
    if (value == 0 || value > max_count) {
      refuse(option, text, expected);
    }
    target = value;
  });
}

void add_json(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "Print each document as one line of JSON (docs/cli.md)");
}

std::array<CLI::Option*, 2> add_node(CLI::App& app, node_arguments& node) {
  auto* const domain =
      app.add_option("--domain",
                     node.domain,
                     node.domain.empty() ? "Domain of gpushm-brokerd (default: all)"
                                         : "Domain of gpushm-brokerd (default: default)")
          ->type_name("NAME");
  return {domain, add_run_dir(app, node.run_dir)};
}

CLI::Option* add_run_dir(CLI::App& app, std::string& run_dir) {
  return app.add_option("--run-dir", run_dir, "That of gpushm-brokerd (default: /run/gpushm)")
      ->type_name("DIR");
}

void add_connection(CLI::App& app, connection_arguments& connection) {
  app.add_option(
         "--socket",
         connection.socket,
         "The broker's socket (else $GPUSHM_SOCKET, /run/gpushm/d/…, $XDG_RUNTIME_DIR/gpushm/d/…)")
      ->type_name("PATH");
  add_duration(app, "--connect-timeout", "How long to wait for a broker to start", [&](auto value) {
    connection.connect_timeout = value;
  });
  add_json(app, connection.json);
}

CLI::Option* add_fill(CLI::App& app, std::optional<std::uint8_t>& target) {
  return add_text(app,
                  "--fill",
                  "BYTE",
                  "Set every byte to this value, 0 to 255 or 0x00 to 0xff",
                  [&target](const std::string& text) {
                    const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
                    constexpr const char* expected = "a byte, 0 to 255 or 0x00 to 0xff";
                    target =
                        parse_number<std::uint8_t>("--fill", text, hexadecimal ? 16 : 10, expected);
                  });
}

void add_mode(CLI::App& app,
              const std::string& option,
              const std::string& description,
              const std::function<void(mode_t)>& set) {
  add_text(app, option, "OCTAL", description, [option, set](const std::string& text) {
    constexpr const char* expected = "a file mode in octal, such as 0660";
    const auto mode = parse_number<mode_t>(option, text, 8, expected);
    if (mode > 0777) {
      refuse(option, text, expected);
    }
    set(mode);
  });
}

void add_access(CLI::App& app, access& target) {
  add_choice(
      app,
      "--access",
      "How to map it (default: read)",
      target,
      {{"read", access::read}, {"rw", access::read_write}, {"read-write", access::read_write}});
}

void add_out(CLI::App& app, const std::string& description, std::string& out, const bool& json) {
  app.add_option("--out", out, description + "; -: to standard output, and text to standard error")
      ->type_name("FILE");
  app.parse_complete_callback([&out, &json] {
    if (out == standard_output && json) {
      throw CLI::ValidationError(
          "--json cannot be combined with --out -: both are for standard "
          "output");
    }
  });
}

void add_use(CLI::App& app, use_arguments& out, const bool& json) {
  app.add_flag("--checksum", out.checksum, "Print the CRC-32C of its bytes");
  add_out(app, "Write its bytes to this file", out.out, json);
  app.add_flag("--hold", out.hold, "Keep it open until SIGINT or SIGTERM");
}

}  // namespace gpushm::cli
