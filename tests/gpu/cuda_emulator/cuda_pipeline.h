/* cuda_pipeline.h: the emulator's version of CUDA's header: asynchronous copies to shared memory. They may happen at
 * any time between their start and the wait: here at the start, or, if LOCKSTEP_EMULATED_LAZY is set, at the wait. */
#ifndef LOCKSTEP_TESTS_CUDA_PIPELINE_H
#define LOCKSTEP_TESTS_CUDA_PIPELINE_H

#include <cuda_runtime.h>

void emulator_start_copy(void *to, const void *from, size_t bytes, EmulatedPlace place);
void emulator_commit_copies();
void emulator_wait_for_copies(size_t but_groups);

static inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes,
                                           const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    emulator_start_copy(to, from, bytes, EmulatedPlace{"__pipeline_memcpy_async", file, line});
}

static inline void __pipeline_commit()
{
    emulator_commit_copies();
}

static inline void __pipeline_wait_prior(size_t but_groups)
{
    emulator_wait_for_copies(but_groups);
}

#endif
