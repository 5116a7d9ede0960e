/* device_cuda_ranges.cu: ranges: which part of training the kernels belong to, and when the GPU ran them.
 *
 * note: nvtx
 * With NVTX, a program tells a profiler such as Nsight Systems what it is doing. Each thread has a stack of ranges; the
 * profiler draws them above the kernels that were queued inside. NVTX consists of headers only, which look for a
 * profiler at the first call. Without a profiler every call only tests a pointer, and names are not even formatted.
 *
 * note: gpu-clock
 * While a step is traced, a range also records an event in the stream at its begin and at its end. The GPU writes its
 * time into an event when it reaches it, at almost no cost. The events are read after the step, so nothing waits for
 * them during it. The GPU's clock and the host's have different zeros. So before the step, when the stream is empty,
 * the host reads its clock, records an event, waits for it, and reads its clock again: the event happened in between.
 * Of several attempts the shortest is used; the error is at most half of its length, some microseconds. This is
 * repeated for each step, because the two clocks drift, and because CUDA gives differences as float32, whose 24 bits
 * resolve nanoseconds only for short differences. */
#include "backends/gpu/device_cuda.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>

#include <nvtx3/nvToolsExt.h>

extern "C" {
#include "base/clock.h"
}

enum { NAME_BYTES = 64, MAX_DEPTH = 16, CLOCK_ATTEMPTS = 5 };

/* ---- profilers ---- */

/* NVTX has no function for this, but without a profiler a push returns a special value. */
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

/* ---- the GPU's times ---- */

typedef struct TimedRange {
    char name[NAME_BYTES];
    TimelineRow row;
    cudaStream_t stream;
    cudaEvent_t begin, end; /* created once, reused in each step */
    bool has_ended;         /* false: a mark, which has only `begin` */
} TimedRange;

static std::atomic<bool> is_timed(false); /* between device_timeline_begin() and _end() */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `ranges`, its count and its capacity */
static TimedRange *ranges;
static int range_count, range_capacity;

static thread_local int open_ranges[MAX_DEPTH], depth; /* of this thread: indices, the innermost last */

static pthread_t step_thread;        /* the thread that called device_timeline_begin() */
static cudaEvent_t reference = NULL; /* a moment on the GPU's clock ... */
static double reference_seconds;     /* ... and the same moment in now_seconds() */

static cudaEvent_t new_timing_event(void)
{
    cudaEvent_t event;
    CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDefault));
    return event;
}

/* Makes room for one more range. Hold the lock. */
static void grow(void)
{
    if (range_count < range_capacity)
        return;
    const int capacity = range_capacity > 0 ? 2 * range_capacity : 256;
    ranges = (TimedRange *)realloc((void *)ranges, (size_t)capacity * sizeof *ranges);
    CHECK(ranges != NULL, "out of memory: a step has more than %d ranges to trace", range_capacity);
    for (int i = range_capacity; i < capacity; i++) {
        ranges[i].begin = new_timing_event();
        ranges[i].end = new_timing_event();
    }
    range_capacity = capacity;
}

/* Begins a range on this stream; returns its index. */
static int begin_timed(cudaStream_t stream, const char *name)
{
    pthread_mutex_lock(&lock);
    grow();
    const int index = range_count++;
    TimedRange *range = &ranges[index];
    snprintf(range->name, sizeof range->name, "%s", name);
    range->row = pthread_equal(pthread_self(), step_thread) ? ROW_GPU : ROW_GPU_COMMUNICATION;
    range->stream = stream;
    range->has_ended = false;
    CHECK_CUDA(cudaEventRecord(range->begin, stream));
    pthread_mutex_unlock(&lock);
    return index;
}

static void end_timed(int index)
{
    pthread_mutex_lock(&lock);
    CHECK_CUDA(cudaEventRecord(ranges[index].end, ranges[index].stream));
    ranges[index].has_ended = true;
    pthread_mutex_unlock(&lock);
}

static void take_reference(void)
{
    static cudaEvent_t spare = NULL;
    double shortest = INFINITY;
    if (reference == NULL) {
        reference = new_timing_event();
        spare = new_timing_event();
    }
    device_synchronize();
    for (int attempt = 0; attempt < CLOCK_ATTEMPTS; attempt++) {
        const double before = now_seconds();
        CHECK_CUDA(cudaEventRecord(spare, cudaStreamPerThread));
        CHECK_CUDA(cudaEventSynchronize(spare));
        const double after = now_seconds();
        if (after - before >= shortest)
            continue;
        const cudaEvent_t better = spare;
        spare = reference;
        reference = better;
        reference_seconds = (before + after) / 2;
        shortest = after - before;
    }
}

/* The time of the event, in now_seconds(). */
static double seconds_of(cudaEvent_t event)
{
    float milliseconds = 0;
    CHECK_CUDA(cudaEventSynchronize(event));
    CHECK_CUDA(cudaEventElapsedTime(&milliseconds, reference, event));
    return reference_seconds + 1e-3 * (double)milliseconds;
}

void device_timeline_begin(void)
{
    if (!timeline_enabled())
        return;
    take_reference();
    step_thread = pthread_self();
    range_count = 0;
    is_timed = true;
}

void device_timeline_end(void)
{
    if (!is_timed)
        return;
    is_timed = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < range_count; i++) {
        const double begin = seconds_of(ranges[i].begin);
        timeline_add(ranges[i].row, begin, ranges[i].has_ended ? seconds_of(ranges[i].end) : begin, "%s",
                     ranges[i].name);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- ranges, for both ---- */

static void begin_range(cudaStream_t stream, const char *format, va_list arguments)
{
    char name[NAME_BYTES];
    vsnprintf(name, sizeof name, format, arguments);
    if (is_profiled())
        nvtxRangePushA(name);
    if (is_timed) {
        CHECK(depth < MAX_DEPTH, "range %s: more than %d nested ranges; does one never end?", name, MAX_DEPTH);
        open_ranges[depth++] = begin_timed(stream, name);
    }
}

void device_range_begin(const char *format, ...)
{
    if (!is_profiled() && !is_timed)
        return;
    va_list arguments;
    va_start(arguments, format);
    begin_range(cudaStreamPerThread, format, arguments);
    va_end(arguments);
}

void device_range_begin_on(void *stream, const char *format, ...)
{
    if (!is_profiled() && !is_timed)
        return;
    va_list arguments;
    va_start(arguments, format);
    begin_range((cudaStream_t)stream, format, arguments);
    va_end(arguments);
}

void device_range_end(void)
{
    if (is_profiled())
        nvtxRangePop();
    if (is_timed && depth > 0)
        end_timed(open_ranges[--depth]);
}

void device_mark(const char *format, ...)
{
    if (!is_profiled() && !is_timed)
        return;
    char name[NAME_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    if (is_profiled())
        nvtxMarkA(name);
    if (is_timed)
        begin_timed(cudaStreamPerThread, name);
}
