# SPDX-License-Identifier: Apache-2.0
# What scripts/dist.sh packs: every program of apps, tests and bench goes to bin/, the shared libraries of testing/
# (stand-ins for the driver's, opened by name at run time) to lib/fake/. Nothing has to be registered; the target
# property GPUSHM_NO_DIST leaves one out.
include_guard(GLOBAL)

function(gpushm_targets_below directory result)
  get_property(targets DIRECTORY "${directory}" PROPERTY BUILDSYSTEM_TARGETS)
  get_property(children DIRECTORY "${directory}" PROPERTY SUBDIRECTORIES)
  foreach(child IN LISTS children)
    gpushm_targets_below("${child}" below)
    list(APPEND targets ${below})
  endforeach()
  set(${result} ${targets} PARENT_SCOPE)
endfunction()

function(gpushm_dist)
  foreach(folder apps tests testing bench)
    gpushm_targets_below("${PROJECT_SOURCE_DIR}/${folder}" targets)
    foreach(target IN LISTS targets)
      get_target_property(type ${target} TYPE)
      get_target_property(left_out ${target} GPUSHM_NO_DIST)
      if(left_out)
        continue()
      endif()
      if(type STREQUAL "EXECUTABLE")
        install(TARGETS ${target} COMPONENT dist EXCLUDE_FROM_ALL RUNTIME DESTINATION bin)
      elseif(folder STREQUAL "testing" AND type MATCHES "SHARED_LIBRARY|MODULE_LIBRARY")
        install(TARGETS ${target} COMPONENT dist EXCLUDE_FROM_ALL
                LIBRARY DESTINATION lib/fake NAMELINK_SKIP)
      endif()
    endforeach()
  endforeach()
  if(TARGET gpushm_shared)
    install(TARGETS gpushm_shared COMPONENT dist EXCLUDE_FROM_ALL LIBRARY DESTINATION lib)
  endif()
  if(TARGET gpushm_broker_shared)
    install(TARGETS gpushm_broker_shared COMPONENT dist EXCLUDE_FROM_ALL LIBRARY DESTINATION lib)
  endif()
endfunction()

gpushm_dist()
