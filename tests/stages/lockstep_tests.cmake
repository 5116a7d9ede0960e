# lockstep_tests.cmake: functions that add tests, and the tests of a stage. (In a starter: course/starter.cmake.) The
# program around the stages is tested in tests/train.
include(${CMAKE_CURRENT_LIST_DIR}/graded.cmake)
list(APPEND LOCKSTEP_TEST_ENVIRONMENT
     "TSAN_OPTIONS=suppressions=${LOCKSTEP_ROOT}/tests/stages/tsan.supp:halt_on_error=1:handle_segv=2")
if(LOCKSTEP_OPEN_MPI) # -q: only our own lines on stderr
    list(APPEND LOCKSTEP_TEST_ENVIRONMENT "MPIEXEC_FLAGS=--oversubscribe --bind-to none -q")
endif()

# Shared by all tests: comparisons with messages, small data sets, cmocka under mpiexec.
if(cmocka_FOUND AND NOT TARGET lockstep_testing)
    add_library(lockstep_testing STATIC ${LOCKSTEP_ROOT}/tests/stages/choose_case.c
                                        ${LOCKSTEP_ROOT}/tests/stages/expect.c ${LOCKSTEP_ROOT}/tests/stages/given.c
                                        ${LOCKSTEP_ROOT}/tests/stages/judge.c ${LOCKSTEP_ROOT}/tests/stages/judge_stage.c
                                        ${LOCKSTEP_ROOT}/tests/stages/mpi_main.c
                                        ${LOCKSTEP_ROOT}/tests/stages/toy_models.c)
    target_include_directories(lockstep_testing PUBLIC ${LOCKSTEP_ROOT}/tests/stages)
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

# lockstep_script(NAME LABEL PROCESSORS SCRIPT ARGUMENTS...): runs a shell script; SCRIPT is its path below tests/.
function(lockstep_script name label processors script)
    add_test(NAME ${name} COMMAND bash ${LOCKSTEP_ROOT}/tests/${script} ${ARGN})
    set_tests_properties(${name} PROPERTIES TIMEOUT 600 PROCESSORS ${processors} LABELS "${label}"
                                            ENVIRONMENT "${LOCKSTEP_TEST_ENVIRONMENT}")
endfunction()

# lockstep_link_stage(PROGRAM NUMBER): links a test program with a stage, and what watches the stage's calls.
function(lockstep_link_stage program number)
    target_sources(${program} PRIVATE ${LOCKSTEP_ROOT}/tests/stages/untouched.c ${LOCKSTEP_ROOT}/tests/stages/lent.c)
    lockstep_wrap(${program} PRIVATE of_all)
    target_link_libraries(${program} PRIVATE lockstep_testing lockstep_train ddp_stage${number} lockstep_train)
endfunction()

# lockstep_stage_program(NUMBER NAME [ROOM]): links tests/ROOM/NAME.c (default: stages) with the stage, as
# NAME_stageNUMBER.
function(lockstep_stage_program number name)
    set(room stages ${ARGN})
    list(GET room -1 room)
    add_executable(${name}_stage${number} ${LOCKSTEP_ROOT}/tests/${room}/${name}.c)
    lockstep_link_stage(${name}_stage${number} ${number})
endfunction()

# lockstep_watch(PROGRAM): links what sees the stage's calls of the process group.
function(lockstep_watch program)
    target_sources(${program} PRIVATE ${LOCKSTEP_ROOT}/tests/stages/watch.c
                                      ${LOCKSTEP_ROOT}/tests/stages/watch_calls.c)
    lockstep_wrap(${program} PRIVATE launches)
endfunction()

