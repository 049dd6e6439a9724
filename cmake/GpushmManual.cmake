# SPDX-License-Identifier: Apache-2.0
# Manual pages. Those of section 8 are written from the programs' own help, in the shipped build only.
include_guard(GLOBAL)

set(GPUSHM_PAGES_DIR "${PROJECT_BINARY_DIR}/man")
file(MAKE_DIRECTORY "${GPUSHM_PAGES_DIR}")
# Everything that is installed and is neither a program nor a library.
add_custom_target(gpushm-pages ALL)
# Packages have compressed pages.
if(GPUSHM_PACKAGES)
  find_program(GPUSHM_GZIP gzip REQUIRED)
endif()

# gpushm_compressed(FILE RESULT): FILE, compressed in packages. The same input gives the same file.
function(gpushm_compressed file result)
  get_filename_component(name "${file}" NAME)
  set(compressed "${GPUSHM_PAGES_DIR}/compressed/${name}.gz")
  file(MAKE_DIRECTORY "${GPUSHM_PAGES_DIR}/compressed")
  add_custom_command(OUTPUT "${compressed}"
    COMMAND "${GPUSHM_GZIP}" -9nc "${file}" > "${compressed}" DEPENDS "${file}" VERBATIM)
  set(${result} "${compressed}" PARENT_SCOPE)
endfunction()

# gpushm_page(FILE COMPONENT): installs a page, whose name ends with its section. FILE may be an output of this directory.
function(gpushm_page file component)
  string(REGEX REPLACE "^.*\\." "" section "${file}")
  if(GPUSHM_PACKAGES)
    gpushm_compressed("${file}" file)
  endif()
  get_filename_component(name "${file}" NAME)
  add_custom_target(gpushm-page-${name} DEPENDS "${file}")
  add_dependencies(gpushm-pages gpushm-page-${name})
  install(FILES "${file}" TYPE MAN COMPONENT ${component} RENAME "man${section}/${name}")
endfunction()

# gpushm_help_page(PROGRAM COMPONENT TEXT): the page PROGRAM(8), if this is the shipped build and help2man is installed.
function(gpushm_help_page program component text)
  if(NOT TARGET ${program} OR NOT GPUSHM_HELP2MAN)
    return()
  endif()
  set(page "${GPUSHM_PAGES_DIR}/${program}.8")
  add_custom_command(OUTPUT "${page}"
    COMMAND "${GPUSHM_HELP2MAN}" --no-info --section 8 --name "${text}" --output "${page}" "$<TARGET_FILE:${program}>"
    DEPENDS ${program} VERBATIM)
  gpushm_page("${page}" ${component})
endfunction()

# The programs write their pages themselves, which those of another architecture and instrumented ones do not do here.
set(GPUSHM_PROGRAMS_RUN ON)
if(CMAKE_CROSSCOMPILING OR GPUSHM_SANITIZE OR GPUSHM_COVERAGE)
  set(GPUSHM_PROGRAMS_RUN OFF)
endif()
if(GPUSHM_HARDEN AND GPUSHM_PROGRAMS_RUN)
  if(GPUSHM_PACKAGES)
    find_program(GPUSHM_HELP2MAN help2man REQUIRED)
  else()
    find_program(GPUSHM_HELP2MAN help2man)
  endif()
endif()
