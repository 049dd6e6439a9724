// SPDX-License-Identifier: Apache-2.0
#include "containers/discover/gpus/generate.hpp"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "base/files/file.hpp"
#include "base/text/text.hpp"
#include "containers/cdi/document/write.hpp"
#include "containers/discover/driver_files/driver_files.hpp"
#include "containers/discover/driver_files/hooks.hpp"
#include "containers/discover/gpus/drm_gpus.hpp"
#include "containers/discover/gpus/nodes.hpp"
#include "gpushm/error.hpp"

namespace gpushm::discover {

namespace {

// mig-minors has about 3 KiB for each of 32 possible GPUs.
constexpr std::size_t max_proc_bytes = std::size_t{256} << 10U;

std::string text_of_file(const std::string& path) {
  return base::read_small_file(path, max_proc_bytes).value_or(std::string());
}

std::string dev_root_of(const generate_options& options, const root_view& root) {
  if (!options.dev_root.empty()) {
    return options.dev_root;
  }
  struct stat about {};
  const bool own = ::stat(root.outside("/dev").c_str(), &about) == 0 && S_ISDIR(about.st_mode);
  return own ? root.text() : "/";
}

installed_driver find_driver(const root_view& root, const generate_options& options) {
  driver_places places;
  places.search_paths = options.library_search_paths;
  places.ld_cache_path = options.ldcache_path;
  places.kernel_version = kernel_module_version(
      text_of_file(std::string(options.proc_root).append("/driver/nvidia/version")));
  return find_driver(root, places);
}

std::string name_of_board(name_strategy strategy, const gpu_entry& gpu) {
  if (strategy == name_strategy::uuid) {
    return gpu.uuid;
  }
  return std::string(strategy == name_strategy::type_index ? "gpu" : "")
      .append(std::to_string(gpu.index));
}

std::string name_of_instance(name_strategy strategy, const gpu_entry& gpu, const mig_entry& mig) {
  if (strategy == name_strategy::uuid) {
    return mig.uuid;
  }
  return fmt::format(
      "{}{}:{}", strategy == name_strategy::type_index ? "mig" : "", gpu.index, mig.index);
}

template <typename Value>
void add_new(std::vector<Value>& values, const std::vector<Value>& added) {
  for (const Value& each : added) {
    if (std::find(values.begin(), values.end(), each) == values.end()) {
      values.push_back(each);
    }
  }
}

/// Builds a document part by part.
class document_maker {
 public:
  document_maker(const generate_options& options, const root_view& root)
      : options_(options),
        root_(root),
        nodes_(dev_root_of(options, root_),
               options.sys_root,
               parse_mig_minors(text_of_file(
                   std::string(options.proc_root).append("/driver/nvidia-caps/mig-minors")))),
        hooks_(options.hook_path, options.disabled_hooks) {}

  void add_left_out(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      all_.incomplete.push_back(std::string("left out: ").append(line));
    }
  }

  void add_driver(const installed_driver& driver) {
    result_.found.push_back(std::string("driver ").append(driver.version));
    for (const std::string& other : driver.others) {
      result_.incomplete.push_back(
          fmt::format("also found libcuda {}, which is not the described version", other));
    }
    note_kernel(driver.version);
    cdi::edits& edits = result_.content.changes;
    edits = nodes_.common(text_of_file(std::string(options_.proc_root).append("/devices")), all_);
    edits.env.emplace_back("NVIDIA_VISIBLE_DEVICES=void");
    std::string directories = "NVIDIA_CTK_LIBCUDA_DIR=";
    for (std::size_t i = 0; i < driver.directories.size(); ++i) {
      directories.append(i == 0 ? "" : ":").append(driver.directories[i]);
    }
    edits.env.push_back(std::move(directories));
    std::vector<std::string> folders;
    take(find_libraries(root_, driver, folders));
    take(find_configurations(root_));
    take(find_firmware(
        root_,
        driver,
        base::trim(text_of_file(
            std::string(options_.sys_root).append("/module/firmware_class/parameters/path")))));
    take(find_programs(root_));
    take(find_sockets(root_));
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread sets variables
    const char* pipes = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
    take(find_mps(root_,
                  pipes != nullptr && *pipes == '/' ? pipes : default_mps_directory,
                  options_.proc_root));
    hooks_.add_each(edits, "create-symlinks", "--link", all_.links);
    hooks_.add(edits,
               "enable-cuda-compat",
               {std::string("--host-driver-version=").append(driver.version)});
    hooks_.add_each(edits, "update-ldcache", "--folder", folders);
    hooks_.add(edits, "disable-device-node-modification", {});
  }

  void add_board(const gpu_entry& gpu) {
    if (gpu.mig_enabled) {
      add_instances(gpu);
      return;
    }
    auto edits = nodes_.whole_gpu(gpu, all_);
    if (!edits) {
      return;
    }
    hooks_.add_each(*edits, "create-symlinks", "--link", nodes_.by_path_links(gpu, *edits));
    ++gpu_count_;
    for (const name_strategy strategy : options_.strategies) {
      add_device(name_of_board(strategy, gpu), *edits);
    }
    merge(*edits);
  }

