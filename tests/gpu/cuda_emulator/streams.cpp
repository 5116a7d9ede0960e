/* streams.cpp: the functions of the CUDA runtime API for streams and events.
 *
 * Every host thread has one stream (cudaStreamPerThread), a queue of work. Work is done when it is submitted; or, if
 * LOCKSTEP_EMULATED_LAZY is set, as late as CUDA allows: when it is waited for. Every function holds one lock, so that
 * only one kernel runs at a time, of any thread.
 */
#include "emulator.h"

#include <time.h>

#include <deque>
#include <memory>
#include <set>

struct EmulatedStream {
    std::deque<std::function<void()>> queue;
    long submitted = 0, done = 0;
};

struct EmulatedEvent {
    std::shared_ptr<EmulatedStream> stream; /* NULL: never recorded */
    long position;                          /* the event has happened when the stream has done this many works */
    bool timing;
    std::shared_ptr<double> time; /* when it happened, in milliseconds */
};

std::recursive_mutex emulator_mutex;

namespace
{

std::set<EmulatedStream *> streams;
std::set<cudaEvent_t> events; /* all that exist */

void run_one(EmulatedStream *stream)
{
    auto work = std::move(stream->queue.front());
    stream->queue.pop_front();
    work();
    stream->done++;
}

void run_until(EmulatedStream *stream, long position)
{
    while (stream->done < position)
        run_one(stream);
}

/* The calling thread's stream. Before the thread ends, its work is done, because an event may depend on it. */
struct OwnStream {
    std::shared_ptr<EmulatedStream> stream = std::make_shared<EmulatedStream>();
    OwnStream()
    {
        streams.insert(stream.get());
    }
    ~OwnStream()
    {
        Guard guard(emulator_mutex);
        run_until(stream.get(), stream->submitted);
        streams.erase(stream.get());
    }
};

std::shared_ptr<EmulatedStream> own_stream()
{
    static thread_local OwnStream own;
    return own.stream;
}

/* The GPU's time in milliseconds. It never shows the same one twice. */
double device_clock()
{
    static double last = 0;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double milliseconds = 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
    return last = milliseconds > last ? milliseconds : nextafter(last, INFINITY);
}

} // namespace

void stream_submit(std::function<void()> work)
{
    auto stream = own_stream();
    stream->queue.push_back(std::move(work));
    stream->submitted++;
    if (emulator_setting("LOCKSTEP_EMULATED_LAZY", 0) == 0)
        run_until(stream.get(), stream->submitted);
}

void streams_run_all()
{
    for (EmulatedStream *stream : streams)
        run_until(stream, stream->submitted);
}

bool stream_is_own(cudaStream_t stream)
{
    return stream == cudaStreamPerThread;
}

/* ---- streams ---- */

cudaError_t cudaDeviceSynchronize()
{
    Guard guard(emulator_mutex);
    streams_run_all();
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    Guard guard(emulator_mutex);
    if (!stream_is_own(stream))
        return error_result(cudaErrorInvalidResourceHandle);
    run_until(own_stream().get(), own_stream()->submitted);
    return error_result((cudaError_t)emulator_setting("LOCKSTEP_EMULATED_KERNEL_ERROR", cudaSuccess));
}

/* Does one piece of the work, so that a loop of queries ends. */
static cudaError_t query(EmulatedStream *stream, long position)
{
    if (stream->done < position)
        run_one(stream);
    return error_result(stream->done < position ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    Guard guard(emulator_mutex);
    if (!stream_is_own(stream))
        return error_result(cudaErrorInvalidResourceHandle);
    return query(own_stream().get(), own_stream()->submitted);
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    Guard guard(emulator_mutex);
    *event = new EmulatedEvent{nullptr, 0, (flags & cudaEventDisableTiming) == 0, nullptr};
    events.insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    Guard guard(emulator_mutex);
    if (events.count(event) == 0 || !stream_is_own(stream))
        return error_explained(cudaErrorInvalidResourceHandle, "cudaEventRecord",
                               "no such event or stream: destroyed?");
    event->stream = own_stream();
    if (event->timing) { /* the stream writes the time when it reaches the event */
        auto time = event->time = std::make_shared<double>();
        stream_submit([=] { *time = device_clock(); });
        profiler_note("event", "");
    }
    event->position = event->stream->submitted;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    Guard guard(emulator_mutex);
    for (cudaEvent_t event : {start, end}) {
        if (events.count(event) == 0 || event->time == nullptr)
            return error_explained(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime",
                                   "no such event, or it was never recorded, or made without timing");
        if (event->stream->done < event->position)
            return error_result(cudaErrorNotReady);
    }
    *milliseconds = (float)(*end->time - *start->time);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    Guard guard(emulator_mutex);
    if (events.count(event) == 0 || !stream_is_own(stream) || flags != 0)
        return error_explained(cudaErrorInvalidResourceHandle, "cudaStreamWaitEvent",
                               "no such event or stream: destroyed?");
    auto other = event->stream; /* a copy: the event may be recorded again or destroyed before the wait runs */
    const long position = event->position;
    if (other != nullptr && other != own_stream())
        stream_submit([=] { run_until(other.get(), position); });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    Guard guard(emulator_mutex);
    if (events.count(event) == 0)
        return error_explained(cudaErrorInvalidResourceHandle, "cudaEventQuery", "no such event: destroyed?");
    return event->stream == nullptr ? cudaSuccess : query(event->stream.get(), event->position);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    Guard guard(emulator_mutex);
    if (events.count(event) == 0)
        return error_explained(cudaErrorInvalidResourceHandle, "cudaEventSynchronize", "no such event: destroyed?");
    if (event->stream != nullptr)
        run_until(event->stream.get(), event->position);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    Guard guard(emulator_mutex);
    if (events.erase(event) == 0)
        return error_explained(cudaErrorInvalidResourceHandle, "cudaEventDestroy", "no such event: destroyed twice?");
    delete event;
    return cudaSuccess;
}
