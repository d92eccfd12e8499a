# SPDX-License-Identifier: Apache-2.0
# What every target of this tree has in common.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

if(WEFT_SANITIZE)
  add_compile_options(-fsanitize=${WEFT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${WEFT_SANITIZE})
  # GCC's check of pointers to virtual functions opens a pipe, and takes what it finds for wrong if no descriptor is left.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fno-sanitize=vptr>)
endif()

option(WEFT_FUZZERS "Build the fuzzers with libFuzzer, which is clang's; without, they replay their corpus" OFF)

# How the sources of a kind are compiled, and their precompiled header with the same: GCC goes on with what it finds in
# there, whatever the command line says.
#
# GCC inlines nothing that somebody might replace in a shared library, unless told that nobody will; clang assumes it.
set(library_options $<$<CXX_COMPILER_ID:GNU>:-fno-semantic-interposition>)
set(program_options)
# The library is tested as it ships. Optimising the tests themselves takes longer than it saves, above all with the thread
# sanitizer (three times as long), and debug information a tenth of the time. With sanitizers the library is optimised a
# little: that costs nothing to compile, and runs four times as fast. The simulation is as well, in which a seed takes
# four times as long otherwise; the examples are not: they compile in half the time. Who starts the demo waits for its
# examples, so they are optimised a little only: that saves a quarter of their time, and the library moves the bytes.
set(example_options $<$<CONFIG:Demo>:-O1>)
set(test_options $<$<CONFIG:RelWithDebInfo>:-O0 -g0>)
if(WEFT_SANITIZE)
  set(example_options -O0)
  set(test_options -O0)
endif()
# With clang's sanitizers, which every run has, the tests are without debug information, and what is not the library is not
# looked at for pointers that are null, misaligned or of another type: a third of the time of compiling a test. Nor is the
# library for types and sizes of objects, which are a fifth of its code. In the full run GCC's sanitizers look at all but
# types, and the fuzzers' build at the library's types.
if(WEFT_SANITIZE AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
  list(APPEND test_options -g0)
  if(WEFT_SANITIZE MATCHES undefined)
    if(NOT WEFT_FUZZERS)
      list(APPEND library_options -fno-sanitize=object-size,vptr)
    endif()
    foreach(kind program example test)
      list(APPEND ${kind}_options -fno-sanitize=alignment,null,object-size,vptr)
    endforeach()
  endif()
endif()

# What is not counted is not searched: some parsers are in examples, and in headers that only a fuzzer includes.
if(WEFT_FUZZERS)
  foreach(kind library program example test)
    list(APPEND ${kind}_options -fsanitize=fuzzer-no-link)
  endforeach()
endif()

# lld links in a tenth of the time of the compiler's own linker, and every test program is linked whole.
find_program(WEFT_LLD NAMES ld.lld)
option(WEFT_LINK_WITH_LLD "Link what is built here with lld" ${PROJECT_IS_TOP_LEVEL})
if(WEFT_LINK_WITH_LLD AND WEFT_LLD)
  add_link_options(-fuse-ld=lld)
endif()

function(weft_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
                                           $<$<BOOL:${WEFT_WERROR}>:-Werror>)
endfunction()

# Headers that nearly every source includes are parsed once. A change of a header of weft then compiles everything anew
# under `all`, all programs under `programs`, and only what includes it under `system`. A compiler cache does better than
# each of them, and not with them.
set(WEFT_PRECOMPILED_HEADERS none CACHE STRING
    "Precompiled headers: none, system, programs (with weft's own for programs and tests), or all (for the library too)")
set_property(CACHE WEFT_PRECOMPILED_HEADERS PROPERTY STRINGS none system programs all)
set(precompiled_library
    <algorithm> <array> <atomic> <chrono> <coroutine> <cstddef> <cstdint> <exception> <memory> <mutex> <optional> <span>
    <string> <string_view> <system_error> <type_traits> <utility> <vector>)
set(precompiled_program ${precompiled_library})
set(precompiled_test ${precompiled_library} <gtest/gtest.h>)
if(WEFT_PRECOMPILED_HEADERS MATCHES "^(programs|all)$")
  list(APPEND precompiled_program <weft/weft.hpp>)
  list(APPEND precompiled_test <weft/weft.hpp>)
endif()
if(WEFT_PRECOMPILED_HEADERS STREQUAL all)
  list(APPEND precompiled_library <weft/weft.hpp>)
endif()

set(precompiled_example ${precompiled_program})

# Half of what a source costs to compile is what it includes. Names for a whole source have to be different in all sources
# of a library or program then, which the compiler says; locals may have the names of other sources. The presets `check`,
# `debug` and `clang` compile each source alone, so that a missing include is found.
option(WEFT_UNITY "Compile several sources of a library or program at once" OFF)
set(sources_at_once_library 12)
set(sources_at_once_program 8)
set(sources_at_once_example 8)
set(sources_at_once_test 15)  # a fifth of their time beside 6; GCC takes 2 GB for them

# weft_compile_as(TARGET library|program|example|test): with the options of that kind. All targets of a kind share one
# parse of its headers, by way of a target that does nothing else. It has none of the definitions that some of them need,
# because GCC takes more of them, and not fewer.
function(weft_compile_as target kind)
  target_compile_options(${target} PRIVATE ${${kind}_options})
  if(WEFT_UNITY)
    # All of a target's units are of about one size, so that none of them is alone at the end.
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "\\.cpp$")
    list(LENGTH sources count)
    math(EXPR units "(${count} + ${sources_at_once_${kind}} - 1) / ${sources_at_once_${kind}}")
    math(EXPR at_once "(${count} + ${units} - 1) / ${units}")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${at_once})
    # GCC takes a source for a header here, whose coroutine frames hold types without linkage.
    target_compile_options(${target} PRIVATE -Wno-shadow $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
  if(WEFT_PRECOMPILED_HEADERS STREQUAL none)
    return()
  endif()
  set(owner weft_precompiled_${kind})
  if(NOT TARGET ${owner})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${owner}.cpp CONTENT "")
    add_library(${owner} OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${owner}.cpp)
    target_include_directories(${owner} PRIVATE ${PROJECT_SOURCE_DIR}/include)
    if(kind STREQUAL test)
      target_link_libraries(${owner} PRIVATE GTest::gtest)
    elseif(kind STREQUAL library)
      set_target_properties(${owner} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    endif()
    target_compile_options(${owner} PRIVATE ${${kind}_options})
    weft_warnings(${owner})  # -Wpedantic defines other macros
    target_precompile_headers(${owner} PRIVATE ${precompiled_${kind}})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()

# The sources of the library with dormant defects in them take the places of those of the tree.
if(WEFT_MUTATIONS)
  set(mutate ${PROJECT_SOURCE_DIR}/tests/stress/mutate.py)
  execute_process(COMMAND ${mutate} apply ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/mutated COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB_RECURSE mutated_sources RELATIVE ${PROJECT_BINARY_DIR}/mutated ${PROJECT_BINARY_DIR}/mutated/*.cpp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${mutate} ${mutated_sources})
endif()

# weft_component(NAME runtime SOURCES ... HEADERS ... [LIBRARIES ...] [PRIVATE_LIBRARIES ...])
#
# One layer of the library: the static library weft_<NAME>, known as weft::<NAME> in this tree. HEADERS are public and get
# installed; private headers stand among the SOURCES. What gets installed as a library has all layers: libraries.cmake.
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
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${target} PUBLIC ${arg_LIBRARIES} PRIVATE ${arg_PRIVATE_LIBRARIES})
  weft_warnings(${target})
  weft_compile_as(${target} library)

  if(NOT WEFT_INSTALL)
    return()
  endif()
  foreach(header IN LISTS arg_HEADERS)
    cmake_path(GET header PARENT_PATH folder)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft/${arg_NAME}/${folder})
    set_property(GLOBAL APPEND PROPERTY weft_installed_headers ${arg_NAME}/${header})
  endforeach()
endfunction()

# weft_objects(NAME peers SOURCES ... LIBRARIES ...): sources that test programs share, by $<TARGET_OBJECTS:peers>.
function(weft_objects)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;LIBRARIES")
  add_library(${arg_NAME} OBJECT EXCLUDE_FROM_ALL ${arg_SOURCES})
  target_link_libraries(${arg_NAME} PRIVATE ${arg_LIBRARIES})
  weft_warnings(${arg_NAME})
endfunction()

set(program_kind program)  # examples/ says otherwise for itself

# What of the tests a build runs by itself; what it leaves out, `ctest -C full` runs as well, with programs that the target
# `full_tests` builds. A promise is tested once by `./dev test`, in the build that finds most: CONTRIBUTING.md has the table.
#   all       everything, with both drivers (debug, clang, asan-gcc)
#   promises  what is not about speed, nor about programs as users run them (asan)
#   examples  the programs of examples/, as users run them (asan)
#   programs  scripts, documentation, packages, guests, and what counts instructions, system calls and allocations, in
#             the library as it ships (release)
#   threads   what has the label `threads` (tsan)
set(WEFT_TESTS all CACHE STRING "Which tests run without `-C full`: all, or some of promises, examples, programs and threads")

# weft_runs(RESULT PART...): whether this build runs by itself what belongs to one of these parts.
function(weft_runs result)
  set(${result} FALSE PARENT_SCOPE)
  foreach(part IN LISTS WEFT_TESTS)
    if(part STREQUAL "all" OR part IN_LIST ARGN)
      set(${result} TRUE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# weft_command(NAME shells_complete PART programs [FULL] COMMAND ... [LABELS ...] [PROPERTIES ...])
#
# A command that is a test, in the builds that run that part by themselves, and in the full run of the others. A build for
# threads has only what has a label `threads` or `threads_full`.
function(weft_command)
  cmake_parse_arguments(PARSE_ARGV 0 arg "FULL" "NAME" "PART;COMMAND;LABELS;PROPERTIES")
  if(WEFT_TESTS STREQUAL "threads" AND NOT arg_LABELS MATCHES threads)
    return()
  endif()
  weft_runs(runs ${arg_PART})
  set(when)
  if(arg_FULL OR NOT runs)
    set(when CONFIGURATIONS full)
  endif()
  add_test(NAME ${arg_NAME} COMMAND ${arg_COMMAND} ${when})
  set_tests_properties(${arg_NAME} PROPERTIES LABELS "${arg_LABELS}" SKIP_RETURN_CODE 77 TIMEOUT 600 ${arg_PROPERTIES})
endfunction()

# weft_program(NAME copy SOURCES ... LIBRARIES ... [FULL]): an executable of this tree. One that is FULL is built by the
# target `full_tests`, and with what depends on it.
function(weft_program)
  cmake_parse_arguments(PARSE_ARGV 0 arg "FULL" "NAME" "SOURCES;LIBRARIES")
  add_executable(${arg_NAME} ${arg_SOURCES})
  set_target_properties(${arg_NAME} PROPERTIES WEFT_LINKS_LAYERS "${WEFT_LINKS_LAYERS}")
  if(arg_FULL)
    set_target_properties(${arg_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
    add_dependencies(full_tests ${arg_NAME})
  endif()
  target_link_libraries(${arg_NAME} PRIVATE ${arg_LIBRARIES})
  weft_warnings(${arg_NAME})
  if(NOT GTest::gtest IN_LIST arg_LIBRARIES)
    weft_compile_as(${arg_NAME} ${program_kind})
  endif()
endfunction()

# weft_test(NAME net_tests SOURCES ... LIBRARIES ... [DRIVERS] [FULL] [PART programs]
#           [ON_ONE_THREAD ...] [COUNTS FILTER] [LEFT_TO_FULL FILTER] [LONG FILTER] [SHARES N] [LABELS ...])
#
# One GoogleTest program, registered once; with DRIVERS once for each way to get an event driver (tests/with_driver.cpp).
#   FULL           It runs only under `ctest -C full`.
#   PART           What it belongs to: the promises, unless told. With the label `threads` it belongs to these as well, and
#                  with `threads_full` to their full run. A build for threads has nothing else.
#   ON_ONE_THREAD  More sources, in which no threads meet: a build for threads leaves them to its full run, in a program
#                  of their own with those of the SOURCES that are not called *_test.cpp.
#   COUNTS         The cases that count what the library does as it ships, or take the memory from it: where sanitizers
#                  do not let that happen, or only make it slow. They belong to the programs.
#   LEFT_TO_FULL   Cases that only the full run has.
#   LONG           Cases that take long, like those that go through every moment at which something can fail: a run of
#                  their own, with the label `long`, which `./dev check` leaves to `./dev test`.
#   SHARES         It is so long that it runs as N processes, each with a part of its cases.
# A FILTER is GoogleTest's, without a minus.
#
# Of the drivers a build runs one by itself: io_uring, and epoll under the thread sanitizer, which sees what epoll's calls
# touch, not what an io_uring does. What gets epoll because io_uring is forbidden is for the full run: it is the same epoll
# from then on.
#
# Each run leaves its cases in results/<registered name>.xml, from where ./dev counts them.
function(weft_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "DRIVERS;FULL" "NAME;PART;COUNTS;LEFT_TO_FULL;LONG;SHARES"
                        "SOURCES;ON_ONE_THREAD;LIBRARIES;LABELS")
  if(arg_ON_ONE_THREAD AND WEFT_TESTS STREQUAL "threads")
    set(around ${arg_SOURCES})
    list(FILTER around EXCLUDE REGEX "_test\\.cpp$")
    set(drivers)
    if(arg_DRIVERS)
      set(drivers DRIVERS)
    endif()
    weft_test(NAME ${arg_NAME}_on_one_thread ${drivers} FULL SOURCES ${around} ${arg_ON_ONE_THREAD}
              LIBRARIES ${arg_LIBRARIES} LABELS threads)
  else()
    list(APPEND arg_SOURCES ${arg_ON_ONE_THREAD})
  endif()
  set(parts promises)
  if(arg_PART)
    set(parts ${arg_PART})
  endif()
  if("threads" IN_LIST arg_LABELS)
    list(APPEND parts threads)
  endif()
  weft_runs(runs ${parts})
  set(full)
  if(arg_FULL OR NOT runs)
    set(full FULL)
  endif()
  set(built ${full})
  if(arg_COUNTS AND WEFT_TESTS STREQUAL "programs")
    set(built)
  endif()
  weft_program(NAME ${arg_NAME} SOURCES ${arg_SOURCES} $<TARGET_OBJECTS:still_running>
               LIBRARIES ${arg_LIBRARIES} GTest::gtest GTest::gtest_main ${built})
  weft_compile_as(${arg_NAME} test)
  if(arg_COUNTS AND WEFT_TESTS STREQUAL "programs")
    weft_cases(${arg_NAME}.that_count "" "${arg_LABELS}" $<TARGET_FILE:${arg_NAME}> --gtest_filter=${arg_COUNTS})
  endif()

  set(usual io_uring)
  if(WEFT_TESTS STREQUAL "threads")
    set(usual epoll)
  endif()
  if(WEFT_TESTS STREQUAL "all")
    set(usual io_uring epoll)
  endif()
  set(drivers any)
  if(arg_DRIVERS)
    set(drivers io_uring epoll io_uring_forbidden)
  endif()
  foreach(driver IN LISTS drivers)
    set(name ${arg_NAME})
    set(command $<TARGET_FILE:${arg_NAME}>)
    set(when ${full})
    set(elsewhere)
    if(NOT driver STREQUAL "any")
      set(name ${arg_NAME}.${driver})
      set(command $<TARGET_FILE:with_driver> ${driver} ${command})
      if(NOT driver IN_LIST usual)
        set(when FULL)
      endif()
    endif()
    if(arg_LEFT_TO_FULL AND NOT when AND NOT WEFT_TESTS STREQUAL "all")
      weft_cases(${name}.left_to_full FULL "${arg_LABELS}" ${command} --gtest_filter=${arg_LEFT_TO_FULL})
      set(elsewhere -${arg_LEFT_TO_FULL})
    endif()
    if(arg_LONG)
      weft_cases(${name}.long "${when}" "${arg_LABELS};long" ${command} --gtest_filter=${arg_LONG}${elsewhere})
      set(elsewhere ${elsewhere}:${arg_LONG})
    endif()
    if(elsewhere)
      string(REGEX REPLACE "^[:-]+" "-" elsewhere ${elsewhere})
      list(APPEND command --gtest_filter=${elsewhere})
    endif()
    weft_cases(${name} "${when}" "${arg_LABELS}" ${command} SHARES ${arg_SHARES})
  endforeach()
endfunction()

# weft_cases(NAME FULL|"" LABELS COMMAND... [SHARES N]): a run of a GoogleTest program, whose report goes where ./dev looks
# for it.
function(weft_cases name full labels)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "SHARES" "")
  if(NOT arg_SHARES)
    set(arg_SHARES 1)
  endif()
  foreach(share RANGE 1 ${arg_SHARES})
    set(run ${name})
    set(cost)
    if(arg_SHARES GREATER 1)
      string(APPEND run .${share}_of_${arg_SHARES})
      set(cost COST 90)  # what takes long begins first, so that no core is idle at the end
    endif()
    weft_command(NAME ${run} ${full} PART ${WEFT_TESTS} LABELS ${labels} COMMAND ${arg_UNPARSED_ARGUMENTS} PROPERTIES
                 TIMEOUT 1800 ${cost} ENVIRONMENT "GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/results/${run}.xml")
    if(TEST ${run} AND arg_SHARES GREATER 1)
      math(EXPR index "${share} - 1")
      set_property(TEST ${run} APPEND PROPERTY ENVIRONMENT GTEST_TOTAL_SHARDS=${arg_SHARES} GTEST_SHARD_INDEX=${index})
    endif()
  endforeach()
endfunction()

# weft_vm_test(NAME verbs_tests COMMAND $<TARGET_FILE:verbs_tests> ... [DEVICES rxe] [FULL] [OPTIONS ...])
#
# A command that runs as root in a virtual machine (tests/vm), a GoogleTest program for instance; OPTIONS are for vm.py.
# It is skipped, and says why, where there can be no such machine. With FULL it runs only under `ctest -C full`.
function(weft_vm_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "FULL" "NAME;DEVICES" "COMMAND;OPTIONS")
  set(configurations)
  if(arg_FULL)
    set(configurations full)
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
    LABELS vm PROCESSORS 2 SKIP_RETURN_CODE 77 TIMEOUT 1100)
endfunction()
