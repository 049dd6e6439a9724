# SPDX-License-Identifier: Apache-2.0
# The client of the Kubernetes API, against the fake server and against servers that misbehave.
find_package(nlohmann_json REQUIRED)
gpushm_test(gpushm_rest_test LABEL process
  SOURCES rest_access_test.cpp rest_client_test.cpp rest_collection_test.cpp rest_hostile_test.cpp rest_tls_test.cpp
          rest_watch_test.cpp
  MODULES kubelet_rest
  LIBRARIES gpushm_fake_kube_api gpushm_testing_process nlohmann_json::nlohmann_json)
gpushm_test(gpushm_fake_kube_api_test LABEL process
  SOURCES fake_kube_api_test.cpp
  MODULES kubelet_rest
  LIBRARIES gpushm_fake_kube_api gpushm_testing_process nlohmann_json::nlohmann_json)
add_dependencies(gpushm_fake_kube_api_test fake-kube-api)
