# SPDX-License-Identifier: Apache-2.0
# The test kit (scripts/dist.sh): bin/ contains every program of apps, tests and bench, lib/fake/ the shared libraries of
# tests (fake driver libraries, opened by name at run time). Targets need not be registered; the target property
# GPUSHM_NO_DIST excludes one. The target `dist-programs` builds exactly the contents of the test kit, and what is installed, of
# which the product's tarball consists.
include_guard(GLOBAL)

# What uses gRPC or the benchmark library needs the distribution's libraries, which are packed.
function(gpushm_floor_of_dist target)
  get_target_property(options ${target} LINK_OPTIONS)
  gpushm_needs_distribution(${target} needs)
  if(NOT needs AND NOT "${options}" MATCHES "-static(-pie)?($|;)")
    gpushm_floor(${target})
  endif()
endfunction()

function(gpushm_dist)
  set(packed "")
  get_property(folders DIRECTORY "${PROJECT_SOURCE_DIR}" PROPERTY SUBDIRECTORIES)
  foreach(folder apps tests bench)
    if(NOT "${PROJECT_SOURCE_DIR}/${folder}" IN_LIST folders)
      continue()
    endif()
    gpushm_targets_below("${PROJECT_SOURCE_DIR}/${folder}" targets)
    foreach(target IN LISTS targets)
      get_target_property(type ${target} TYPE)
      get_target_property(left_out ${target} GPUSHM_NO_DIST)
      if(left_out)
        continue()
      endif()
      if(type STREQUAL "EXECUTABLE")
        install(TARGETS ${target} COMPONENT dist EXCLUDE_FROM_ALL RUNTIME DESTINATION bin)
        list(APPEND packed ${target})
      elseif(folder STREQUAL "tests" AND type MATCHES "SHARED_LIBRARY|MODULE_LIBRARY")
        install(TARGETS ${target} COMPONENT dist EXCLUDE_FROM_ALL
                LIBRARY DESTINATION lib/fake NAMELINK_SKIP)
        list(APPEND packed ${target})
      endif()
      if(target IN_LIST packed)
        gpushm_floor_of_dist(${target})
      endif()
    endforeach()
  endforeach()
  foreach(target gpushm_shared gpushm_broker_shared)
    if(TARGET ${target})
      install(TARGETS ${target} COMPONENT dist EXCLUDE_FROM_ALL LIBRARY DESTINATION lib)
      list(APPEND packed ${target})
    endif()
  endforeach()
  if(TARGET gpushm-ipc)
    install(FILES "${PROJECT_BINARY_DIR}/apps/${GPUSHM_IPC_DIR}/libgpushm-ipc.so"
                  "${PROJECT_BINARY_DIR}/apps/${GPUSHM_IPC_DIR}/libgpushm.so.${GPUSHM_SOVERSION}"
            COMPONENT dist EXCLUDE_FROM_ALL DESTINATION ${GPUSHM_IPC_DIR})
    list(APPEND packed gpushm-ipc)
  endif()
  # gpushm-selftest reads the label of each test.
  get_property(labels GLOBAL PROPERTY GPUSHM_TEST_LABELS)
  file(WRITE "${PROJECT_BINARY_DIR}/tests.txt" "${labels}")
  install(FILES "${PROJECT_BINARY_DIR}/tests.txt" COMPONENT dist EXCLUDE_FROM_ALL DESTINATION share)
  # Programs of other folders, whose own CMakeLists.txt installs them into the tarball.
  get_property(others GLOBAL PROPERTY GPUSHM_DIST_TARGETS)
  foreach(target IN LISTS others)
    gpushm_floor_of_dist(${target})
  endforeach()
  add_custom_target(dist-programs DEPENDS ${packed} ${others} gpushm-pages)
endfunction()

gpushm_dist()
