// SPDX-License-Identifier: Apache-2.0
#include "inspect/doctor/predict.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "gpu/driver/cuda.hpp"
#include "gpushm/error.hpp"

namespace gpushm::inspect {

namespace {

constexpr std::string_view same_gpus =
    "give both sides this GPU: one ResourceClaim used by both pods, a CDI device or --gpus on both "
    "containers";

bool may_open(const party& side, int gpu) {
  return !side.known_minors ||
         std::find(side.minors.begin(), side.minors.end(), gpu) != side.minors.end();
}

std::string node_of(int gpu) {
  return fmt::format("/dev/nvidia{}", gpu);
}

/// Equal PIDs collide even across namespaces; within one namespace they are the same process.
bool pids_collide(const party& exporter, const party& importer) {
  return exporter.pid == importer.pid;
}

prediction not_exportable_here(way sharing_way, int gpu, bool any_gpu) {
  prediction result;
  const auto code = any_gpu ? cuda::CUDA_ERROR_INVALID_DEVICE : cuda::CUDA_ERROR_NO_DEVICE;
  result.driver_failure = driver::result_text(code);
  result.failure = is_raw(sharing_way) ? result.driver_failure
                   : any_gpu           ? std::string(to_string(errc::device_not_found))
                                       : std::string(to_string(errc::driver_unavailable));
  result.why = fmt::format(
      "the exporter may not open {}, so CUDA does not list that GPU and there is nothing to export",
      node_of(gpu));
  result.remedy = "give the exporter this GPU";
  return result;
}

/// The driver's error for an importer that may not open the node (docs/security-matrix.md); the
/// driver detects a PID collision first.
std::string driver_failure_when_hidden(way sharing_way, bool collide) {
  switch (sharing_way) {
    case way::raw_legacy:
    case way::legacy:
      return driver::result_text(collide ? cuda::CUDA_ERROR_INVALID_CONTEXT
                                         : cuda::CUDA_ERROR_INVALID_VALUE);
    case way::unmodified:  // the PIDs no longer collide
    case way::unmodified_event:
      return driver::result_text(cuda::CUDA_ERROR_INVALID_VALUE);
    case way::vmm:
    case way::unmodified_descriptor:
      return driver::result_text(cuda::CUDA_ERROR_INVALID_DEVICE);
    case way::pool:
      return "killed by signal 11 (Segmentation fault)";
    case way::host:
      break;
  }
  return {};
}

prediction hidden_from_importer(way sharing_way, const party& importer, int gpu, bool collide) {
  prediction result;
  result.driver_failure = importer.minors.empty()
                              ? driver::result_text(cuda::CUDA_ERROR_NO_DEVICE)
                              : driver_failure_when_hidden(sharing_way, collide);
  if (is_raw(sharing_way)) {
    result.failure = result.driver_failure;
    result.why =
        collide && sharing_way == way::raw_legacy
            ? fmt::format(
                  "both processes have PID {} in their namespaces, which the driver treats as one "
                  "process; and the importer may not open {}",
                  importer.pid,
                  node_of(gpu))
            : fmt::format(
                  "the importer may not open {}, the exporting GPU; \"privileged\" helps only "
                  "because it opens every GPU's node",
                  node_of(gpu));
  } else {
    result.failure = to_string(errc::device_not_visible);
    result.why = fmt::format(
        "the importer may not open {}, the exporting GPU; gpushm reports this before calling the "
        "driver",
        node_of(gpu));
  }
  result.remedy = same_gpus;
  return result;
}

}  // namespace

std::string_view to_string(way value) noexcept {
  switch (value) {
    case way::raw_legacy:
      return "raw-legacy";
    case way::legacy:
      return "cuda-ipc";
    case way::vmm:
      return "cuda-vmm";
    case way::pool:
      return "cuda-pool";
    case way::host:
      return "host";
    case way::unmodified:
      return "unmodified";
    case way::unmodified_event:
      return "unmodified-event";
    case way::unmodified_descriptor:
      return "unmodified-fd";
  }
  return "unknown";
}

std::optional<way> parse_way(std::string_view text) noexcept {
  for (const way each : all_ways) {
    if (to_string(each) == text) {
      return each;
    }
  }
  for (const way each : ipc_ways) {
    if (to_string(each) == text) {
      return each;
    }
  }
  return std::nullopt;
}

prediction predict(way sharing_way, const party& exporter, const party& importer, int gpu) {
  prediction result;
  if (sharing_way == way::host) {
    result.works = true;
    result.why =
        "host memory is shared as a descriptor: both sides need the domain's socket, no GPU";
    return result;
  }
  if (!may_open(exporter, gpu)) {
    return not_exportable_here(sharing_way, gpu, !exporter.minors.empty());
  }
  const bool collide = pids_collide(exporter, importer);
  if (!may_open(importer, gpu)) {
    return hidden_from_importer(sharing_way, importer, gpu, collide);
  }
  if (collide && (sharing_way == way::raw_legacy || sharing_way == way::legacy)) {
    result.driver_failure = driver::result_text(cuda::CUDA_ERROR_INVALID_CONTEXT);
  }
  if (collide && sharing_way == way::raw_legacy) {
    result.failure = result.driver_failure;
    result.why = fmt::format(
        "both processes have PID {} in their namespaces: the driver treats the handle as one of "
        "the importer's own",
        importer.pid);
    result.remedy =
        "preload libgpushm-ipc.so (the CDI device gpushm.dev/ipc, or gpushm run), or open it "
        "through "
        "gpushm (client::share and open, or tickets); hostPID and shareProcessNamespace only make "
        "the PIDs differ";
    return result;
  }
  result.works = true;
  switch (sharing_way) {
    case way::raw_legacy:
      result.why = "the importer may open the GPU, and the two PIDs differ in value";
      break;
    case way::legacy:
      result.why = collide ? "gpushm rewrites the PID in the handle that equals the importer's"
                           : "the importer may open the GPU";
      break;
    case way::unmodified:
      result.why =
          collide ? "libgpushm-ipc.so rewrites the PID in the handle that equals the importer's"
                  : "the importer may open the GPU, and the two PIDs differ in value";
      break;
    case way::unmodified_event:
      result.why =
          "as for memory, and the broker hands the file of the driver's events to the importer";
      break;
    case way::unmodified_descriptor:
      result.why =
          "the importer may open the GPU, and the broker has the descriptor under the number that "
          "the program sent";
      break;
    default:
      result.why = "descriptors contain no PID; the importer may open the GPU";
      break;
  }
  return result;
}

}  // namespace gpushm::inspect
