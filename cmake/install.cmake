# SPDX-License-Identifier: Apache-2.0
# Installs headers, static libraries, the programs that are of use by themselves, and what find_package(weft) and pkg-config need.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weft)

install(FILES weft.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft)
install(TARGETS weft weft_runtime weft_mr weft_net weft_asio EXPORT weft_targets)
if(TARGET weft-perf)
  install(TARGETS weft-perf weft-info)
endif()
install(EXPORT weft_targets NAMESPACE weft:: FILE weft-targets.cmake DESTINATION ${package_dir})

configure_package_config_file(cmake/weft-config.cmake.in weft-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(weft-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weft-config.cmake ${PROJECT_BINARY_DIR}/weft-config-version.cmake
              cmake/weft-compiler.cmake cmake/weft-compiler-probe.cpp
        DESTINATION ${package_dir})
install(PROGRAMS tests/coroutines/weft-check-coroutines DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES docs/gcc-12.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)  # so that the prefix can move
set(transport_packages)
if(WEFT_WITH_IWARP)
  string(APPEND transport_packages " libisal")
endif()
if(WEFT_WITH_VERBS)
  string(APPEND transport_packages " librdmacm libibverbs")
endif()
configure_file(cmake/weft.pc.in weft.pc @ONLY)
configure_file(cmake/weft-asio.pc.in weft-asio.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/weft.pc ${PROJECT_BINARY_DIR}/weft-asio.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