# Tests of all stages, in all combinations of modes. With 5 and 7 ranks, too: sizes that nothing else has.
function(lockstep_mode_tests number)
    set(names modes mode_memory)
    if(number GREATER 2)
        list(APPEND names mode_events)
    endif()
    if(number EQUAL 5)
        set(fours 4) # two groups of ranks that share
    endif()
    foreach(name ${names})
        set(program test_${name}_stage${number})
        lockstep_stage_program(${number} test_${name})
        target_sources(${program} PRIVATE ${LOCKSTEP_ROOT}/tests/stages/modes.c
                                          ${LOCKSTEP_ROOT}/tests/stages/modes_model.c
                                          ${LOCKSTEP_ROOT}/tests/stages/modes_state.c
                                          ${LOCKSTEP_ROOT}/tests/stages/modes_update.c
                                          ${LOCKSTEP_ROOT}/tests/stages/modes_trial.c)
        foreach(ranks 1 2 3 ${fours} 5 7)
            lockstep_test(stage${number}_${name}_${ranks}_ranks ${program} ${ranks} stage${number} mpi)
        endforeach()
        set_property(TEST stage${number}_${name}_5_ranks APPEND PROPERTY LABELS slow) # 7: also no power of two
        if(NOT name STREQUAL "modes") # the contract has the same questions on simulated ranks
            set_property(TEST stage${number}_${name}_7_ranks APPEND PROPERTY LABELS slow)
        endif()
    endforeach()
    target_sources(test_modes_stage${number} PRIVATE ${LOCKSTEP_ROOT}/tests/stages/freed.c)
    lockstep_watch(test_modes_stage${number})
    lockstep_wrap(test_modes_stage${number} PRIVATE modes)
    if(number GREATER 2)
        lockstep_watch(test_mode_events_stage${number})
    endif()
    target_sources(test_mode_memory_stage${number} PRIVATE ${LOCKSTEP_ROOT}/tests/stages/live_bytes.c)
    lockstep_wrap(test_mode_memory_stage${number} PRIVATE mode_memory)
endfunction()

# lockstep_module_test(NUMBER NAME RANKS LABEL): tests a module of the stage, apart from its ddp.c.
function(lockstep_module_test number name ranks label)
    add_executable(test_${name} ${LOCKSTEP_ROOT}/tests/stages/test_${name}.c)
    target_link_libraries(test_${name} PRIVATE lockstep_testing lockstep_train ddp_stage${number} lockstep_train)
    lockstep_test(${name} test_${name} ${ranks} ${label})
endfunction()

# The tests of stages 3 and 4 only: overlap, event order, unused parameters.
function(lockstep_overlap_tests number)
    foreach(name test_launches test_overlap) # they wrap functions of the process group
        lockstep_stage_program(${number} ${name})
        target_sources(${name}_stage${number} PRIVATE ${LOCKSTEP_ROOT}/tests/stages/branch_pair.c)
        lockstep_watch(${name}_stage${number})
    endforeach()
    foreach(ranks 1 2 3 4)
        lockstep_test(stage${number}_launches_${ranks}_ranks test_launches_stage${number} ${ranks} stage${number} mpi)
        lockstep_test(stage${number}_overlap_${ranks}_ranks test_overlap_stage${number} ${ranks} stage${number} mpi)
    endforeach()
    # The communication thread runs beside backward, so these tests also run under the thread sanitizer.
    foreach(name launches overlap equivalence)
        set_property(TEST stage${number}_${name}_2_ranks APPEND PROPERTY LABELS thread)
    endforeach()
endfunction()

# The tests of stage 5 only. Those of all stages are run at level 2, and the equivalence at all levels.
function(lockstep_sharded_tests)
    target_sources(test_equivalence_stage5 PRIVATE ${LOCKSTEP_ROOT}/tests/stages/weight_suspects.c)
    foreach(name test_sharded test_shards test_gathers)
        lockstep_stage_program(5 ${name})
        target_sources(${name}_stage5 PRIVATE ${LOCKSTEP_ROOT}/tests/stages/sharded_run.c)
    endforeach()
    foreach(ranks 1 2 3 4)
        lockstep_test(stage5_sharded_${ranks}_ranks test_sharded_stage5 ${ranks} stage5 mpi)
        lockstep_test(stage5_shards_${ranks}_ranks test_shards_stage5 ${ranks} stage5 mpi)
        lockstep_test(stage5_gathers_${ranks}_ranks test_gathers_stage5 ${ranks} stage5 mpi)
        foreach(zero 1 3)
            foreach(name equivalence toys)
                set(test stage5_${name}_zero_${zero}_${ranks}_ranks)
                lockstep_test(${test} test_${name}_stage5 ${ranks} stage5 mpi)
                set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT "LOCKSTEP_TEST_ZERO=${zero}")
                if(NOT ranks EQUAL 2)
                    set_property(TEST ${test} APPEND PROPERTY LABELS slow)
                endif()
            endforeach()
        endforeach()
    endforeach()
    lockstep_test(stage5_gathers_other_reader test_gathers_stage5 2 stage5 mpi)
    set_property(TEST stage5_gathers_other_reader APPEND PROPERTY ENVIRONMENT LOCKSTEP_TEST_OTHER_READER=1)
    set_property(TEST stage5_gathers_other_reader PROPERTY PASS_REGULAR_EXPRESSION
                 "parameter fc[123].weight was gathered in bfloat16, because only matrix products read it")
    foreach(name sharded shards equivalence equivalence_zero_3)
        set_property(TEST stage5_${name}_2_ranks APPEND PROPERTY LABELS thread)
    endforeach()
