# SPDX-License-Identifier: Apache-2.0
# gpushm_flatbuffers(MODULE SCHEMA OUTPUT)
# Generates the C++ header MODULE/NAME_generated.h of a FlatBuffers schema NAME.fbs in the current folder, and stores its path
# in OUTPUT: one of the module's SOURCES.
include_guard(GLOBAL)
find_program(GPUSHM_FLATC flatc REQUIRED)

function(gpushm_flatbuffers module schema output)
  get_filename_component(name "${schema}" NAME_WE)
  set(folder "${PROJECT_BINARY_DIR}/generated/${module}/${module}")
  set(generated "${folder}/${name}_generated.h")
  add_custom_command(
    OUTPUT "${generated}"
    COMMAND "${GPUSHM_FLATC}" --cpp --scoped-enums -o "${folder}" "${CMAKE_CURRENT_SOURCE_DIR}/${schema}"
    DEPENDS "${schema}"
    VERBATIM)
  set(${output} "${generated}" PARENT_SCOPE)
endfunction()

# gpushm_include_flatbuffers(TARGET MODULE SCOPE)
# Lets a target (SCOPE PRIVATE) or also its users (PUBLIC) include the generated headers of a module, as system headers:
# they do not compile without warnings.
function(gpushm_include_flatbuffers target module scope)
  target_include_directories(${target} SYSTEM ${scope} "${PROJECT_BINARY_DIR}/generated/${module}")
endfunction()
