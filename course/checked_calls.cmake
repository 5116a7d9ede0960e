# ---- checked calls and returns of the library ${written}; calls: what has the checks; other_names: for objcopy ----
include(CheckCCompilerFlag)
set(checked_calls -mindirect-branch=thunk-extern -mindirect-branch-register -fcf-protection=branch -fno-jump-tables
                  -mno-red-zone)
if(NOT LOCKSTEP_SANITIZE) # the C library calls functions that sanitizers add, and these return there
    list(APPEND checked_calls -mfunction-return=thunk-extern -fno-ipa-ra)
endif()
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY) # it cannot be linked without stage_jumps.c
check_c_compiler_flag("${checked_calls}" LOCKSTEP_CHECKED_CALLS) # gcc on x86-64
unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
if(LOCKSTEP_CHECKED_CALLS)
    target_compile_options(${written} PRIVATE ${checked_calls})
    target_compile_definitions(calls PRIVATE LOCKSTEP_CALLS_ARE_CHECKED)
    set(around_checked_calls -fno-optimize-sibling-calls) # so that functions return to where they were called
    add_compile_options(${around_checked_calls}) # for the targets below
    target_compile_options(common PRIVATE ${around_checked_calls})
    target_compile_options(calls PRIVATE ${around_checked_calls})
endif()
foreach(part "" .unlikely .hot .startup .exit)
    list(APPEND one_section --rename-section .text${part}=ddp_text)
endforeach()
add_custom_command(TARGET ${written} POST_BUILD VERBATIM
    COMMAND ${CMAKE_OBJCOPY} ${other_names} ${one_section} $<TARGET_FILE:${written}>)
