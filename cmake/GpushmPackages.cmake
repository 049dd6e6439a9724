# SPDX-License-Identifier: Apache-2.0
# Packages for Debian (GPUSHM_PACKAGES=DEB) or for distributions with RPM: `cpack` in the build tree (scripts/packages.sh). One
# package for each component of the installation:
#
#   libraries     libgpushm1                        libgpushm.so.1, libgpushm-broker.so.1
#   development   libgpushm-dev, gpushm-devel       headers, CMake and pkg-config files, gpushm(3)
#   command       gpushm                            the command, libgpushm-ipc.so, manual page, completions, documents
#   node          gpushm-node                       gpushm-brokerd, gpushm-keeper, CDI hook, OCI runtime, units
#   agent         gpushmd                           the Kubernetes agent, with Debian's gRPC, or with libraries of its own for RPM
include_guard(GLOBAL)

set(sources "${PROJECT_SOURCE_DIR}/deploy/packages")
set(release 1)
set(maintainer "gpushm maintainers <maintainers@gpushm.dev>")

# What packages have beside the files of `make install`: each its licence and its change log.
set(documents "${PROJECT_BINARY_DIR}/packages")
file(MAKE_DIRECTORY "${documents}")
set(date_of_rpm "Sun Nov 29 2026")
set(date_of_debian "Sun, 29 Nov 2026 12:00:00 +0000")
configure_file("${sources}/changelog.in" "${documents}/changelog.Debian" @ONLY)
configure_file("${sources}/changelog.rpm.in" "${documents}/changelog.rpm" @ONLY)
configure_file("${sources}/libraries/shlibs.in" "${documents}/shlibs" @ONLY)
if(GPUSHM_PACKAGES STREQUAL "DEB")
  gpushm_compressed("${documents}/changelog.Debian" changelog)
  add_custom_target(gpushm-changelog DEPENDS "${changelog}")
  add_dependencies(gpushm-pages gpushm-changelog)
endif()

set(components libraries development command node)
if(TARGET gpushmd)
  list(APPEND components agent)
endif()
set(name_of_libraries libgpushm${GPUSHM_SOVERSION})
if(GPUSHM_PACKAGES STREQUAL "DEB")
  set(name_of_development libgpushm-dev)
else()
  set(name_of_development gpushm-devel)
endif()
set(name_of_command gpushm)
set(name_of_node gpushm-node)
set(name_of_agent gpushmd)
foreach(component IN LISTS components)
  set(name "${name_of_${component}}")
  if(GPUSHM_PACKAGES STREQUAL "DEB")
    install(FILES "${sources}/copyright" "${changelog}" DESTINATION "share/doc/${name}" COMPONENT ${component})
    if(EXISTS "${sources}/${name}.lintian-overrides")
      install(FILES "${sources}/${name}.lintian-overrides" DESTINATION share/lintian/overrides RENAME "${name}" COMPONENT ${component})
    endif()
  else()
    install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "share/licenses/${name}" COMPONENT ${component})
  endif()
  if(component MATCHES "^(libraries|node|agent)$")  # that of the command has them as every installation
    gpushm_install_licences("share/doc/${name}" ${component})
  endif()
endforeach()

# Distributions with RPM have other versions of gRPC, so gpushmd brings this one's libraries there.
if(TARGET gpushmd AND GPUSHM_PACKAGES STREQUAL "RPM")
  install(CODE "execute_process(COMMAND \"${PROJECT_SOURCE_DIR}/scripts/bundle.sh\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\"
    lib/gpushm/agent bin/gpushmd COMMAND_ERROR_IS_FATAL ANY)" COMPONENT agent)
endif()

# ---- CPack ----
set(CPACK_PACKAGE_NAME gpushm)
set(CPACK_PACKAGE_VENDOR "gpushm maintainers")
set(CPACK_PACKAGE_CONTACT "${maintainer}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "POSIX shared memory for GPUs")
set(CPACK_COMPONENTS_ALL ${components})
set(CPACK_COMPONENTS_GROUPING IGNORE)
# The units contain the paths of the prefix.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_GENERATOR "${GPUSHM_PACKAGES}")
set(CPACK_OUTPUT_FILE_PREFIX "${PROJECT_SOURCE_DIR}/build/packages")

set(common "gpushm creates named segments of GPU memory that other processes,
containers and Kubernetes pods of the node open by name, without a copy
and without privileges.
.")
set(CPACK_COMPONENT_LIBRARIES_DESCRIPTION "${common}\nThis package has the client library and the in-process broker.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "${common}\nThis package has headers for C and C++, and files for CMake and\npkg-config.")
set(CPACK_COMPONENT_COMMAND_DESCRIPTION "${common}\nThis package has the command gpushm, and the library that makes CUDA IPC\nwork between containers for unchanged programs.")
set(CPACK_COMPONENT_NODE_DESCRIPTION "${common}\nThis package has the broker of a node with its units for systemd, the\nhook for CDI devices and the OCI runtime.")
set(CPACK_COMPONENT_AGENT_DESCRIPTION "${common}\nThis package has the device plugin and DRA driver, for nodes where it does\nnot run in a pod.")

# Debian
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${release})
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)  # as in RPM below; CPack would use the slowest levels of xz
# Only gpushmd needs what this distribution has. dpkg-shlibdeps would demand this glibc for the others, too, which run with 2.28.
set(runtime "libc6 (>= 2.28), libgcc-s1 (>= 3.0)")
set(CPACK_DEBIAN_AGENT_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_NAME libgpushm${GPUSHM_SOVERSION})
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_DEPENDS "${runtime}")
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_CONTROL_EXTRA "${sources}/libraries/triggers;${documents}/shlibs")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libgpushm-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libgpushm${GPUSHM_SOVERSION} (= ${PROJECT_VERSION}-${release})")
set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME gpushm)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_COMMAND_PACKAGE_DEPENDS "${runtime}")
set(CPACK_DEBIAN_NODE_PACKAGE_NAME gpushm-node)
set(CPACK_DEBIAN_NODE_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_NODE_PACKAGE_DEPENDS "${runtime}, gpushm (= ${PROJECT_VERSION}-${release}), systemd | systemd-standalone-sysusers | systemd-sysusers")
set(CPACK_DEBIAN_NODE_PACKAGE_CONTROL_EXTRA
    "${sources}/node/postinst;${sources}/node/prerm;${sources}/node/postrm")
