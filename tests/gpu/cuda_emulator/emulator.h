/* emulator.h: how CUDA code runs here without CUDA. The inside of the emulator; kernels include cuda_runtime.h.
 *
 * The project's .cu files are compiled by the C++ compiler as they stand, but for one thing: transform.sh turns a
 * launch, which is no C++, into a call. The headers beside this file stand in for CUDA's own. What is here is the
 * subset that the project uses, and no more: what is missing does not compile (atomics are missing on purpose).
 *
 *   fibers.cpp   the threads of a block, as fibers on one CPU core: barriers and warp shuffles
 *   mma.cpp      the tensor cores' instructions
 *   pipeline.cpp copies to shared memory that run by themselves
 *   memory.cpp   device memory: out of the host's reach, filled with NaN, with guards between the allocations
 *   runtime.cpp  the functions of the runtime API: devices, copies, launches
 *   streams.cpp  the rest of them: streams, events
 *   errors.cpp   its errors
 *   cublas.cpp   cuBLAS's functions, over OpenBLAS
 *   profiler.cpp NVTX's functions, and a profiler that listens
 *
 * What a GPU leaves undefined ends the program here, with a line that begins with "emulated CUDA:": threads that do
 * not meet at a barrier, writes outside an allocation, a pointer to host memory handed to a kernel. What the host does
 * to device memory crashes, as it would on a GPU.
 *
 * Environment:
 *   LOCKSTEP_EMULATED_DEVICES=N       how many devices there are (1); they share one memory
 *   LOCKSTEP_EMULATED_CAPABILITY=N    their compute capability, times ten (80)
 *   LOCKSTEP_EMULATED_MEMORY_MB=N     how much memory they have (1024)
 *   LOCKSTEP_EMULATED_KERNEL_ERROR=N  what cudaStreamSynchronize() returns: a kernel queued before has failed (0)
 *   LOCKSTEP_EMULATED_CUBLAS_STATUS=N what matrix products return (0)
 *   LOCKSTEP_EMULATED_ORDER=reverse   blocks and threads run from the last to the first: a missing barrier shows in
 *                                     one order if it does not in the other
 *   LOCKSTEP_EMULATED_PROFILER=FILE   a profiler is there, and adds to FILE a line for each thing that it is told: the
 *                                     thread's number; push, pop or mark, and the name; or event, where an event for
 *                                     timing is recorded
 *   LOCKSTEP_EMULATED_LAZY=1          nothing runs before somebody waits for it: a missing synchronisation shows
 */
#ifndef LOCKSTEP_TESTS_EMULATOR_H
#define LOCKSTEP_TESTS_EMULATOR_H

#include "cuda_runtime.h"

#include <mutex>

/* ---- errors.cpp ---- */
/* Prints "emulated CUDA: ...", and while a kernel runs also its name and the block. Ends the program with status 1. */
[[noreturn]] void emulator_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns the error, which cudaGetLastError() will return, too. explained: the reason, which CUDA never gives, to
 * stderr. */
cudaError_t error_result(cudaError_t error);
cudaError_t error_explained(cudaError_t error, const char *call, const char *reason);

/* ---- memory.cpp ---- */
void *memory_allocate(size_t bytes); /* NULL: no room */
bool memory_release(void *start);    /* false: nothing begins there */
size_t memory_size();
size_t memory_free_bytes();
bool memory_is_device(const void *pointer);
/* How many bytes there are from `pointer` to the end of its allocation; -1: it points into none. */
long memory_bytes_behind(const void *pointer);
/* Device memory can be touched only between these two. close: also looks at all guards; `what` ran in between. */
void memory_open();
void memory_close(const char *what);

/* ---- fibers.cpp ---- */
/* Runs thread() for each thread of each block. */
void fibers_run(const char *kernel, dim3 grid, dim3 block, const std::function<void()> &thread);
const char *fibers_kernel(); /* the one that runs now, or NULL */

/* ---- pipeline.cpp ---- */
/* Fails if a thread of the last block has started copies that are not done. */
void pipeline_expect_empty();

/* ---- profiler.cpp ---- */
bool profiler_note(const char *what, const char *message); /* false: there is no profiler */

/* ---- runtime.cpp ---- */
/* The number in an environment variable, or `otherwise`. */
long emulator_setting(const char *name, long otherwise);

/* ---- streams.cpp ---- */
/* Held in every function that looks at device memory or adds work, so one thing is done at a time. Recursive: a test
 * that jumped out of a crashed kernel may go on. */
extern std::recursive_mutex emulator_mutex;
typedef std::lock_guard<std::recursive_mutex> Guard;
/* Adds to the calling thread's stream: work() runs now, or, if the emulator is lazy, when somebody waits for it. */
void stream_submit(std::function<void()> work);
void streams_run_all();
bool stream_is_own(cudaStream_t stream); /* cudaStreamPerThread: there is no other */

#endif
