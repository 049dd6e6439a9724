# SPDX-License-Identifier: Apache-2.0
# With GPUSHM_FLOOR, shipped programs and libraries run with glibc 2.28 and later, whatever this machine's glibc is
# (docs/adr/0043-the-glibc-floor.md). scripts/check_floor.py checks finished files.
include_guard(GLOBAL)
option(GPUSHM_FLOOR "Link shipped programs and libraries for glibc 2.28" OFF)

# The symbol versions of manylinux_2_28. The same numbers are in scripts/check_floor.py.
set(GPUSHM_FLOOR_GLIBC 2.28)
set(GPUSHM_FLOOR_GLIBCXX 3.4.24)
set(GPUSHM_FLOOR_CXXABI 1.3.11)

if(GPUSHM_FLOOR AND (GPUSHM_SANITIZE OR GPUSHM_COVERAGE))
  message(FATAL_ERROR "GPUSHM_FLOOR is for shipped builds: instrumented programs need this machine's run-time libraries")
endif()

if(GPUSHM_FLOOR)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(floor_source "${PROJECT_SOURCE_DIR}/cmake/floor")
  set(GPUSHM_FLOOR_LIBRARIES "${PROJECT_BINARY_DIR}/floor")
  # Replacements of functions that the floor lacks. Never with link-time optimisation: members are chosen by symbol.
  add_library(gpushm_floor STATIC
    "${floor_source}/heap.c" "${floor_source}/names.c" "${floor_source}/numbers.c" "${floor_source}/random.c" "${floor_source}/single_threaded.c"
    "${floor_source}/start.c" "${floor_source}/stat.c" "${floor_source}/system_calls.c" "${floor_source}/thread.c"
    "${floor_source}/unwind.c")
  set_target_properties(gpushm_floor PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
    C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON INTERPROCEDURAL_OPTIMIZATION OFF)
  target_compile_definitions(gpushm_floor PRIVATE _GNU_SOURCE)
  target_compile_options(gpushm_floor PRIVATE -O2 -fno-lto -ffunction-sections -Wall -Wextra -Wpedantic -Wshadow -Wconversion
    -Wsign-conversion -Wundef -Wcast-qual $<$<BOOL:${GPUSHM_WERROR}>:-Werror>)
  add_custom_command(
    OUTPUT "${GPUSHM_FLOOR_LIBRARIES}/libc.so"
    COMMAND "${Python3_EXECUTABLE}" "${floor_source}/stubs.py" "${GPUSHM_FLOOR_LIBRARIES}" "${CMAKE_C_COMPILER}"
            ${GPUSHM_FLOOR_GLIBC} ${GPUSHM_FLOOR_GLIBCXX} ${GPUSHM_FLOOR_CXXABI} "$<TARGET_FILE:gpushm_floor>"
    DEPENDS "${floor_source}/stubs.py" "${floor_source}/elf_versions.py" "${floor_source}/moved.txt"
    COMMENT "Writing libraries of glibc ${GPUSHM_FLOOR_GLIBC} to link with"
    VERBATIM)
  add_custom_target(gpushm_floor_libraries DEPENDS "${GPUSHM_FLOOR_LIBRARIES}/libc.so")
endif()

# gpushm_floor(TARGET [SHARED_CXX])
# Links a program, a shared library or a module, in C or C++, for the floor. It gets the C++ runtime as hidden code; a program
# also the unwinder. A library needs a version script, without which others could replace parts of its C++ runtime. SHARED_CXX:
# for a module whose exceptions pass through others' code. It shares libstdc++.so.6, and has only what the floor's libstdc++
# lacks. Not for static programs, nor for programs that need shared libraries of the distribution other than glibc's.
function(gpushm_floor target)
  cmake_parse_arguments(arg "SHARED_CXX" "" "" ${ARGN})
  get_target_property(has_floor ${target} GPUSHM_HAS_FLOOR)
  if(NOT GPUSHM_FLOOR OR has_floor)
    return()
  endif()
  set_target_properties(${target} PROPERTIES GPUSHM_HAS_FLOOR ON)
  get_target_property(type ${target} TYPE)
  add_dependencies(${target} gpushm_floor gpushm_floor_libraries)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS
    "${GPUSHM_FLOOR_LIBRARIES}/libc.so" "$<TARGET_FILE:gpushm_floor>")
  target_link_options(${target} PRIVATE "-L${GPUSHM_FLOOR_LIBRARIES}" LINKER:--exclude-libs,ALL)
  if(NOT arg_SHARED_CXX)
    target_link_options(${target} PRIVATE $<$<LINK_LANGUAGE:CXX>:-static-libstdc++>)
  endif()
  if(type STREQUAL "EXECUTABLE")
    # The distribution's libgcc_s.so.1 needs a newer glibc than the program.
    target_link_options(${target} PRIVATE -static-libgcc LINKER:--allow-shlib-undefined)
  endif()
endfunction()

# gpushm_needs_distribution(TARGET RESULT): whether a target links to shared libraries of the distribution. Their imported
# targets are visible only in the folders that look for them, so they are recognised by name.
function(gpushm_needs_distribution target result)
  set(seen "")
  set(queue ${target})
  while(NOT queue STREQUAL "")
    list(POP_FRONT queue each)
    if(each MATCHES "^(CURL|PkgConfig|benchmark|gRPC|prometheus-cpp|protobuf)::")
      set(${result} ON PARENT_SCOPE)
      return()
    endif()
    if(each IN_LIST seen OR NOT TARGET "${each}")
      continue()
    endif()
    list(APPEND seen "${each}")
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      get_target_property(libraries ${each} ${property})
      foreach(library IN LISTS libraries)
        string(REGEX REPLACE "^.*\\$<LINK_ONLY:(.*)>$" "\\1" library "${library}")
        list(APPEND queue "${library}")
      endforeach()
    endforeach()
  endwhile()
  set(${result} OFF PARENT_SCOPE)
endfunction()