  generated take() && {
    if (result_.content.devices.empty()) {
      throw error(
          errc::device_not_found,
          "describe the GPUs",
          {},
          all_.incomplete.empty() ? std::string("NVML reports no GPU") : all_.incomplete.front(),
          "check that nvidia-smi works on this machine, and that --dev-root is the prefix of "
          "/dev");
    }
    if (options_.all_device) {
      add_device("all", merged_);
    }
    std::vector<std::string> counts;
    if (gpu_count_ > 0) {
      counts.push_back(count_text(gpu_count_, "GPU", "GPUs"));
    }
    if (instance_count_ > 0) {
      counts.push_back(count_text(instance_count_, "MIG instance", "MIG instances"));
    }
    result_.found.insert(result_.found.begin(), list_text(counts));
    add_new(result_.found, all_.found);
    add_new(result_.missing, all_.missing);
    add_new(result_.incomplete, all_.incomplete);
    result_.missing_control_nodes = all_.missing_control_nodes;
    result_.content.kind = fmt::format("{}/{}", options_.vendor, options_.device_class);
    result_.content.version = cdi::minimum_version(result_.content);
    return std::move(result_);
  }

 private:
  void note_kernel(const std::string& version) {
    const std::string loaded = kernel_module_version(
        text_of_file(std::string(options_.proc_root).append("/driver/nvidia/version")));
    if (!loaded.empty() && loaded != version) {
      result_.incomplete.push_back(
          fmt::format("the libraries are from driver {}, the loaded kernel module is from {}: CUDA "
                      "does not start until they match (reboot)",
                      version,
                      loaded));
    }
  }

  void take(const findings& part) {
    add_new(result_.content.changes.mounts, part.mounts);
    add_new(all_.links, part.links);
    add_new(all_.found, part.found);
    for (const missing_items& absent : part.missing) {
      const auto known =
          std::find_if(all_.missing.begin(), all_.missing.end(), [&](const missing_items& each) {
            return each.kind == absent.kind;
          });
      if (known == all_.missing.end()) {
        all_.missing.push_back(absent);
      } else {
        add_new(known->names, absent.names);
      }
    }
    add_new(all_.incomplete, part.incomplete);
  }

  void add_instances(const gpu_entry& gpu) {
    if (gpu.instances.empty()) {
      all_.incomplete.push_back(fmt::format(
          "GPU {} ({}) is left out: MIG is enabled, but it has no instances", gpu.index, gpu.uuid));
    }
    for (const mig_entry& mig : gpu.instances) {
      const auto edits = nodes_.instance(gpu, mig, all_);
      if (!edits) {
        continue;
      }
      ++instance_count_;
      for (const name_strategy strategy : options_.strategies) {
        add_device(name_of_instance(strategy, gpu, mig), *edits);
      }
      merge(*edits);
    }
  }

  void add_device(std::string name, const cdi::edits& edits) {
    result_.content.devices.push_back({std::move(name), {}, edits});
  }

  void merge(const cdi::edits& edits) {
    add_new(merged_.device_nodes, edits.device_nodes);
    add_new(merged_.hooks, edits.hooks);
    add_new(merged_.additional_gids, edits.additional_gids);
  }

  const generate_options& options_;
  const root_view& root_;
  node_finder nodes_;
  hook_maker hooks_;
  findings all_;
  generated result_;
  cdi::edits merged_;  ///< of all devices
  std::size_t gpu_count_ = 0;
  std::size_t instance_count_ = 0;
};

// As `select_devices`; an error also names the devices that did not answer.
std::vector<gpu_entry> select_devices(const std::vector<gpu_entry>& gpus,
                                      const std::vector<std::string>& ids,
                                      const std::vector<std::string>& left_out) {
  try {
    return discover::select_devices(gpus, ids);
  } catch (const error& failure) {
    if (left_out.empty()) {
      throw;
    }
    throw error(failure.code(),
                failure.operation(),
                failure.object(),
                fmt::format("{}; left out: {}", failure.cause(), list_text(left_out)),
                failure.next_step());
  }
}

generated describe(const generate_options& options,
                   const root_view& root,
                   const installed_driver& driver,
                   const std::vector<gpu_entry>& gpus,
                   const std::vector<std::string>& left_out) {
  document_maker maker(options, root);
  maker.add_left_out(left_out);
  maker.add_driver(driver);
  for (const gpu_entry& gpu : select_devices(gpus, options.device_ids, left_out)) {
    maker.add_board(gpu);
  }
  return std::move(maker).take();
}

std::string nvml_of(const root_view& root, const installed_driver& driver) {
  const auto found = root.resolve(join(driver.directories.front(), "libnvidia-ml.so.1"));
  return found ? root.outside(*found) : std::string();
}

}  // namespace

std::string find_dev_root(const generate_options& options) {
  return dev_root_of(options, root_view(options.driver_root));
}

std::string find_nvml(const generate_options& options) {
  try {
    const root_view root(options.driver_root);
    return nvml_of(root, find_driver(root, options));
  } catch (const error&) {
    return {};
  }
}

generated generate(const generate_options& options, const std::vector<gpu_entry>& gpus) {
  const root_view root(options.driver_root);
  return describe(options, root, find_driver(root, options), gpus, {});
}

generated generate(const generate_options& options) {
  if (options.source != gpu_vendor::nvidia) {
    return generate_drm(options);
  }
  const root_view root(options.driver_root);
  const installed_driver driver = find_driver(root, options);
  std::vector<std::string> left_out;
  const auto gpus = query_nvml(nvml_of(root, driver), &left_out);
  return describe(options, root, driver, gpus, left_out);
}

}  // namespace gpushm::discover
