# graded.cmake: how tests are started, and what test programs of the stages see of some functions: the linker puts the
# test's own before them (--wrap). In the project and, as a part of its CMakeLists.txt, in a starter.

# Open MPI counts cores and refuses more ranks than that, and binds each rank to one.
include(CheckSymbolExists)
set(CMAKE_REQUIRED_INCLUDES ${MPI_C_INCLUDE_DIRS})
check_symbol_exists(OPEN_MPI mpi.h LOCKSTEP_OPEN_MPI)
unset(CMAKE_REQUIRED_INCLUDES)
set(LOCKSTEP_MPIEXEC ${MPIEXEC_EXECUTABLE})
if(LOCKSTEP_OPEN_MPI) # it leaves memory and odd lock orders of its own behind
    list(APPEND LOCKSTEP_MPIEXEC --oversubscribe --bind-to none)
    set(no_leaks ":detect_leaks=0")
    set(no_deadlocks ":detect_deadlocks=0")
endif()

# The environment of every test: no BLAS kernels forced on us, and clean reports from the sanitizers.
set(LOCKSTEP_TEST_ENVIRONMENT
    "LC_ALL=C" # English messages and decimal points, for the scripts
    "OPENBLAS_NUM_THREADS=1" "OMPI_ALLOW_RUN_AS_ROOT=1" "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    "HWLOC_PLUGINS_PATH=/none" # hwloc's OpenCL plugin, where installed, leaks a kilobyte when MPI starts
    "HWLOC_COMPONENTS=-pci,-linuxio" # nor need tests its list of devices, a third of the time in which MPI starts
    "UCX_MEM_EVENTS=no" # the thread sanitizer crashes in UCX's memory hooks
    "ASAN_OPTIONS=handle_segv=2:handle_sigbus=2:handle_sigfpe=2${no_leaks}"
    "UBSAN_OPTIONS=print_stacktrace=1")

set(wraps_of_all ddp_create ddp_destroy ddp_before_forward ddp_before_backward ddp_after_backward ddp_after_update
    ddp_gather_weights ddp_partition) # untouched.c
set(wraps_equivalence free pg_alloc_shared) # freed.c
set(wraps_launches pg_all_reduce_async pg_all_reduce pg_reduce_scatter_async pg_reduce_scatter pg_broadcast
    pg_all_gather_async pg_all_gather pg_barrier work_test work_wait) # watch_calls.c
set(wraps_overlap ${wraps_launches})
set(wraps_mode_events ${wraps_launches})
set(wraps_modes ${wraps_equivalence})
file(GLOB watch ${CMAKE_SOURCE_DIR}/tests/stages/watch_*.c)
if(watch) # the starters of stages 1 and 2 have none
    list(APPEND wraps_modes ${wraps_launches})
endif()
set(wraps_mode_memory malloc calloc realloc reallocarray aligned_alloc posix_memalign strdup strndup asprintf vasprintf
    __asprintf_chk __vasprintf_chk free pg_alloc_shared pg_free_shared) # live_bytes.c
set(wraps_collectives start_send start_receive wait_for_messages group_scratch) # tests/collectives/mailboxes.c

# lockstep_wrap(TARGET SCOPE NAME): the linker replaces the functions of wraps_NAME.
function(lockstep_wrap target scope name)
    list(TRANSFORM wraps_${name} PREPEND -Wl,--wrap= OUTPUT_VARIABLE wraps)
    target_link_options(${target} ${scope} ${wraps})
endfunction()
