# SPDX-License-Identifier: Apache-2.0
# weft::simulation: the kernel, network and time of tests/sim, out of a seed, for the tests of a program that has weft by
# add_subdirectory() or FetchContent. Included as <world.hpp>. Built when something needs it; not installed.
set(simulation_parts baton.hpp local_kernel.cpp local_kernel.hpp random.hpp workers.cpp workers.hpp world.cpp world.hpp)
list(TRANSFORM simulation_parts PREPEND ${PROJECT_SOURCE_DIR}/tests/sim/)
add_library(weft_simulation STATIC EXCLUDE_FROM_ALL ${simulation_parts})
add_library(weft::simulation ALIAS weft_simulation)
target_include_directories(weft_simulation PUBLIC ${PROJECT_SOURCE_DIR}/tests/sim)
target_link_libraries(weft_simulation PUBLIC weft::weft PRIVATE fmt::fmt)
weft_warnings(weft_simulation)
weft_compile_as(weft_simulation program)
