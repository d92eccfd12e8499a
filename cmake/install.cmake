# SPDX-License-Identifier: Apache-2.0
# Installs headers, libraries, the programs that are of use by themselves, and what find_package(weft) and pkg-config need.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weft)

install(FILES weft.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft)
foreach(kind static shared)
  set(target weft_${kind})
  if(kind STREQUAL static)
    set(target weft_archive)
  endif()
  if(TARGET ${target})
    install(TARGETS ${target} EXPORT weft_${kind})
    install(EXPORT weft_${kind} NAMESPACE weft:: FILE weft-${kind}.cmake DESTINATION ${package_dir})
  endif()
endforeach()
# Programs have warnings of their choice, and hear of their own sources alone: headers that are installed are system
# headers, however a compiler is told where they are. In their first line, so that no line changes its number.
install(CODE "set(headers \"${CMAKE_INSTALL_INCLUDEDIR}/weft\")")
install(CODE [[
  cmake_path(ABSOLUTE_PATH headers BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}")
  file(GLOB_RECURSE headers "$ENV{DESTDIR}${headers}/*.hpp")
  foreach(header IN LISTS headers)
    file(READ "${header}" text)
    string(REGEX REPLACE "^// SPDX" "#pragma GCC system_header  // SPDX" text "${text}")
    file(WRITE "${header}" "${text}")
  endforeach()
]])
# What `cmake --install` needs where there are no tests. A build that tests packages has it by itself.
weft_runs(runs_programs programs)
set(with_all)
if(runs_programs)
  set(with_all ALL)
endif()
add_custom_target(installed ${with_all})
foreach(target weft_archive weft_shared)
  if(TARGET ${target})
    add_dependencies(installed ${target})
  endif()
endforeach()

# Each program has a manual page, and completions, which ask the program for its options and are found by its name.
set(WEFT_ZSH_FOLDER zsh/site-functions CACHE STRING
    "Where zsh looks for completions, below share: zsh/vendor-completions in Debian's packages")
install(PROGRAMS tests/coroutines/weft-check-coroutines DESTINATION ${CMAKE_INSTALL_BINDIR})
set(programs weft-check-coroutines)
foreach(program weft-perf weft-info)
  if(TARGET ${program})
    install(TARGETS ${program})
    add_dependencies(installed ${program})
    list(APPEND programs ${program})
  endif()
endforeach()
get_property(installed_by_tests GLOBAL PROPERTY weft_installed_programs)
foreach(program IN LISTS programs installed_by_tests)
  install(FILES docs/man/${program}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES completions/weft.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME ${program})
endforeach()
install(FILES completions/_weft DESTINATION ${CMAKE_INSTALL_DATADIR}/${WEFT_ZSH_FOLDER})

configure_package_config_file(cmake/weft-config.cmake.in weft-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(weft-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weft-config.cmake ${PROJECT_BINARY_DIR}/weft-config-version.cmake
              cmake/weft-compiler.cmake cmake/weft-compiler-probe.cpp
        DESTINATION ${package_dir})
install(FILES docs/gcc-12.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)  # so that the prefix can move
# What the library uses inside. A program that links libweft.a links that too, one that links libweft.so does not.
set(pc_inside "fmt liburing")
if(WEFT_WITH_IWARP)
  string(APPEND pc_inside " libisal")
endif()
if(WEFT_WITH_VERBS)
  string(APPEND pc_inside " librdmacm libibverbs")
endif()
set(pc_requires Requires)
if(WEFT_SHARED)
  set(pc_requires Requires.private)
endif()
foreach(name weft weft-static weft-asio)
  configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
