/* device_cuda_ranges.cu: the kernels on an NVIDIA GPU, fifth part, which computes nothing: it says which part of
 * training the others work for.
 *
 * note: nvtx
 * NVTX is how a program tells a profiler such as Nsight Systems what it is about to do. Ranges are a stack per thread;
 * the profiler draws them above the kernels that were queued inside. It consists of headers alone, which look for a
 * profiler at the first call. Without one every call is a test of a pointer; and we do not even put the name together.
 */
#include "device/device_cuda.h"

#include <stdarg.h>
#include <stdio.h>

#include <nvtx3/nvToolsExt.h>

enum { NAME_BYTES = 64 };

/* NVTX has no question for this, but without a profiler a push has an answer of its own. */
static bool find_profiler(void)
{
    if (nvtxRangePushA("is a profiler here?") == NVTX_NO_PUSH_POP_TRACKING)
        return false;
    nvtxRangePop();
    return true;
}

static bool is_profiled(void)
{
    static const bool profiled = find_profiler();
    return profiled;
}

void device_range_begin(const char *format, ...)
{
    if (!is_profiled())
        return;
    char name[NAME_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    nvtxRangePushA(name);
}

void device_range_end(void)
{
    if (is_profiled())
        nvtxRangePop();
}

void device_mark(const char *format, ...)
{
    if (!is_profiled())
        return;
    char name[NAME_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    nvtxMarkA(name);
}
