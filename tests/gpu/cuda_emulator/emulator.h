/* emulator.h: how CUDA code runs here without CUDA. Private to the emulator; kernels include cuda_runtime.h.
 *
 * The C++ compiler compiles the project's .cu files with one change: transform.sh turns each launch, which is not C++,
 * into a call. The headers beside this file replace CUDA's own. They have only what the project uses, so other CUDA
 * functions do not compile (atomics are missing on purpose).
 *
 *   fibers.cpp   the threads of a block, as fibers on one CPU core: barriers and warp shuffles
 *   mma.cpp      the tensor cores' instructions
 *   pipeline.cpp asynchronous copies to shared memory
 *   memory.cpp   device memory: not accessible to the host, filled with NaN, with guards between the allocations
 *   runtime.cpp  the functions of the runtime API: devices, copies, launches
 *   streams.cpp  more of the runtime API: streams, events
 *   errors.cpp   more of the runtime API: errors
 *   cublas.cpp   cuBLAS's functions, with OpenBLAS
 *   profiler.cpp NVTX's functions, and a profiler that records them
 *
 * Undefined behaviour on a GPU ends the program here, with a line that begins with "emulated CUDA:": threads that do
 * not all reach a barrier, writes outside an allocation, a pointer to host memory passed to a kernel. If the host reads
 * or writes device memory, the program crashes, as with a GPU.
 *
 * Environment:
 *   LOCKSTEP_EMULATED_DEVICES=N       the number of devices (1); they share one memory
 *   LOCKSTEP_EMULATED_CAPABILITY=N    their compute capability, times ten (80)
 *   LOCKSTEP_EMULATED_MEMORY_MB=N     the size of their memory (1024)
 *   LOCKSTEP_EMULATED_KERNEL_ERROR=N  the result of cudaStreamSynchronize(): an earlier kernel failed (0)
 *   LOCKSTEP_EMULATED_CUBLAS_STATUS=N the result of matrix products (0)
 *   LOCKSTEP_EMULATED_ORDER=reverse   blocks and threads run from the last to the first: a missing barrier shows in at
 *                                     least one of the two orders
 *   LOCKSTEP_EMULATED_PROFILER=FILE   a profiler runs, and adds a line to FILE for each NVTX call: the thread's number;
 *                                     push, pop or mark, and the name; and "event" for each recorded timing event
 *   LOCKSTEP_EMULATED_LAZY=1          work runs only when it is waited for: a missing synchronisation shows
 */
#ifndef LOCKSTEP_TESTS_EMULATOR_H
#define LOCKSTEP_TESTS_EMULATOR_H

#include "cuda_runtime.h"

#include <mutex>

/* ---- errors.cpp ---- */
/* Prints "emulated CUDA: ...", and while a kernel runs also its name and the block. Ends the program with status 1. */
[[noreturn]] void emulator_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns the error and stores it for cudaGetLastError(). error_explained() also prints the reason to stderr, which
 * CUDA does not. */
cudaError_t error_result(cudaError_t error);
cudaError_t error_explained(cudaError_t error, const char *call, const char *reason);

/* ---- memory.cpp ---- */
void *memory_allocate(size_t bytes); /* NULL: not enough memory */
bool memory_release(void *start);    /* false: no allocation begins there */
size_t memory_size();
size_t memory_free_bytes();
bool memory_is_device(const void *pointer);
/* Bytes from `pointer` to the end of its allocation; -1: it points into none. */
long memory_bytes_behind(const void *pointer);
/* Device memory is accessible only between these two calls. close also checks all guards; `what` names the work. */
void memory_open();
void memory_close(const char *what);

/* ---- fibers.cpp ---- */
/* Runs thread() for each thread of each block. */
void fibers_run(const char *kernel, dim3 grid, dim3 block, const std::function<void()> &thread);
const char *fibers_kernel(); /* the kernel that runs now, or NULL */

/* ---- pipeline.cpp ---- */
/* Fails if a thread of the last block has started copies that are not done. */
void pipeline_expect_empty();

/* ---- profiler.cpp ---- */
bool profiler_note(const char *what, const char *message); /* false: there is no profiler */

/* ---- runtime.cpp ---- */
/* The number in an environment variable, or `otherwise`. */
long emulator_setting(const char *name, long otherwise);

/* ---- streams.cpp ---- */
/* Held in every function that uses device memory or submits work. Recursive, so that a test which left a crashed kernel
 * by a jump can go on. */
extern std::recursive_mutex emulator_mutex;
typedef std::lock_guard<std::recursive_mutex> Guard;
/* Adds work() to the calling thread's stream: it runs now, or, if the emulator is lazy, when it is waited for. */
void stream_submit(std::function<void()> work);
void streams_run_all();
bool stream_is_own(cudaStream_t stream); /* cudaStreamPerThread: there is no other */

#endif