set(CPACK_DEBIAN_AGENT_PACKAGE_NAME gpushmd)
set(CPACK_DEBIAN_AGENT_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_AGENT_PACKAGE_DEPENDS "gpushm-node (= ${PROJECT_VERSION}-${release})")
set(CPACK_DEBIAN_AGENT_PACKAGE_CONTROL_EXTRA "${sources}/agent/postinst;${sources}/agent/prerm;${sources}/agent/postrm")

# RPM
set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_LICENSE Apache-2.0)
set(CPACK_RPM_PACKAGE_GROUP "Applications/System")
set(CPACK_RPM_LIBRARIES_PACKAGE_GROUP "System Environment/Libraries")
set(CPACK_RPM_DEVELOPMENT_PACKAGE_GROUP "Development/Libraries")
set(CPACK_RPM_PACKAGE_RELEASE ${release})
set(CPACK_RPM_CHANGELOG_FILE "${documents}/changelog.rpm")
set(CPACK_RPM_PACKAGE_RELOCATABLE OFF)
set(CPACK_RPM_LIBRARIES_PACKAGE_NAME libgpushm${GPUSHM_SOVERSION})
set(CPACK_RPM_LIBRARIES_POST_INSTALL_SCRIPT_FILE "${sources}/libraries/ldconfig.sh")
set(CPACK_RPM_LIBRARIES_POST_UNINSTALL_SCRIPT_FILE "${sources}/libraries/ldconfig.sh")
set(CPACK_RPM_DEVELOPMENT_PACKAGE_NAME gpushm-devel)
set(CPACK_RPM_DEVELOPMENT_PACKAGE_REQUIRES "libgpushm${GPUSHM_SOVERSION} = ${PROJECT_VERSION}")
set(CPACK_RPM_COMMAND_PACKAGE_NAME gpushm)
set(CPACK_RPM_NODE_PACKAGE_NAME gpushm-node)
set(CPACK_RPM_NODE_PACKAGE_REQUIRES "gpushm = ${PROJECT_VERSION}, systemd")
set(CPACK_RPM_NODE_POST_INSTALL_SCRIPT_FILE "${sources}/node/post.sh")
set(CPACK_RPM_NODE_PRE_UNINSTALL_SCRIPT_FILE "${sources}/node/preun.sh")
set(CPACK_RPM_NODE_POST_UNINSTALL_SCRIPT_FILE "${sources}/node/postun.sh")
set(CPACK_RPM_AGENT_PACKAGE_NAME gpushmd)
set(CPACK_RPM_AGENT_PACKAGE_AUTOREQPROV no)
execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_VARIABLE glibc COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "[0-9.]+" glibc "${glibc}")
set(CPACK_RPM_AGENT_PACKAGE_REQUIRES
    "gpushm-node = ${PROJECT_VERSION}, glibc >= ${glibc}, libgcc_s.so.1()(64bit)")
# In lib/gpushm are libraries that only gpushm's own programs load, or programs that are started for it.
set(CPACK_RPM_SPEC_MORE_DEFINE "%global packager ${maintainer}
%global _build_id_links none
%define _binary_payload w6.gzdio
%global __provides_exclude_from ^/usr/lib/gpushm/.*$
%global __requires_exclude_from ^/usr/lib/gpushm/.*$")
set(CPACK_RPM_AGENT_POST_INSTALL_SCRIPT_FILE "${sources}/agent/post.sh")
set(CPACK_RPM_AGENT_PRE_UNINSTALL_SCRIPT_FILE "${sources}/agent/preun.sh")
set(CPACK_RPM_AGENT_POST_UNINSTALL_SCRIPT_FILE "${sources}/agent/postun.sh")
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION
    /usr/lib/systemd /usr/lib/systemd/system /usr/lib/sysusers.d /usr/share/man /usr/share/man/man1 /usr/share/man/man3 /usr/share/man/man8)
include(CPack)