endfunction()

# lockstep_stage_tests(NUMBER): the tests of the stage in the calling directory.
function(lockstep_stage_tests number)
    if(NOT cmocka_FOUND)
        return()
    endif()
    add_executable(test_equivalence_stage${number} ${LOCKSTEP_ROOT}/tests/stages/test_equivalence.c
                                                   ${LOCKSTEP_ROOT}/tests/stages/training_pair.c
                                                   ${LOCKSTEP_ROOT}/tests/stages/gradient_suspects.c
                                                   ${LOCKSTEP_ROOT}/tests/stages/freed.c)
    lockstep_link_stage(test_equivalence_stage${number} ${number})
    lockstep_wrap(test_equivalence_stage${number} PRIVATE equivalence)
    foreach(ranks 1 2 3 4)
        lockstep_test(stage${number}_equivalence_${ranks}_ranks test_equivalence_stage${number} ${ranks} stage${number}
                      mpi)
    endforeach()
    set_property(TEST stage${number}_equivalence_4_ranks APPEND PROPERTY LABELS slow) # 5 and 7 ranks: in all modes
    lockstep_mode_tests(${number})
    lockstep_stage_program(${number} test_toys)
    if(number EQUAL 5)
        lockstep_sharded_tests()
    endif()
    foreach(ranks 1 2 3 4)
        lockstep_test(stage${number}_toys_${ranks}_ranks test_toys_stage${number} ${ranks} stage${number} mpi)
    endforeach()
    lockstep_test(stage${number}_toys_8_ranks test_toys_stage${number} 8 stage${number} mpi slow)
    lockstep_test(stage${number}_equivalence_8_ranks test_equivalence_stage${number} 8 stage${number} mpi slow)
    lockstep_stage_program(${number} bits)
    lockstep_test(stage${number}_bits_3_ranks bits_stage${number} 3 stage${number} mpi) # all stages: test_bits.sh
    lockstep_stage_program(${number} missing_gradient)
    lockstep_script(stage${number}_missing_gradient stage${number} 2 stages/test_missing_gradient.sh
                    $<TARGET_FILE:missing_gradient_stage${number}> ${LOCKSTEP_MPIEXEC})
    if(number LESS 3)
        lockstep_script(stage${number}_hides_nothing stage${number} 2 stages/test_hides_nothing.sh
                        $<TARGET_FILE:train_stage${number}> ${LOCKSTEP_MPIEXEC})
    endif()
    if(number GREATER 2)
        lockstep_stage_program(${number} static_graph)
        lockstep_script(stage${number}_static_graph stage${number} 2 stages/test_static_graph.sh
                        $<TARGET_FILE:static_graph_stage${number}> ${LOCKSTEP_MPIEXEC})
    endif()
    if(number EQUAL 3 OR number EQUAL 4)
        lockstep_overlap_tests(${number})
    endif()
    if(number EQUAL 2)
        lockstep_module_test(2 buckets 0 unit)
    endif()
    if(number EQUAL 3)
        lockstep_module_test(3 readiness 0 unit)
        lockstep_module_test(3 agreement 2 mpi)
    endif()
    if(number EQUAL 3 OR number EQUAL 5)
        lockstep_stage_program(${number} test_groups)
        lockstep_test(stage${number}_groups_4_ranks test_groups_stage${number} 4 stage${number} mpi thread)
    endif()
    if(number EQUAL 4)
        lockstep_script(stage4_precision_runs stage4 2 stages/test_precision_runs.sh $<TARGET_FILE:train_stage4>
                        ${LOCKSTEP_MPIEXEC})
        lockstep_stage_program(4 test_overflow)
        lockstep_stage_program(4 test_no_sync)
        foreach(ranks 1 2 3 4)
            lockstep_test(stage4_no_sync_${ranks}_ranks test_no_sync_stage4 ${ranks} stage4 mpi)
            lockstep_test(stage4_overflow_${ranks}_ranks test_overflow_stage4 ${ranks} stage4 mpi)
        endforeach()
    endif()
endfunction()
