# lockstep.cmake: what the top level and every stage built alone have in common: options, packages, flags, and the
# function that turns a stage's directory into a `train` program and its tests.
include_guard(GLOBAL)

get_filename_component(LOCKSTEP_ROOT ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

set(LOCKSTEP_SANITIZE "" CACHE STRING "empty, 'address' (with undefined behaviour) or 'thread'")
set(LOCKSTEP_CUDA "AUTO" CACHE STRING "build train_cuda: AUTO, ON or OFF")
option(LOCKSTEP_WERROR "treat warnings as errors" OFF)
option(LOCKSTEP_NATIVE "use all instructions of this machine's processor" ON)

# ---- packages: all from the distribution ----
find_package(MPI REQUIRED COMPONENTS C)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(openblas REQUIRED IMPORTED_TARGET openblas)
pkg_check_modules(zlib REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(cjson REQUIRED IMPORTED_TARGET libcjson)
pkg_check_modules(cmocka IMPORTED_TARGET cmocka)

# ---- flags ----
add_library(lockstep_flags INTERFACE)
target_compile_features(lockstep_flags INTERFACE c_std_11)
target_compile_definitions(lockstep_flags INTERFACE _GNU_SOURCE)
target_include_directories(lockstep_flags INTERFACE ${LOCKSTEP_ROOT}/common)
target_compile_options(lockstep_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -fopenmp-simd
                                                -fno-math-errno -fno-trapping-math # so that gcc vectorises; no value changes
                                                $<$<CONFIG:Release>:-O3>)
if(LOCKSTEP_WERROR)
    target_compile_options(lockstep_flags INTERFACE -Werror)
endif()
if(LOCKSTEP_NATIVE)
    target_compile_options(lockstep_flags INTERFACE -march=native)
endif()
if(LOCKSTEP_SANITIZE STREQUAL "address")
    set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
elseif(LOCKSTEP_SANITIZE STREQUAL "thread")
    set(sanitizers -fsanitize=thread -fno-omit-frame-pointer)
endif()
target_compile_options(lockstep_flags INTERFACE ${sanitizers})
target_link_options(lockstep_flags INTERFACE ${sanitizers})

if(NOT TARGET lockstep_common)
    add_subdirectory(${LOCKSTEP_ROOT}/common ${CMAKE_BINARY_DIR}/common)
endif()

enable_testing()
include(${LOCKSTEP_ROOT}/tests/lockstep_tests.cmake)

# lockstep_stage(NUMBER): makes the calling directory's ddp.c into the program `train`, with the stage's tests.
function(lockstep_stage number)
    add_library(ddp_stage${number} STATIC ddp.c)
    target_link_libraries(ddp_stage${number} PUBLIC lockstep_common)
    add_executable(train_stage${number} ${LOCKSTEP_ROOT}/common/train/main.c)
    target_link_libraries(train_stage${number} PRIVATE ddp_stage${number} lockstep_train ddp_stage${number})
    set_target_properties(train_stage${number} PROPERTIES OUTPUT_NAME train RUNTIME_OUTPUT_DIRECTORY
                                                          ${CMAKE_CURRENT_BINARY_DIR})
    lockstep_stage_tests(${number})
endfunction()
