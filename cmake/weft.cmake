# SPDX-License-Identifier: Apache-2.0
# What every target of this tree has in common.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

if(WEFT_SANITIZE)
  add_compile_options(-fsanitize=${WEFT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${WEFT_SANITIZE})
endif()

# The sources of the library with dormant defects in them take the places of those of the tree.
if(WEFT_MUTATIONS)
  set(mutate ${PROJECT_SOURCE_DIR}/tests/stress/mutate.py)
  execute_process(COMMAND ${mutate} apply ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/mutated COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB_RECURSE mutated_sources RELATIVE ${PROJECT_BINARY_DIR}/mutated ${PROJECT_BINARY_DIR}/mutated/*.cpp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${mutate} ${mutated_sources})
endif()

function(weft_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
                                           $<$<BOOL:${WEFT_WERROR}>:-Werror>)
endfunction()

# weft_component(NAME runtime SOURCES ... HEADERS ... [LIBRARIES ...] [PRIVATE_LIBRARIES ...])
#
# One layer of the library: the static library weft_<NAME>, known as weft::<NAME>. HEADERS are public and get installed;
# private headers stand among the SOURCES.
function(weft_component)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;HEADERS;LIBRARIES;PRIVATE_LIBRARIES")
  set(target weft_${arg_NAME})
  foreach(source IN LISTS arg_SOURCES)
    if(WEFT_MUTATIONS AND ${arg_NAME}/${source} IN_LIST mutated_sources)
      list(TRANSFORM arg_SOURCES REPLACE "^${source}$" ${PROJECT_BINARY_DIR}/mutated/${arg_NAME}/${source})
    endif()
  endforeach()
  add_library(${target} STATIC ${arg_SOURCES} ${arg_HEADERS})
  add_library(weft::${arg_NAME} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${arg_NAME} POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PUBLIC ${arg_LIBRARIES} PRIVATE ${arg_PRIVATE_LIBRARIES})
  # GCC inlines nothing that somebody might replace in a shared library, unless told that nobody will. Clang assumes it.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fno-semantic-interposition>)
  weft_warnings(${target})

  foreach(header IN LISTS arg_HEADERS)
    cmake_path(GET header PARENT_PATH folder)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft/${arg_NAME}/${folder})
  endforeach()
endfunction()

# weft_program(NAME copy SOURCES ... LIBRARIES ...): an executable of this tree.
function(weft_program)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;LIBRARIES")
  add_executable(${arg_NAME} ${arg_SOURCES})
  target_link_libraries(${arg_NAME} PRIVATE ${arg_LIBRARIES})
  weft_warnings(${arg_NAME})
endfunction()

# weft_test(NAME net_tests SOURCES ... LIBRARIES ... [DRIVERS] [FULL] [LABELS ...])
#
# One GoogleTest program, registered once; with DRIVERS once for each way to get an event driver (tests/with_driver.cpp).
# With FULL it runs only under `ctest -C full`; so does what gets epoll because io_uring is forbidden, for it is the same
# epoll from then on, and runtime_tests try the ways there in any case.
# Each run leaves its cases in results/<registered name>.xml, from where ./dev counts them.
function(weft_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "DRIVERS;FULL" "NAME" "SOURCES;LIBRARIES;LABELS")
  weft_program(NAME ${arg_NAME} SOURCES ${arg_SOURCES} LIBRARIES ${arg_LIBRARIES} GTest::gtest GTest::gtest_main)
  if("threads" IN_LIST arg_LABELS)
    add_dependencies(thread_tests ${arg_NAME})
  endif()
  set(configurations)
  if(arg_FULL)
    set(configurations full)
  endif()
  set(names ${arg_NAME})
  if(arg_DRIVERS)
    set(names ${arg_NAME}.io_uring ${arg_NAME}.epoll ${arg_NAME}.io_uring_forbidden)
  endif()
  foreach(name IN LISTS names)
    set(launcher)
    if(arg_DRIVERS)
      cmake_path(GET name EXTENSION LAST_ONLY driver)
      string(SUBSTRING ${driver} 1 -1 driver)
      set(launcher $<TARGET_FILE:with_driver> ${driver})
    endif()
    if(name MATCHES "io_uring_forbidden$")
      set(configurations full)
    endif()
    add_test(NAME ${name} COMMAND ${launcher} $<TARGET_FILE:${arg_NAME}> CONFIGURATIONS ${configurations})
    set_tests_properties(${name} PROPERTIES
      ENVIRONMENT "GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/results/${name}.xml"
      LABELS "${arg_LABELS}" SKIP_RETURN_CODE 77 TIMEOUT 300)
  endforeach()
endfunction()

# weft_vm_test(NAME verbs_tests COMMAND $<TARGET_FILE:verbs_tests> ... [DEVICES rxe] [FULL] [OPTIONS ...])
#
# A command that runs as root in a virtual machine (tests/vm), a GoogleTest program for instance; OPTIONS are for vm.py.
# It is skipped, and says why, where there can be no such machine. With FULL it runs only under `ctest -C full`, or
# `ctest -C full_in_guest` where a sanitizer is built in: few of the others would be worth their time there.
function(weft_vm_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "FULL" "NAME;DEVICES" "COMMAND;OPTIONS")
  set(configurations)
  if(arg_FULL)
    set(configurations full)
    if(WEFT_SANITIZE)
      set(configurations full_in_guest)
    endif()
  endif()
  set(devices)
  if(arg_DEVICES)
    set(devices --devices ${arg_DEVICES})
  endif()
  add_test(NAME ${arg_NAME} CONFIGURATIONS ${configurations}
           COMMAND ${PROJECT_SOURCE_DIR}/tests/vm/vm.py ${devices} ${arg_OPTIONS} -- ${arg_COMMAND})
  # The first one may have to fetch the kernel.
  set_tests_properties(${arg_NAME} PROPERTIES
    ENVIRONMENT "GTEST_OUTPUT=xml:/out/${arg_NAME}.xml;WEFT_VM_OUT=${PROJECT_BINARY_DIR}/results"
    LABELS vm PROCESSORS 2 SKIP_RETURN_CODE 77 TIMEOUT 600)
endfunction()
