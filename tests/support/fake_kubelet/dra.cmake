# SPDX-License-Identifier: Apache-2.0
# The part that finds plugins in plugins_registry and calls DRA drivers.
add_library(gpushm_testing_dra_kubelet STATIC dra_calls.cpp dra_kubelet.cpp dra_plugin.cpp)
target_link_libraries(gpushm_testing_dra_kubelet PUBLIC gpushm_test_code gpushm_kubelet_messages)
