/* bucket_plan.c: divides gradients into buckets; measures backward and the link, and looks for the caps that fit. */
#include "ddp/bucket_plan.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"

#define SMALLEST_CAP ((size_t)16 << 10) /* bytes */
#define SMALL_MESSAGE 64                /* elements; long and short enough to show the latency */
#define LARGE_MESSAGE ((size_t)1 << 20) /* elements; at most: long enough to show the bandwidth */
#define HIGHEST_BANDWIDTH 1e11          /* bytes per second; more is a mistake of the measurement */
#define BUCKET_PRICE 100e-6             /* seconds of the processor; measured with the GPT on 2 cores */

/* ---- the plan ---- */

/* note: bucket-plan
 * A bucket closes after the gradient that fills it, so it may be larger than its cap. Only its size decides, never a
 * rank's timing, so all ranks have the same plan. */
int buckets_plan(const size_t *sizes, int count, size_t first_cap, size_t cap, int *bucket_of)
{
    int bucket = 0;
    size_t filled = 0;
    for (int i = 0; i < count; i++) {
        bucket_of[i] = bucket;
        filled += sizes[i];
        if (filled >= (bucket == 0 ? first_cap : cap)) {
            bucket++;
            filled = 0;
        }
    }
    return count > 0 ? bucket_of[count - 1] + 1 : 0; /* the last bucket may stay below its cap */
}

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
static Backward measure_backward(ProcessGroup *pg, const ParameterList *parameters, Tape *tape, Tensor *loss,
                                 float seed)
{
    const size_t count = (size_t)parameters->count;
    Backward backward = {.ready = alloc_or_fault(count * sizeof *backward.ready)};
    tape_listen(tape, (TapeListener){.self = &backward, .gradient_ready = note_ready});
    backward.start = now_seconds();
    tape_backward(tape, loss, seed);
    backward.seconds = now_seconds() - backward.start;
    tape_listen(tape, (TapeListener){0});
    pg_all_reduce(pg, backward.ready, backward.ready, count, DTYPE_F64, REDUCE_MAX, "times of backward");
    pg_all_reduce(pg, &backward.seconds, &backward.seconds, 1, DTYPE_F64, REDUCE_MAX, "time of backward");
    return backward;
}

/* ---- the link ---- */

/* The best of some trials: other work on the machine can only make them longer. They are made as stage 3 makes its
 * all-reduces, so the communication thread's wake-up counts. */
static double all_reduce_seconds(ProcessGroup *pg, float *buffer, size_t count)
{
    double best = INFINITY;
    for (int trial = 0; trial < 5; trial++) {
        double start = now_seconds();
        work_wait(pg_all_reduce_async(pg, buffer, buffer, count, DTYPE_F32, REDUCE_SUM, "a trial of the link"));
        best = fmin(best, now_seconds() - start);
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
    double bytes = (double)((large - SMALL_MESSAGE) * sizeof *buffer);
    return (Link){seconds[0], bytes / fmax(seconds[1] - seconds[0], bytes / HIGHEST_BANDWIDTH)};
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
            bucket_ready = fmax(bucket_ready, ready[i]);
            seconds += (double)sizes[i] / link.bytes_per_second;
        }
        end = fmax(end, bucket_ready) + seconds;
        all += seconds;
    }
    free(bucket_of);
    caps.exposed = fmax(end - backward, 0);
    caps.hidden = fmax(all - caps.exposed, 0);
    return caps;
}

/* note: bucket-choice
 * Tries all pairs of a first cap and one for the others, in powers of two. Each bucket has a price, so that of two plans
 * that are nearly equally good the one with fewer buckets wins. */
BucketCaps bucket_caps_best(const size_t *sizes, const double *ready, int count, double backward, Link link)
{
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += sizes[i];
    BucketCaps best = bucket_caps_predict(sizes, ready, count, backward, link, total, total);
    for (size_t first = SMALLEST_CAP; first < total; first *= 2)
        for (size_t cap = SMALLEST_CAP; cap < 2 * total; cap *= 2) {
            BucketCaps caps = bucket_caps_predict(sizes, ready, count, backward, link, first, cap);
            if (caps.exposed + BUCKET_PRICE * caps.buckets < best.exposed + BUCKET_PRICE * best.buckets)
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
