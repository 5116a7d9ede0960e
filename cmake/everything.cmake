# everything.cmake: `cmake --build DIR` builds the programs `train`, and `cmake --build DIR --target everything` also
# the tests and what measures. Both lists are taken from CMake's own, so no target can be left out of the second.
# Without MPI there is no `train`, and both build all that is left.

# Sets result to all targets of the directory and of those below it.
function(lockstep_targets_below directory result)
    get_property(targets DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
    get_property(children DIRECTORY ${directory} PROPERTY SUBDIRECTORIES)
    foreach(child ${children})
        lockstep_targets_below(${child} of_child)
        list(APPEND targets ${of_child})
    endforeach()
    set(${result} ${targets} PARENT_SCOPE)
endfunction()

# Called when all directories have been read. LOCKSTEP_PROGRAMS has the programs of lockstep_program().
function(lockstep_add_everything)
    lockstep_targets_below(${CMAKE_SOURCE_DIR} targets)
    add_custom_target(everything COMMAND ${CMAKE_COMMAND} -E touch ${CMAKE_BINARY_DIR}/everything.stamp)
    add_dependencies(everything ${targets})
    get_property(programs GLOBAL PROPERTY LOCKSTEP_PROGRAMS)
    if(MPI_C_FOUND)
        list(REMOVE_ITEM targets ${programs})
        set_target_properties(${targets} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
endfunction()
cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL lockstep_add_everything)

if(cmocka_FOUND AND MPI_C_FOUND) # else there are no test programs
    configure_file(${CMAKE_CURRENT_LIST_DIR}/before_tests.cmake.in ${CMAKE_BINARY_DIR}/before_tests.cmake @ONLY)
    set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY
                 TEST_INCLUDE_FILES ${CMAKE_BINARY_DIR}/before_tests.cmake)
endif()
