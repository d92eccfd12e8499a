# SPDX-License-Identifier: Apache-2.0
# Says once if the compiler destroys twice what coroutines make inside braces: docs/gcc-12.md. A small program tells,
# because distributions mend compilers without another version. Sets WEFT_COMPILER_DESTROYS_TWICE in the cache.
if(DEFINED WEFT_COMPILER_DESTROYS_TWICE OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  return()
endif()

set(weft_probe_told FALSE)
if(NOT CMAKE_CROSSCOMPILING)
  try_run(weft_probe_status weft_probe_compiled ${CMAKE_BINARY_DIR}/CMakeFiles/weft-compiler-probe
          ${CMAKE_CURRENT_LIST_DIR}/weft-compiler-probe.cpp COMPILE_DEFINITIONS -std=c++20)
  if(weft_probe_compiled AND weft_probe_status MATCHES "^[01]$")
    set(weft_probe_told TRUE)
  endif()
  unset(weft_probe_compiled CACHE)
endif()
if((weft_probe_told AND weft_probe_status) OR (NOT weft_probe_told AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13))
  set(weft_destroys_twice TRUE)
  message(NOTICE "weft: this compiler, GCC ${CMAKE_CXX_COMPILER_VERSION}, destroys twice what a coroutine makes inside "
                 "braces in an expression with co_await. Name such objects first; weft-check-coroutines finds where. "
                 "See docs/gcc-12.md.")
else()
  set(weft_destroys_twice FALSE)
endif()
unset(weft_probe_status CACHE)
set(WEFT_COMPILER_DESTROYS_TWICE ${weft_destroys_twice} CACHE INTERNAL "Whether the compiler has the defect of GCC 12")
