/* profiler.cpp: a profiler: records the NVTX calls of each thread. */
#include "emulator.h"

#include "nvtx3/nvToolsExt.h"

#include <stdio.h>
#include <stdlib.h>

#include <atomic>

namespace
{

std::atomic<int> threads{0};
thread_local int level = 0, thread = -1; /* the number of the thread, from 0, in the order of their first calls */

FILE *open_log()
{
    const char *path = getenv("LOCKSTEP_EMULATED_PROFILER");
    FILE *log = path != nullptr && *path != '\0' ? fopen(path, "a") : nullptr;
    if (log != nullptr)
        setvbuf(log, nullptr, _IOLBF, 0);
    return log;
}

} // namespace

bool profiler_note(const char *what, const char *message)
{
    static FILE *log = open_log();
    if (log == nullptr)
        return false;
    if (thread < 0)
        thread = threads++;
    fprintf(log, "%d %s %s\n", thread, what, message);
    return true;
}

int nvtxRangePushA(const char *message)
{
    return profiler_note("push", message) ? level++ : NVTX_NO_PUSH_POP_TRACKING;
}

int nvtxRangePop(void)
{
    if (!profiler_note("pop", ""))
        return NVTX_NO_PUSH_POP_TRACKING;
    return level > 0 ? --level : -1;
}

void nvtxMarkA(const char *message)
{
    profiler_note("mark", message);
}
