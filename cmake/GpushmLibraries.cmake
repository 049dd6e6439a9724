# SPDX-License-Identifier: Apache-2.0
# Installed files: libgpushm.so, libgpushm-broker.so, their headers, their CMake and pkg-config files, the command with its
# completions, manual pages, the licence and the documents. Components of the installation are the packages of
# GpushmPackages.cmake.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)
include(GpushmManual)

# The version of the interface: gpushm.h, broker.h. A program runs with every library of the version it was compiled for.
set(GPUSHM_SOVERSION 1)
# Incremented with each function or option that is added to that version.
set(GPUSHM_SO_REVISION 0)

# gpushm_shared_library(TARGET OUTPUT_NAME name EXPORT_NAME name MAP file OBJECTS_OF target... [USES target]
#                       [MODULES target...])
# A versioned shared library that exports the symbols in MAP (a linker version script). All objects of OBJECTS_OF (modules, or rooms
# by gpushm_rooms), which define the public functions, are linked; of the archives of MODULES, only objects that those need.
function(gpushm_shared_library target)
  cmake_parse_arguments(arg "" "OUTPUT_NAME;EXPORT_NAME;MAP;USES" "OBJECTS_OF;MODULES" ${ARGN})
  set(objects "")
  foreach(module IN LISTS arg_OBJECTS_OF)
    get_target_property(rooms ${module} GPUSHM_ROOMS)
    if(NOT rooms)
      set(rooms ${module})
    endif()
    foreach(room IN LISTS rooms)
      list(APPEND objects "$<TARGET_OBJECTS:${room}>")
    endforeach()
  endforeach()
  add_library(${target} SHARED ${objects})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${arg_OUTPUT_NAME} EXPORT_NAME ${arg_EXPORT_NAME} LINKER_LANGUAGE CXX
    VERSION ${GPUSHM_SOVERSION}.${GPUSHM_SO_REVISION}.0 SOVERSION ${GPUSHM_SOVERSION} LINK_DEPENDS "${arg_MAP}")
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_include_directories(${target} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  # The shared library precedes the archives: objects that it exports must not be linked a second time.
  target_link_libraries(${target} PUBLIC ${arg_USES} PRIVATE ${arg_MODULES} gpushm_flags)
  target_link_options(${target} PRIVATE "LINKER:--version-script,${arg_MAP}")
  if(GPUSHM_MOLD)
    # mold 1.10 exports names that the script lists as local.
    target_link_options(${target} PRIVATE -fuse-ld=bfd)
  endif()
  if(NOT GPUSHM_SANITIZE AND NOT GPUSHM_COVERAGE)
    target_link_options(${target} PRIVATE LINKER:--no-undefined LINKER:--as-needed)
  endif()
  gpushm_floor(${target})
  add_library(gpushm::${arg_OUTPUT_NAME} ALIAS ${target})
endfunction()

# gpushm_install_licences(FOLDER COMPONENT): the licences of libraries that the programs and libraries of the shipped build contain, as
# Debian's packages have them. (scripts/bundle.sh adds those of shared libraries.)
function(gpushm_install_licences folder component)
  if(NOT GPUSHM_HARDEN)
    return()
  endif()
  string(REGEX MATCH "^[0-9]+" compiler "${CMAKE_CXX_COMPILER_VERSION}")
  foreach(package libasio-dev libcli11-dev libflatbuffers-dev libfmt-dev libseccomp-dev libsodium-dev libstdc++-${compiler}-dev
                  libxxhash-dev libyaml-dev nlohmann-json3-dev)
    if(EXISTS "/usr/share/doc/${package}/copyright")
      file(REAL_PATH "/usr/share/doc/${package}/copyright" licence)
      install(FILES "${licence}" DESTINATION "${folder}/libraries" COMPONENT ${component} RENAME "${package}")
    endif()
  endforeach()
endfunction()

# The prefix is written relative to the file, so that an installed tree can be moved.
file(RELATIVE_PATH GPUSHM_PC_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" GPUSHM_PC_PREFIX "${GPUSHM_PC_PREFIX}")

function(gpushm_install_pkgconfig name)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in" "${PROJECT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${name}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)
endfunction()

if(TARGET gpushm)
  install(TARGETS gpushm RUNTIME COMPONENT command)
  set(completions "${PROJECT_SOURCE_DIR}/apps/gpushm/completions")
  install(FILES "${completions}/gpushm.bash" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT command RENAME gpushm)
  install(FILES "${completions}/_gpushm" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions" COMPONENT command)
  install(FILES "${completions}/gpushm.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" COMPONENT command)
  install(FILES README.md TYPE DOC COMPONENT command)
  if(GPUSHM_PACKAGES STREQUAL "DEB")
    gpushm_compressed("${PROJECT_SOURCE_DIR}/CHANGELOG.md" changes)
    add_custom_target(gpushm-changes DEPENDS "${changes}")
    add_dependencies(gpushm-pages gpushm-changes)
    install(FILES "${changes}" TYPE DOC COMPONENT command RENAME changelog.gz)
  else()
    install(FILES CHANGELOG.md TYPE DOC COMPONENT command)
  endif()
  if(NOT GPUSHM_PACKAGES)  # each of which has it
    install(FILES LICENSE TYPE DOC COMPONENT command)
  endif()
  gpushm_install_licences("${CMAKE_INSTALL_DOCDIR}" command)
  install(DIRECTORY docs/ TYPE DOC COMPONENT command
          FILES_MATCHING PATTERN "*.md" REGEX "/docs/README[.]md$" EXCLUDE PATTERN plan EXCLUDE PATTERN site EXCLUDE PATTERN man EXCLUDE)
  install(FILES docs/README.md TYPE DOC COMPONENT command RENAME index.md)  # README.md is that of the product
  if(GPUSHM_PROGRAMS_RUN)
    set(page "${GPUSHM_PAGES_DIR}/gpushm.1")
    add_custom_command(OUTPUT "${page}" COMMAND gpushm man-page > "${page}" DEPENDS gpushm VERBATIM)
    gpushm_page("${page}" command)
  endif()
endif()
gpushm_help_page(gpushm-brokerd node "brokers of GPU shared memory")
gpushm_help_page(gpushm-keeper node "keeps the descriptors of a program that is replaced")
gpushm_help_page(gpushmd agent "Kubernetes agent of GPU shared memory")
# These pass their arguments on, and have no help of their own.
foreach(program gpushm-cdi-hook gpushm-oci-runtime)
  if(TARGET ${program} AND NOT GPUSHM_ONLY_PYTHON)
    gpushm_page("${PROJECT_SOURCE_DIR}/docs/man/${program}.8" node)
  endif()
endforeach()

if(TARGET gpushm_client)
  gpushm_shared_library(gpushm_shared OUTPUT_NAME gpushm EXPORT_NAME gpushm
    MAP "${PROJECT_SOURCE_DIR}/cmake/gpushm.map"
    OBJECTS_OF gpushm_client gpushm_tensors gpushm_base gpushm_once
    MODULES gpushm_client gpushm_tensors_loads)
  install(TARGETS gpushm_shared EXPORT gpushm LIBRARY COMPONENT libraries NAMELINK_COMPONENT development)
  install(DIRECTORY include/gpushm TYPE INCLUDE COMPONENT development FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
  gpushm_page("${PROJECT_SOURCE_DIR}/docs/man/gpushm.3" development)
  gpushm_install_pkgconfig(gpushm)

  if(TARGET gpushm_broker_server)
    gpushm_shared_library(gpushm_broker_shared OUTPUT_NAME gpushm-broker EXPORT_NAME broker
      MAP "${PROJECT_SOURCE_DIR}/cmake/gpushm-broker.map"
      OBJECTS_OF gpushm_broker gpushm_file_export
      USES gpushm_shared
      MODULES gpushm_broker_server)
    set_target_properties(gpushm_broker_shared PROPERTIES INSTALL_RPATH "$ORIGIN")
    install(TARGETS gpushm_broker_shared EXPORT gpushm LIBRARY COMPONENT libraries NAMELINK_COMPONENT development)
    gpushm_install_pkgconfig(gpushm-broker)
  endif()

  # The directory that containers mount, or a program of this machine is run with: libgpushm-ipc.so, which is preloaded, and the
  # libgpushm that it loads. A copy, because nothing else of the machine is there. Programs find it from their own directory
  # (apps/support/ipc_libraries.hpp), also in the build tree.
  if(TARGET gpushm_ipc_shared)
    gpushm_floor(gpushm_ipc_shared)
    set(GPUSHM_IPC_DIR lib/gpushm/ipc)
    set(in_tree "${PROJECT_BINARY_DIR}/apps/${GPUSHM_IPC_DIR}")
    add_custom_command(OUTPUT "${in_tree}/libgpushm-ipc.so" "${in_tree}/libgpushm.so.1"
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${in_tree}"
      COMMAND "${CMAKE_COMMAND}" -E copy "$<TARGET_FILE:gpushm_ipc_shared>" "${in_tree}/libgpushm-ipc.so"
      COMMAND "${CMAKE_COMMAND}" -E copy "$<TARGET_FILE:gpushm_shared>" "${in_tree}/libgpushm.so.1"
      DEPENDS gpushm_ipc_shared gpushm_shared VERBATIM)
    add_custom_target(gpushm-ipc ALL DEPENDS "${in_tree}/libgpushm-ipc.so" "${in_tree}/libgpushm.so.1")
    install(FILES "$<TARGET_FILE:gpushm_ipc_shared>" DESTINATION ${GPUSHM_IPC_DIR} COMPONENT command)
    install(FILES "$<TARGET_FILE:gpushm_shared>" DESTINATION ${GPUSHM_IPC_DIR} RENAME libgpushm.so.${GPUSHM_SOVERSION}
            COMPONENT command)
    install(CODE "if(CMAKE_INSTALL_DO_STRIP)
  foreach(library libgpushm-ipc.so libgpushm.so.${GPUSHM_SOVERSION})
    execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-unneeded
      \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${GPUSHM_IPC_DIR}/\${library}\" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endif()" COMPONENT command)
  endif()

  set(config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/gpushm")
  install(EXPORT gpushm FILE gpushm-targets.cmake NAMESPACE gpushm:: DESTINATION "${config_dir}" COMPONENT development)
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/gpushm-config.cmake.in"
    "${PROJECT_BINARY_DIR}/gpushm-config.cmake" INSTALL_DESTINATION "${config_dir}")
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/gpushm-config-version.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/gpushm-config.cmake"
                "${PROJECT_BINARY_DIR}/gpushm-config-version.cmake"
          DESTINATION "${config_dir}" COMPONENT development)
endif()
