# lockstep.cmake: shared by the top level and every stage that is built alone: options, packages, flags, and the
# function that turns a stage's directory into a `train` program and its tests.
include_guard(GLOBAL)

get_filename_component(LOCKSTEP_ROOT ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

set(LOCKSTEP_SANITIZE "" CACHE STRING "empty, 'address' (with undefined behaviour) or 'thread'")
if(NOT LOCKSTEP_SANITIZE MATCHES "^(address|thread)?$") # a misspelt name must not mean "none"
    message(FATAL_ERROR "LOCKSTEP_SANITIZE is '${LOCKSTEP_SANITIZE}': give 'address' (with undefined behaviour), "
                        "'thread', or nothing")
endif()
option(LOCKSTEP_WERROR "treat warnings as errors" OFF)
option(LOCKSTEP_NATIVE "use all instructions of this machine's processor" ON)

# ---- packages: all from the distribution ----
find_package(MPI QUIET COMPONENTS C)
if(NOT MPI_C_FOUND)
    message(NOTICE "MPI: not found, so no train is built, only the stages' contracts (contract_stage0 to "
                   "contract_stage5). scripts/setup.sh installs one")
endif()
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(openblas REQUIRED IMPORTED_TARGET openblas)
pkg_check_modules(zlib REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(cmocka IMPORTED_TARGET cmocka)
if(MPI_C_FOUND)
    pkg_check_modules(cjson REQUIRED IMPORTED_TARGET libcjson)
    include(${CMAKE_CURRENT_LIST_DIR}/cuda.cmake)
endif()

# ---- products with 16-bit operands: by oneDNN where it is found, else emulated ----
set(LOCKSTEP_ONEDNN AUTO CACHE STRING
    "bf16 products by oneDNN 2 or 3 if the processor has AVX512-BF16: OFF, ON, or AUTO (where it is found)")
set(LOCKSTEP_ROUNDED_SOURCE ${LOCKSTEP_ROOT}/common/device/device_cpu_rounded.c)
set(LOCKSTEP_ROUNDED_LIBRARY "")
if(LOCKSTEP_ONEDNN) # (its own CMake file wants OpenCL, which the processor's products do not need)
    find_path(LOCKSTEP_DNNL_INCLUDE oneapi/dnnl/dnnl_version.h)
    find_library(LOCKSTEP_DNNL dnnl)
    if(LOCKSTEP_DNNL AND LOCKSTEP_DNNL_INCLUDE)
        file(STRINGS ${LOCKSTEP_DNNL_INCLUDE}/oneapi/dnnl/dnnl_version.h version
             REGEX "define DNNL_VERSION_M[AI][JN]OR ")
        string(REGEX REPLACE "[^0-9;]" "" version "${version}")
        list(JOIN version . version)
    endif()
    if(version VERSION_GREATER_EQUAL 2.6)
        set(LOCKSTEP_ROUNDED_SOURCE ${LOCKSTEP_ROOT}/backends/onednn/rounded_onednn.c)
        set(LOCKSTEP_ROUNDED_LIBRARY ${LOCKSTEP_DNNL})
    elseif(NOT LOCKSTEP_ONEDNN STREQUAL "AUTO")
        message(FATAL_ERROR "LOCKSTEP_ONEDNN=ON, but there is no oneDNN 2.6 or later: install libdnnl-dev")
    endif()
endif()

# ---- flags ----
add_library(lockstep_flags INTERFACE)
target_compile_features(lockstep_flags INTERFACE c_std_11)
target_compile_definitions(lockstep_flags INTERFACE _GNU_SOURCE)
target_include_directories(lockstep_flags INTERFACE ${LOCKSTEP_ROOT}/common ${LOCKSTEP_ROOT})
set(for_c # -fno-...: so that gcc vectorises; no value changes
    -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -fopenmp-simd -fno-math-errno -fno-trapping-math
    $<$<CONFIG:Release>:-O3>)
# clang warns if it cannot vectorise a loop that is marked `omp simd`. That may cost time, but changes no value, so it
# must not stop a build. gcc does not warn.
list(APPEND for_c $<$<C_COMPILER_ID:Clang,AppleClang>:-Wno-pass-failed>)
set(for_cuda -lineinfo "SHELL:-Xcompiler -Wall,-Wextra") # -lineinfo: compute-sanitizer names lines, no kernel changes
if(LOCKSTEP_WERROR)
    list(APPEND for_c -Werror)
    list(APPEND for_cuda "SHELL:-Werror all-warnings -Xcompiler -Werror")
endif()
if(LOCKSTEP_NATIVE)
    list(APPEND for_c -march=native)
endif()
target_compile_options(lockstep_flags INTERFACE "$<$<COMPILE_LANGUAGE:C>:${for_c}>"
                                                "$<$<COMPILE_LANGUAGE:CUDA>:${for_cuda}>")
# -g1: reports name functions and lines. -O1: a build takes two thirds of the time that it takes with -O2.
if(LOCKSTEP_SANITIZE STREQUAL "address")
    set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=undefined)
elseif(LOCKSTEP_SANITIZE STREQUAL "thread")
    set(sanitizers -fsanitize=thread)
endif()
if(LOCKSTEP_SANITIZE)
    list(APPEND sanitizers -fno-omit-frame-pointer -g1 -O1)
endif()
target_compile_options(lockstep_flags INTERFACE ${sanitizers})
target_link_options(lockstep_flags INTERFACE ${sanitizers})

if(NOT TARGET lockstep_core)
    add_subdirectory(${LOCKSTEP_ROOT}/common ${CMAKE_BINARY_DIR}/common)
endif()
if(MPI_C_FOUND AND NOT TARGET lockstep_train)
    add_subdirectory(${LOCKSTEP_ROOT}/train ${CMAKE_BINARY_DIR}/train_parts) # "train" is a program, in a stage built alone
    if(LOCKSTEP_WITH_CUDA)
        add_subdirectory(${LOCKSTEP_ROOT}/backends/gpu ${CMAKE_BINARY_DIR}/gpu)
    endif()
endif()

enable_testing()
include(${LOCKSTEP_ROOT}/tests/world/contract.cmake) # needs no MPI
if(MPI_C_FOUND)
    include(${LOCKSTEP_ROOT}/tests/stages/lockstep_tests.cmake)
    include(${LOCKSTEP_ROOT}/tests/train/program_tests.cmake)
endif()
include(${CMAKE_CURRENT_LIST_DIR}/everything.cmake)

# lockstep_program(NUMBER SUFFIX): builds the stage in the calling directory for the device that SUFFIX names: "" is the
# CPU and builds `train`, "_cuda" is the GPU and builds `train_cuda`.
function(lockstep_program number suffix)
    set(stage ddp_stage${number}${suffix})
    set(program train_stage${number}${suffix})
    add_library(${stage} STATIC $<TARGET_OBJECTS:stage${number}_ddp>)
    target_link_libraries(${stage} PUBLIC lockstep_common${suffix})
    # main.c and the tests get the stage's number from here, because ddp.c may be a copy of another stage's.
    target_compile_definitions(${stage} PUBLIC LOCKSTEP_STAGE=${number})
    add_executable(${program} ${LOCKSTEP_ROOT}/train/main.c)
    target_link_libraries(${program} PRIVATE ${stage} lockstep_train${suffix} ${stage})
    set_target_properties(${program} PROPERTIES OUTPUT_NAME train${suffix} RUNTIME_OUTPUT_DIRECTORY
                                                ${CMAKE_CURRENT_BINARY_DIR})
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_PROGRAMS ${program})
endfunction()

# lockstep_stage(NUMBER SOURCES...): compiles the stage's sources, its own and those of earlier stages, as stageN_ddp,
# for which no MPI is needed. If there is one, builds programs from them, with the stage's tests.
function(lockstep_stage number)
    add_library(stage${number}_ddp OBJECT ${ARGN})
    target_link_libraries(stage${number}_ddp PUBLIC lockstep_flags)
    target_compile_definitions(stage${number}_ddp PUBLIC LOCKSTEP_STAGE=${number})
    lockstep_contract(${number})
    if(NOT MPI_C_FOUND)
        return()
    endif()
    lockstep_program(${number} "")
    if(LOCKSTEP_WITH_CUDA)
        lockstep_program(${number} _cuda)
    endif()
    lockstep_stage_tests(${number})
    lockstep_program_tests(${number})
endfunction()
