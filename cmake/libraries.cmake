# SPDX-License-Identifier: Apache-2.0
# The libraries that programs link, made of what the layers are compiled to: nothing is compiled twice.
#
#   weft::static  libweft.a. In this tree it is the layers as they are, so that a change archives no more than it must
#   weft::shared  libweft.so, with WEFT_SHARED. It exports what cmake/weft.map lists, and all else in it is local
#   weft::weft    one of the two: shared if BUILD_SHARED_LIBS is on, as find_package(weft) decides for programs outside
#
# A program links one of them, once: two copies of weft in a process do not know of each other.
set(layers $<TARGET_OBJECTS:weft_runtime> $<TARGET_OBJECTS:weft_mr> $<TARGET_OBJECTS:weft_net>)
set(private_libraries fmt::fmt PkgConfig::WEFT_LIBURING)
if(WEFT_WITH_IWARP)
  list(APPEND private_libraries PkgConfig::WEFT_LIBISAL)
endif()
if(WEFT_WITH_VERBS)
  list(APPEND private_libraries PkgConfig::WEFT_RDMA_CORE)
endif()

add_library(weft_static INTERFACE)
add_library(weft::static ALIAS weft_static)
target_link_libraries(weft_static INTERFACE weft_net weft_mr weft_runtime)

# weft_library(TARGET STATIC|SHARED): one that gets installed.
function(weft_library target kind)
  add_library(${target} ${kind} ${layers})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME weft)
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                 $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PUBLIC Threads::Threads PRIVATE ${private_libraries})
endfunction()

if(WEFT_INSTALL)
  weft_library(weft_archive STATIC)
  set_target_properties(weft_archive PROPERTIES EXPORT_NAME static)
endif()
if(WEFT_SHARED)
  weft_library(weft_shared SHARED)
  add_library(weft::shared ALIAS weft_shared)
  set(map ${PROJECT_SOURCE_DIR}/cmake/weft.map)
  set_target_properties(weft_shared PROPERTIES
    EXPORT_NAME shared VERSION ${PROJECT_VERSION} SOVERSION ${WEFT_SOVERSION} LINK_DEPENDS ${map})
  # The library calls its own functions without a detour, and whoever links it gets no library that only it needs.
  # A build without a transport lacks nothing that the map lists, for no public header is about one transport.
  target_link_options(weft_shared PRIVATE LINKER:--version-script=${map} LINKER:-Bsymbolic-functions LINKER:--as-needed)
  if(NOT WEFT_SANITIZE AND NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
    target_link_options(weft_shared PRIVATE LINKER:-z,defs)
  endif()
endif()

# The tests look behind the public headers, so they always link the layers: tests/CMakeLists.txt sets WEFT_LINKS_LAYERS.
add_library(weft INTERFACE)
add_library(weft::weft ALIAS weft)
if(BUILD_SHARED_LIBS AND WEFT_SHARED)
  target_link_libraries(weft INTERFACE $<IF:$<BOOL:$<TARGET_PROPERTY:WEFT_LINKS_LAYERS>>,weft_static,weft_shared>)
else()
  target_link_libraries(weft INTERFACE weft_static)
endif()
