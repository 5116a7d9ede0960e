/* bucket_caps.c: measures a backward pass and the link, and looks for the caps that fit them. */
#include "ddp/bucket_caps.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "ddp/buckets.h"

#define SMALLEST_CAP ((size_t)16 << 10) /* bytes */
#define SMALL_MESSAGE 64                /* elements; long and short enough to show the latency */
#define LARGE_MESSAGE ((size_t)1 << 20) /* elements; at most: long enough to show the bandwidth */
#define LINK_TRIALS 5
#define HIGHEST_BANDWIDTH 1e11          /* bytes per second; more is a mistake of the measurement */
#define NEARLY_BEST 0.005 /* of backward: a difference that no clock would show */

/* ---- the backward pass ---- */

typedef struct Backward {
    double *ready; /* by parameter index: seconds from its beginning; 0 without an event: unused or frozen; owned */
    double start, seconds;
} Backward;

static void note_ready(void *listener, Parameter *parameter)
{
    Backward *backward = listener;
    backward->ready[parameter->index] = now_seconds() - backward->start;
}

/* The slowest rank's times, so that all ranks choose the same. */
static Backward measure_backward(ProcessGroup *pg, const ParameterList *parameters, Tape *tape, Tensor *loss, float seed)
{
    const size_t count = (size_t)parameters->count;
    Backward backward = {.ready = alloc_or_fault(count * sizeof *backward.ready)};
    tape->on_gradient_ready = note_ready;
    tape->listener = &backward;
    backward.start = now_seconds();
    tape_backward(tape, loss, seed);
    backward.seconds = now_seconds() - backward.start;
    tape->on_gradient_ready = NULL;
    pg_all_reduce(pg, backward.ready, backward.ready, count, DTYPE_F64, REDUCE_MAX, "times of backward");
    pg_all_reduce(pg, &backward.seconds, &backward.seconds, 1, DTYPE_F64, REDUCE_MAX, "time of backward");
    return backward;
}

/* ---- the link ---- */

/* The best of some trials: other work on the machine can only make them longer. They are made as stage 3 makes its
 * all-reduces, so the communication thread's wake-up counts. */
static double all_reduce_seconds(ProcessGroup *pg, float *buffer, size_t count)
{
    double best = 0;
    for (int trial = 0; trial < LINK_TRIALS; trial++) {
        double start = now_seconds();
        work_wait(pg_all_reduce_async(pg, buffer, buffer, count, DTYPE_F32, REDUCE_SUM, "a trial of the link"));
        double seconds = now_seconds() - start;
        best = trial == 0 || seconds < best ? seconds : best;
    }
    return best;
}

/* The line through two points. */
static Link measure_link(ProcessGroup *pg, size_t model_bytes)
{
    size_t elements = model_bytes / sizeof(float), large = elements < LARGE_MESSAGE ? elements : LARGE_MESSAGE;
    large = large < 2 * SMALL_MESSAGE ? 2 * SMALL_MESSAGE : large;
    float *buffer = pg_alloc_shared(pg, large * sizeof *buffer);
    double seconds[2] = {all_reduce_seconds(pg, buffer, SMALL_MESSAGE), all_reduce_seconds(pg, buffer, large)};
    pg_free_shared(pg, buffer);
    pg_all_reduce(pg, seconds, seconds, 2, DTYPE_F64, REDUCE_MAX, "what the link takes");
    double bytes = (double)((large - SMALL_MESSAGE) * sizeof *buffer), difference = seconds[1] - seconds[0];
    bool plausible = difference > bytes / HIGHEST_BANDWIDTH;
    return (Link){.latency = seconds[0], .bytes_per_second = plausible ? bytes / difference : HIGHEST_BANDWIDTH};
}

/* ---- the choice ---- */

/* note: bucket-model
 * A bucket's all-reduce begins when its last gradient is ready and the all-reduce before it is done. It takes the
 * link's latency and its bytes' time. What is not done at the end of backward is exposed. */
BucketCaps bucket_caps_predict(const size_t *sizes, const double *ready, int count, double backward, Link link,
                               size_t first_cap, size_t cap)
{
    BucketCaps caps = {.first = first_cap, .others = cap, .backward = backward, .link = link};
    int *bucket_of = alloc_or_fault((size_t)count * sizeof *bucket_of);
    double end = 0, all = 0;
    caps.buckets = buckets_plan(sizes, count, first_cap, cap, bucket_of);
    for (int i = 0, bucket = 0; bucket < caps.buckets; bucket++) {
        double bucket_ready = 0, seconds = link.latency;
        for (; i < count && bucket_of[i] == bucket; i++) {
            bucket_ready = ready[i] > bucket_ready ? ready[i] : bucket_ready;
            seconds += (double)sizes[i] / link.bytes_per_second;
        }
        end = (bucket_ready > end ? bucket_ready : end) + seconds;
        all += seconds;
    }
    free(bucket_of);
    caps.exposed = end > backward ? end - backward : 0;
    caps.hidden = all > caps.exposed ? all - caps.exposed : 0;
    return caps;
}

/* note: bucket-choice
 * Tries all pairs of a first cap and one for the others, in powers of two. Many pairs are nearly equally good, and each
 * bucket costs the processor something that the model does not know, so the fewest buckets win. */
BucketCaps bucket_caps_best(const size_t *sizes, const double *ready, int count, double backward, Link link)
{
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += sizes[i];
    BucketCaps best = bucket_caps_predict(sizes, ready, count, backward, link, total, total), least = best;
    for (int pass = 0; pass < 2; pass++) /* first the least exposed time, then the fewest buckets that nearly reach it */
        for (size_t first = SMALLEST_CAP; first < 2 * total; first *= 2)
            for (size_t cap = SMALLEST_CAP; cap < 2 * total; cap *= 2) {
                BucketCaps caps = bucket_caps_predict(sizes, ready, count, backward, link, first, cap);
                if (pass == 0 && caps.exposed < least.exposed)
                    least = best = caps;
                bool fewer = caps.buckets < best.buckets;
                bool as_few = caps.buckets == best.buckets && caps.exposed < best.exposed;
                if (pass == 1 && caps.exposed <= least.exposed + NEARLY_BEST * backward && (fewer || as_few))
                    best = caps;
            }
    return best;
}

BucketCaps bucket_caps_choose(ProcessGroup *pg, const ParameterList *parameters, Tape *tape, Tensor *loss, float seed,
                              bool overlap)
{
    Backward backward = measure_backward(pg, parameters, tape, loss, seed);
    size_t *sizes = alloc_or_fault((size_t)parameters->count * sizeof *sizes), total = 0;
    double *ready = alloc_or_fault((size_t)parameters->count * sizeof *ready);
    int count = 0;
    for (int i = parameters->count - 1; i >= 0; i--) /* in the order in which buckets are filled */
        if (parameters->items[i]->tensor.requires_grad) {
            sizes[count] = (size_t)tensor_count(&parameters->items[i]->tensor) * sizeof(float);
            ready[count] = overlap ? backward.ready[i] : backward.seconds;
            total += sizes[count++];
        }
    BucketCaps best = bucket_caps_best(sizes, ready, count, backward.seconds, measure_link(pg, total));
    free(backward.ready);
    free(sizes);
    free(ready);
    return best;
}
