# lockstep_tests.cmake: how tests are added, and which tests every stage has.

# The environment of every test: no BLAS kernels forced on us, clean reports from the sanitizers.
set(LOCKSTEP_TEST_ENVIRONMENT
    "OPENBLAS_NUM_THREADS=1"
    "OMPI_ALLOW_RUN_AS_ROOT=1" "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    "ASAN_OPTIONS=detect_leaks=1:abort_on_error=0"
    "LSAN_OPTIONS=suppressions=${LOCKSTEP_ROOT}/tests/lsan.supp:print_suppressions=0"
    "TSAN_OPTIONS=suppressions=${LOCKSTEP_ROOT}/tests/tsan.supp")

# Open MPI counts cores and refuses more ranks than that; MPICH does not.
execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE launcher ERROR_QUIET)
if(launcher MATCHES "Open MPI|OpenRTE|PRRTE")
    set(LOCKSTEP_MPIEXEC ${MPIEXEC_EXECUTABLE} --oversubscribe)
else()
    set(LOCKSTEP_MPIEXEC ${MPIEXEC_EXECUTABLE})
endif()

# What tests share: comparisons with messages, small data sets, cmocka under mpiexec.
if(cmocka_FOUND AND NOT TARGET lockstep_testing)
    add_library(lockstep_testing STATIC ${LOCKSTEP_ROOT}/tests/expect.c ${LOCKSTEP_ROOT}/tests/mpi_main.c
                                        ${LOCKSTEP_ROOT}/tests/toy_data.c)
    target_include_directories(lockstep_testing PUBLIC ${LOCKSTEP_ROOT}/tests)
    target_link_libraries(lockstep_testing PUBLIC lockstep_common PkgConfig::cmocka)
elseif(NOT cmocka_FOUND)
    message(STATUS "cmocka is missing: no tests are built (Debian and Ubuntu: libcmocka-dev)")
endif()

# lockstep_test(NAME TARGET RANKS LABELS...): runs a test program; RANKS 0: without mpiexec.
function(lockstep_test name target ranks)
    if(ranks EQUAL 0)
        add_test(NAME ${name} COMMAND ${target})
        set(processors 1)
    else()
        add_test(NAME ${name} COMMAND ${LOCKSTEP_MPIEXEC} -n ${ranks} $<TARGET_FILE:${target}>)
        set(processors 2)
    endif()
    set_tests_properties(${name} PROPERTIES TIMEOUT 300 PROCESSORS ${processors} LABELS "${ARGN}"
                                            ENVIRONMENT "${LOCKSTEP_TEST_ENVIRONMENT}")
endfunction()

# lockstep_stage_tests(NUMBER): the tests of the stage in the calling directory.
function(lockstep_stage_tests number)
    if(NOT cmocka_FOUND)
        return()
    endif()
    add_executable(test_equivalence_stage${number} ${LOCKSTEP_ROOT}/tests/test_equivalence.c)
    target_link_libraries(test_equivalence_stage${number} PRIVATE lockstep_testing lockstep_train ddp_stage${number}
                                                                  lockstep_train)
    foreach(ranks 1 2 3 4)
        lockstep_test(stage${number}_equivalence_${ranks}_ranks test_equivalence_stage${number} ${ranks} stage${number}
                      mpi)
    endforeach()
    lockstep_test(stage${number}_equivalence_8_ranks test_equivalence_stage${number} 8 stage${number} mpi slow)
endfunction()
