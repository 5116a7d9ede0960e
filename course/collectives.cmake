# CMakeLists.txt: builds the tests by which collectives/collectives.c is graded, and collectives/measure.
#
#   cmake -B build && cmake --build build -j2
cmake_minimum_required(VERSION 3.25)
project(collectives LANGUAGES C)

find_package(MPI REQUIRED COMPONENTS C)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(cmocka REQUIRED IMPORTED_TARGET cmocka)

@FLAGS@
include_directories(${CMAKE_SOURCE_DIR} common collectives tests/stages tests/collectives)

# ---- your functions, between the messages and the tests ----
file(GLOB common CONFIGURE_DEPENDS common/*/*.c)
add_library(common STATIC ${common})
target_link_libraries(common PUBLIC MPI::MPI_C Threads::Threads m)
add_library(calls STATIC tests/stages/stage_jumps.c)
target_link_libraries(calls PUBLIC common)
target_compile_definitions(calls PRIVATE LOCKSTEP_STAGE=0)
add_library(collectives STATIC collectives/collectives.c)
target_link_libraries(collectives PUBLIC calls)
target_compile_options(collectives PRIVATE -fstack-clash-protection) # tests/collectives/arrays.c
set(written collectives)
@CHECKED@

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/collectives)
@COMMON@
set(program test_collectives_stage0)
add_executable(${program} tests/collectives/test_collectives.c tests/collectives/trial.c tests/collectives/arrays.c
                          tests/collectives/mailboxes.c tests/stages/choose_case.c tests/stages/expect.c
                          tests/stages/judge.c)
target_link_libraries(${program} PRIVATE collectives PkgConfig::cmocka)
lockstep_wrap(${program} PRIVATE collectives)
add_executable(measure tests/collectives/measure.c)
target_link_libraries(measure PRIVATE collectives)
enable_testing()
add_test(NAME stage0_collectives COMMAND ${program})
set_tests_properties(stage0_collectives PROPERTIES TIMEOUT 300 ENVIRONMENT "${LOCKSTEP_TEST_ENVIRONMENT}")
