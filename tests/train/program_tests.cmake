# program_tests.cmake: the tests of `train` that are run with a stage's program.

# lockstep_program_tests(NUMBER): for the stage in the calling directory.
function(lockstep_program_tests number)
    if(NOT cmocka_FOUND)
        return()
    endif()
    # The command line is the same code in every stage, and test_refusals.c tests it: so two ranks only in stage 1.
    lockstep_script(stage${number}_command_line cli 1 train/test_cli.sh $<TARGET_FILE:train_stage${number}>
                    ${MPIEXEC_EXECUTABLE})
    if(number EQUAL 1)
        lockstep_script(stage1_command_line_files cli 2 train/test_cli_files.sh $<TARGET_FILE:train_stage1>
                        ${MPIEXEC_EXECUTABLE})
        set_property(TEST stage1_command_line_files APPEND PROPERTY ENVIRONMENT "CLI_RANKS=2")
    else()
        set_property(TEST stage${number}_command_line APPEND PROPERTY ENVIRONMENT "CLI_RANKS=1")
    endif()
    if(LOCKSTEP_WITH_CUDA AND number EQUAL 4) # what can be seen of it without a GPU; before stage 4, no --precision
        lockstep_script(stage4_cuda_command_line cli 2 gpu/test_cuda_cli.sh $<TARGET_FILE:train_stage4_cuda>
                        ${MPIEXEC_EXECUTABLE})
    endif()
    # Joining and batch norm are the same code in every stage. So quick are: the stage that divides last (1), and the one
    # with micro-batches and dropout (4); and the one with shards, for the running statistics (5).
    lockstep_script(stage${number}_join "stage${number};mpi" 2 train/test_join.sh $<TARGET_FILE:train_stage${number}>
                    ${MPIEXEC_EXECUTABLE})
    if(NOT number EQUAL 1 AND NOT number EQUAL 4)
        set_property(TEST stage${number}_join APPEND PROPERTY LABELS slow)
    endif()
    lockstep_script(stage${number}_norm "stage${number};mpi" 2 train/test_norm.sh $<TARGET_FILE:train_stage${number}>
                    ${MPIEXEC_EXECUTABLE})
    if(NOT number EQUAL 5)
        set_property(TEST stage${number}_norm APPEND PROPERTY LABELS slow)
    endif()
    if(number EQUAL 4)
        lockstep_script(stage4_periodic "stage4;mpi" 2 train/test_periodic.sh $<TARGET_FILE:train_stage4>
                        ${MPIEXEC_EXECUTABLE})
        lockstep_script(stage4_resume stage4 2 train/test_resume.sh $<TARGET_FILE:train_stage4> ${LOCKSTEP_MPIEXEC})
        if(TARGET train_stage1) # not where stage 4 is built alone
            set(other_stage $<TARGET_FILE:train_stage1>)
        endif()
        lockstep_script(stage4_ranks_differ "stage4;faults" 2 train/test_ranks_differ.sh $<TARGET_FILE:train_stage4>
                        ${MPIEXEC_EXECUTABLE} ${other_stage})
        lockstep_script(stage4_every_flag_differs "stage4;slow" 2 train/test_ranks_differ.sh --every-flag
                        $<TARGET_FILE:train_stage4> ${MPIEXEC_EXECUTABLE})
        lockstep_script(stage4_report stage4 2 train/test_report.sh $<TARGET_FILE:train_stage4> ${MPIEXEC_EXECUTABLE})
        lockstep_script(stage4_outputs stage4 2 train/test_outputs.sh $<TARGET_FILE:train_stage4> ${MPIEXEC_EXECUTABLE})
    endif()
    if(number EQUAL 5)
        if(TARGET train_stage4) # not where stage 5 is built alone
            set(stage4 $<TARGET_FILE:train_stage4>)
        endif()
        lockstep_script(stage5_sharded_runs stage5 2 train/test_sharded_runs.sh $<TARGET_FILE:train_stage5>
                        ${MPIEXEC_EXECUTABLE} ${stage4})
    endif()
    # A loss or gradient that is not finite: `train` itself, with some functions replaced by the test's. No stage has
    # code for this, but stages 3 to 5 must get no events when the step is computed again. Stages 1 to 3: slow suite.
    lockstep_stage_program(${number} not_finite train)
    target_sources(not_finite_stage${number} PRIVATE ${LOCKSTEP_ROOT}/train/main.c)
    target_link_options(not_finite_stage${number} PRIVATE -Wl,--wrap=dataset_get -Wl,--wrap=device_linear_backward)
    set(labels "stage${number};faults")
    if(number LESS 4)
        list(APPEND labels slow)
    endif()
    lockstep_script(stage${number}_not_finite "${labels}" 2 train/test_not_finite.sh
                    $<TARGET_FILE:not_finite_stage${number}> ${LOCKSTEP_MPIEXEC})
endfunction()
