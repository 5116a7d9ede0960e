# contract.cmake: contract_stageN, the contract of a stage, on simulated ranks. It needs no MPI.
set(LOCKSTEP_CONTRACT_SOURCES baton.c contract.c events.c flight.c groups.c log.c memory.c mode.c model.c
    process_group.c rows.c rows_buckets.c rows_faults.c rows_sharded.c suspects.c trial.c)
list(TRANSFORM LOCKSTEP_CONTRACT_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)

if(NOT TARGET lockstep_world)
    add_library(lockstep_world OBJECT ${LOCKSTEP_CONTRACT_SOURCES})
    target_include_directories(lockstep_world PUBLIC ${LOCKSTEP_ROOT}/tests)
    target_link_libraries(lockstep_world PUBLIC lockstep_flags)
endif()

# lockstep_contract(NUMBER): the program, and its test.
function(lockstep_contract number)
    add_executable(contract_stage${number} $<TARGET_OBJECTS:lockstep_world> $<TARGET_OBJECTS:stage${number}_ddp>)
    target_link_libraries(contract_stage${number} PRIVATE lockstep_core)
    set_target_properties(contract_stage${number} PROPERTIES EXCLUDE_FROM_ALL $<BOOL:${MPI_C_FOUND}>)
    add_test(NAME stage${number}_contract COMMAND contract_stage${number})
    set_tests_properties(stage${number}_contract PROPERTIES TIMEOUT 900 LABELS "stage${number}")
endfunction()
