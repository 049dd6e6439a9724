# SPDX-License-Identifier: Apache-2.0
# The half that finds plugins in plugins_registry and calls DRA drivers.
add_library(gpushm_testing_dra_kubelet STATIC dra_calls.cpp dra_kubelet.cpp dra_plugin.cpp)
target_include_directories(gpushm_testing_dra_kubelet PUBLIC "${PROJECT_SOURCE_DIR}/testing")
target_link_libraries(gpushm_testing_dra_kubelet PUBLIC gpushm_flags gpushm_kubelet_messages)
