// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

namespace gpushm::inspect {

/// The only environment variables that are read.
inline constexpr std::array known_variables{"CUDA_VISIBLE_DEVICES",
                                            "CUDA_DEVICE_ORDER",
                                            "CUDA_DEVICE_MAX_CONNECTIONS",
                                            "CUDA_MPS_PIPE_DIRECTORY",
                                            "NVIDIA_VISIBLE_DEVICES",
                                            "NVIDIA_DRIVER_CAPABILITIES",
                                            "NVIDIA_DISABLE_REQUIRE",
                                            "LD_LIBRARY_PATH",
                                            "PYTORCH_CUDA_ALLOC_CONF",
                                            "NCCL_P2P_DISABLE",
                                            "VIRTUAL_ENV",
                                            "GPUSHM_SOCKET",
                                            "KUBERNETES_SERVICE_HOST",
                                            "HOSTNAME",
                                            "container"};

}  // namespace gpushm::inspect
