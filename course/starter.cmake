# CMakeLists.txt: builds @STAGE@/train, and the tests by which it is graded.
#
#   cmake -B build && cmake --build build -j2
cmake_minimum_required(VERSION 3.25)
project(@STAGE@ LANGUAGES C)

find_package(MPI REQUIRED COMPONENTS C)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
foreach(package openblas zlib libcjson cmocka)
    pkg_check_modules(${package} REQUIRED IMPORTED_TARGET ${package})
endforeach()

@FLAGS@
include_directories(${CMAKE_SOURCE_DIR} common tests/stages)

# ---- the program: common/ below your ddp.c, train/ above it ----
file(GLOB common CONFIGURE_DEPENDS common/*.c common/*/*.c)
list(FILTER common EXCLUDE REGEX "/common/ddp/")
add_library(common STATIC ${common})
target_link_libraries(common PUBLIC MPI::MPI_C PkgConfig::openblas PkgConfig::zlib Threads::Threads m)

add_library(calls STATIC tests/stages/stage_calls.c tests/stages/stage_jumps.c tests/stages/stage_prints.c)
target_link_libraries(calls PUBLIC common)
target_compile_definitions(calls PUBLIC LOCKSTEP_STAGE=@NUMBER@ LOCKSTEP_STAGE_IS_APART)

# Other names for what it calls, and one name for the sections of its code: tests/stages/stage_calls.c says why.
file(GLOB stage CONFIGURE_DEPENDS stage*/*.c common/ddp/*.c)
add_library(ddp STATIC ${stage})
target_link_libraries(ddp PUBLIC calls)
set(written ddp)
set(other_names --redefine-syms=${CMAKE_SOURCE_DIR}/tests/stages/stage_calls.syms)
@CHECKED@

file(GLOB_RECURSE train CONFIGURE_DEPENDS train/*.c)
list(REMOVE_ITEM train ${CMAKE_SOURCE_DIR}/train/main.c)
add_library(around STATIC ${train})
target_link_libraries(around PUBLIC ddp PkgConfig::libcjson)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/@STAGE@)
add_executable(train train/main.c)
target_link_libraries(train PRIVATE around)

# ---- the graded tests ----
set(graded @GRADED@)
file(GLOB helpers CONFIGURE_DEPENDS tests/stages/*.c)
list(FILTER helpers EXCLUDE REGEX "/(test_.*|bits|missing_gradient|stage_[a-z]+|modes.*|live_bytes)\\.c$")
add_library(testing STATIC ${helpers})
target_link_libraries(testing PUBLIC around PkgConfig::cmocka)
@COMMON@
list(APPEND LOCKSTEP_TEST_ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1:handle_segv=2${no_deadlocks}")
lockstep_wrap(testing INTERFACE of_all)

enable_testing()
foreach(name ${graded})
    set(program test_${name}_stage@NUMBER@)
    if(EXISTS ${CMAKE_SOURCE_DIR}/tests/stages/test_${name}.c) # cases, to be run one by one or all at once
        add_executable(${program} tests/stages/test_${name}.c)
    else() # a program that is one case
        set(program ${name}_stage@NUMBER@)
        add_executable(${program} tests/stages/${name}.c)
    endif()
    if(name MATCHES "^mode")
        target_sources(${program} PRIVATE tests/stages/modes.c tests/stages/modes_model.c tests/stages/modes_state.c
                                          tests/stages/modes_trial.c tests/stages/modes_update.c)
    endif()
    if(name STREQUAL mode_memory) # what it replaces, others replace in another way
        target_sources(${program} PRIVATE tests/stages/live_bytes.c)
    endif()
    target_link_libraries(${program} PRIVATE testing)
    lockstep_wrap(${program} PRIVATE ${name})
    set(test stage@NUMBER@_${name})
    if(name STREQUAL buckets) # without MPI
        add_test(NAME ${test} COMMAND ${program})
        set(tests ${test})
    elseif(EXISTS ${CMAKE_SOURCE_DIR}/tests/stages/test_${name}.sh)
        add_test(NAME ${test} COMMAND bash ${CMAKE_SOURCE_DIR}/tests/stages/test_${name}.sh $<TARGET_FILE:${program}>
                                      ${LOCKSTEP_MPIEXEC})
        set(tests ${test})
    else()
        set(tests)
        foreach(ranks 2 3)
            add_test(NAME ${test}_${ranks}_ranks COMMAND ${LOCKSTEP_MPIEXEC} -n ${ranks} $<TARGET_FILE:${program}>)
            list(APPEND tests ${test}_${ranks}_ranks)
        endforeach()
    endif()
    set_tests_properties(${tests} PROPERTIES TIMEOUT 300 PROCESSORS 2 ENVIRONMENT "${LOCKSTEP_TEST_ENVIRONMENT}")
    if(@NUMBER@ EQUAL 5 AND name MATCHES "^(equivalence|toys)$") # so far at level 2; the others run at all levels
        foreach(zero 1 3)
            set(test stage@NUMBER@_${name}_zero_${zero}_2_ranks)
            add_test(NAME ${test} COMMAND ${LOCKSTEP_MPIEXEC} -n 2 $<TARGET_FILE:${program}>)
            set_tests_properties(${test} PROPERTIES TIMEOUT 300 PROCESSORS 2
                                                    ENVIRONMENT "${LOCKSTEP_TEST_ENVIRONMENT};LOCKSTEP_TEST_ZERO=${zero}")
        endforeach()
    endif()
endforeach()
