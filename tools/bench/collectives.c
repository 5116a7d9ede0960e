/* collectives.c: the time of an all-reduce, and of its two halves. Every algorithm, side by side in one run, timed and
 * checked.
 *
 *   mpiexec -n 2 build/bench/collectives [--sizes 1K,13M,100M] [--csv FILE]        --help lists the options
 *
 * Linked with CUDA and NCCL (collectives_cuda) it has one more contender: NCCL, from GPU to GPU. All others use host
 * memory in both programs.
 *
 * A sample: each rank makes one call to warm up and then some calls that are timed; the sample is the slowest rank's
 * time per call. There are two kinds. In training, backward has just written every gradient that is summed. So before
 * each call every rank writes its whole buffer, untimed, and all ranks meet; after it, every element is compared with
 * what it must be (fresh.h). In the other kind, as in most benchmarks, the calls follow one another, and the data is
 * what the call before left: in shared memory, each rank then reads and writes only lines that it wrote last itself.
 * The contenders take turns, sample by sample, so that noise of the machine affects all alike.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alpha_beta.h"
#include "base/check.h"
#include "base/clock.h"
#include "collectives_options.h"
#include "device/device.h"
#include "fresh.h"
#include "ranks.h"
#include "train/files/atomic_file.h"
#include "train/gpu.h"
#include "train/guard/guard.h"

enum { MAX_CALLS = 200 };

typedef struct Times {
    double least, p50, p95; /* seconds per call */
    double samples[MAX_SAMPLES];
} Times;

typedef struct Result {
    int samples, calls; /* calls per sample */
    long wrong;         /* elements, in all calls with fresh data, on all ranks */
    Times fresh, left;  /* data that each rank has just written; data as the call before left it */
} Result;

static ProcessGroup *pg;
static float *plain, *window; /* the buffers, in host memory, as large as the largest size */
static float *on_device;      /* NULL unless NCCL takes part */
static Measured operation;    /* which of the three is being measured */
static void *arrivals;        /* memory for fresh_meet(), or NULL if the ranks are on several hosts */

/* ---- one call, and the check of its result ---- */

/* The contender's buffer. All three operations are in place in it. */
static float *buffer_of(const Contender *contender)
{
    return contender->on_device ? on_device : contender->in_window ? window : plain;
}

/* The buffer for the host's reads and writes: the same, or one that is copied to and from the device. */
static float *host_buffer_of(const Contender *contender)
{
    return contender->on_device ? plain : buffer_of(contender);
}

/* The elements of a rank's part: the buffer's `count` is a multiple of the ranks, unless all-reduce is measured. */
static size_t part_of(size_t count)
{
    return count / (size_t)pg_world_size(pg);
}

/* MPI's own blocking call. Its reduce-scatter in place leaves the result at the start of the buffer. */
static void call_mpi(float *buffer, size_t count)
{
    const int part = (int)part_of(count);
    switch (operation) {
    case ALL_REDUCE: MPI_Allreduce(MPI_IN_PLACE, buffer, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(MPI_IN_PLACE, buffer, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALL_GATHER: MPI_Allgather(MPI_IN_PLACE, part, MPI_FLOAT, buffer, part, MPI_FLOAT, MPI_COMM_WORLD); break;
    case OPERATIONS: break;
    }
}

static void call(const Contender *contender, float *buffer, size_t count)
{
    size_t part = part_of(count);
    float *mine = buffer + (size_t)pg_rank(pg) * part;
    if (contender->blocking)
        call_mpi(buffer, count);
    else if (operation == REDUCE_SCATTER)
        pg_reduce_scatter(pg, buffer, mine, part, DTYPE_F32, REDUCE_SUM, "samples");
    else if (operation == ALL_GATHER)
        pg_all_gather(pg, mine, buffer, part, DTYPE_F32, "samples");
    else
        pg_all_reduce(pg, buffer, buffer, count, DTYPE_F32, REDUCE_SUM, "samples");
}

static double over_ranks(double value, ReduceOp op)
{
    pg_set_algorithm(pg, ALLREDUCE_MPI);
    pg_all_reduce(pg, &value, &value, 1, DTYPE_F64, op, "what was measured");
    return value;
}

/* ---- one sample ---- */

/* Copies what the host wrote to the contender's buffer, if that is the GPU's. */
static void host_has_written(const Contender *contender, size_t count)
{
    if (contender->on_device)
        device_from_host(buffer_of(contender), host_buffer_of(contender), count * sizeof(float));
}

/* The number of this rank's elements that are not what the operation must make of what the ranks wrote. */
static long wrong_elements(const Contender *contender, size_t count, unsigned number)
{
    const float *host = host_buffer_of(contender);
    const int N = pg_world_size(pg), rank = pg_rank(pg);
    const size_t part = part_of(count), mine = (size_t)rank * part;
    long wrong = 0;
    if (contender->on_device)
        device_to_host(host_buffer_of(contender), buffer_of(contender), count * sizeof *host);
    if (operation == ALL_REDUCE)
        return fresh_wrong(host, 0, count, 0, N, number);
    if (operation == REDUCE_SCATTER)
        return fresh_wrong(contender->blocking ? host : host + mine, mine, part, 0, N, number);
    for (int r = 0; r < N; r++)
        wrong += fresh_wrong(host + (size_t)r * part, (size_t)r * part, part, r, r + 1, number);
    return wrong;
}

/* Returns when all ranks have called it. */
static void meet(void)
{
    if (arrivals != NULL)
        fresh_meet(arrivals, pg_rank(pg), pg_world_size(pg));
    else
        pg_barrier(pg);
}

/* The seconds of one call whose data each rank has just written. */
static double call_with_fresh_data(const Contender *contender, size_t count, long *wrong)
{
    static unsigned number; /* of the call, the same on all ranks */
    float *buffer = buffer_of(contender);
    number++;
    fresh_write(host_buffer_of(contender), count, pg_rank(pg), number);
    host_has_written(contender, count);
    meet();
    double start = now_seconds();
    call(contender, buffer, count);
    double seconds = now_seconds() - start;
    meet();
    *wrong += wrong_elements(contender, count, number);
    return seconds;
}

/* The slowest rank's seconds per call. The first call is not counted: what the others' turns pushed out of the caches
 * returns to them. Its sum is checked like those of the others, and added to *wrong. */
static double fresh_sample(const Contender *contender, size_t count, int calls, long *wrong)
{
    double seconds = 0;
    long mine = 0;
    pg_set_algorithm(pg, contender->algorithm);
    call_with_fresh_data(contender, count, &mine);
    for (int i = 0; i < calls; i++)
        seconds += call_with_fresh_data(contender, count, &mine);
    *wrong += (long)over_ranks((double)mine, REDUCE_SUM);
    return over_ranks(seconds / calls, REDUCE_MAX);
}

/* The same for calls in a row. Zeros stay zeros, however often they are summed. */
static double left_sample(const Contender *contender, size_t count, int calls)
{
    float *buffer = buffer_of(contender);
    memset(host_buffer_of(contender), 0, count * sizeof *buffer);
    host_has_written(contender, count);
    pg_barrier(pg);
    pg_set_algorithm(pg, contender->algorithm);
    call(contender, buffer, count);
    double start = now_seconds();
    for (int i = 0; i < calls; i++)
        call(contender, buffer, count);
    return over_ranks((now_seconds() - start) / calls, REDUCE_MAX);
}

/* Sets the number of calls for a sample: a timed millisecond, but no more than a tenth of the budget with what is not
 * timed; and the number of samples of both kinds that the budget allows. */
static void plan(const Settings *settings, const Contender *contender, size_t count, Result *result)
{
    double start = now_seconds(), seconds = fresh_sample(contender, count, 3, &result->wrong);
    double whole = over_ranks(now_seconds() - start, REDUCE_MAX) / 4;
    double calls = fmin(fmin(1e-3 / seconds, settings->budget / 10 / whole), MAX_CALLS);
    result->calls = calls < 1 ? 1 : (int)calls;
    start = now_seconds();
    fresh_sample(contender, count, result->calls, &result->wrong);
    left_sample(contender, count, result->calls);
    double samples = settings->budget / over_ranks(now_seconds() - start, REDUCE_MAX);
    int least = settings->samples < 5 ? settings->samples : 5;
    result->samples = samples < least ? least : samples > settings->samples ? settings->samples : (int)samples;
    result->wrong = 0;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The elements of the longer buffer; for the two halves, whole parts, and at least one element in each. */
static size_t count_of(size_t bytes)
{
    size_t count = bytes / sizeof(float), N = (size_t)pg_world_size(pg);
    return operation == ALL_REDUCE ? count : count < N ? N : count / N * N;
}

static void summarise(Times *times, int samples)
{
    qsort(times->samples, (size_t)samples, sizeof(double), compare_doubles);
    times->least = times->samples[0];
    times->p50 = times->samples[samples / 2];
    times->p95 = times->samples[(samples * 95 - 1) / 100];
}

static void measure_size(const Settings *settings, size_t bytes, Result *results)
{
    size_t count = count_of(bytes);
    for (int i = 0; i < CONTENDERS; i++)
        if (settings->wanted[i])
            plan(settings, &contenders[i], count, &results[i]);
    for (int sample = 0; sample < settings->samples; sample++)
        for (int i = 0; i < CONTENDERS; i++) {
            Result *r = &results[i];
            if (!settings->wanted[i] || sample >= r->samples)
                continue;
            r->left.samples[sample] = left_sample(&contenders[i], count, r->calls);
            r->fresh.samples[sample] = fresh_sample(&contenders[i], count, r->calls, &r->wrong);
        }
    for (int i = 0; i < CONTENDERS; i++)
        if (settings->wanted[i]) {
            summarise(&results[i].left, results[i].samples);
            summarise(&results[i].fresh, results[i].samples);
        }
}

/* ---- printing ---- */

/* algbw, the caller's view: bytes / time. busbw, the links' view, comparable between numbers of ranks: algbw *
 * 2(N-1)/N, because an all-reduce moves at least that share of the bytes into and out of every rank; each of its halves
 * moves half of that. */
static void print_row(FILE *csv, const char *name, size_t bytes, const Result *result, const Result *yardstick)
{
    const Times *t = &result->fresh;
    double N = pg_world_size(pg), algbw = (double)bytes / t->p50 * 1e-9;
    double busbw = algbw * (operation == ALL_REDUCE ? 2 : 1) * (N - 1) / N;
    double ratio = yardstick != NULL ? t->p50 / yardstick->fresh.p50 : NAN;
    printf("%12zu  %-20s %7d x %-4d %11.2f %11.2f %11.2f %11.2f %9.3f %9.3f %8.2f %6ld\n", bytes, name, result->samples,
           result->calls, t->least * 1e6, t->p50 * 1e6, t->p95 * 1e6, result->left.p50 * 1e6, algbw, busbw, ratio,
           result->wrong);
    if (csv != NULL)
        fprintf(csv, "%s,%d,%zu,%d,%d,%.3f,%.3f,%.3f,%.3f,%.4f,%.4f,%.4f,%ld,%s\n", name, (int)N, bytes,
                result->samples, result->calls, t->least * 1e6, t->p50 * 1e6, t->p95 * 1e6, result->left.p50 * 1e6,
                algbw, busbw, ratio, result->wrong, operation_names[operation]);
}

static void print_fits(const Settings *settings, const Result *results)
{
    double bytes[MAX_SIZES], seconds[MAX_SIZES];
    printf("\nalpha-beta model, time = alpha + bytes / bandwidth, fitted to p50 (least relative squares)\n"
           "%-20s %12s %16s %14s %14s\n", "algorithm", "alpha us", "bandwidth GB/s", "median error", "worst error");
    for (int i = 0; i < CONTENDERS; i++) {
        if (!settings->wanted[i])
            continue;
        for (int s = 0; s < settings->size_count; s++) {
            bytes[s] = (double)settings->sizes[s];
            seconds[s] = results[s * CONTENDERS + i].fresh.p50;
        }
        AlphaBeta fit = alpha_beta_fit(bytes, seconds, settings->size_count);
        printf("%-20s %12.2f %16.3f %13.0f%% %13.0f%%\n", contenders[i].name, fit.alpha * 1e6, 1e-9 / fit.beta,
               fit.median_error * 100, fit.worst_error * 100);
    }
}

/* Returns the number of wrong elements. */
static long measure_operation(const Settings *settings, FILE *csv)
{
    Result *results = alloc_or_fault((size_t)settings->size_count * CONTENDERS * sizeof *results);
    long wrong = 0;
    bool speaks = pg_rank(pg) == 0;
    if (speaks)
        printf("# %s, float32%s, in place, %d ranks; left: data as the call before left it; all else: freshly written\n"
               "%12s  %-20s %14s %9s %11s %11s %11s %9s %9s %8s %6s\n",
               operation_names[operation], operation == ALL_GATHER ? "" : " sum", pg_world_size(pg), "bytes",
               "algorithm", "samples x calls", "min us", "p50 us", "p95 us", "left p50", "algbw", "busbw", "ratio",
               "wrong");
    for (int s = 0; s < settings->size_count; s++) {
        Result *row = &results[s * CONTENDERS];
        measure_size(settings, settings->sizes[s], row);
        for (int i = 0; i < CONTENDERS; i++) {
            wrong += row[i].wrong;
            if (speaks && settings->wanted[i])
                print_row(csv, contenders[i].name, settings->sizes[s], &row[i], settings->wanted[0] ? &row[0] : NULL);
        }
        fflush(stdout);
    }
    if (speaks && settings->size_count > 1)
        print_fits(settings, results);
    free(results);
    return wrong;
}

static long measure_all(const Settings *settings, FILE *csv)
{
    long wrong = 0;
    if (csv != NULL)
        fprintf(csv, "algorithm,ranks,bytes,samples,calls,min_us,p50_us,p95_us,left_p50_us,algbw_gb_s,"
                     "busbw_gb_s,ratio_to_MPI_Allreduce,wrong,operation\n");
    for (int o = 0; o < OPERATIONS; o++) {
        operation = (Measured)o;
        if (settings->operations[o])
            wrong += measure_operation(settings, csv);
    }
    return wrong;
}

/* The GPU first: in a program with a device, every collective checks whether its memory is the device's. */
static void make_buffers(const Settings *settings, size_t bytes)
{
    bool wants_nccl = false, wants_window = false;
    for (int i = 0; i < CONTENDERS; i++) {
        wants_nccl = wants_nccl || (settings->wanted[i] && contenders[i].on_device);
        wants_window = wants_window || (settings->wanted[i] && contenders[i].in_window);
    }
    if (gpu_has_nccl())
        device_init(pg_local_rank(pg), 1);
    if (wants_nccl) {
        gpu_join_group(pg, true);
        on_device = device_alloc(bytes);
        CHECK(device_owns(on_device), "the GPU's buffer is not the GPU's: MPI would carry it, not NCCL");
    }
    plain = gpu_has_nccl() ? device_alloc_host(bytes) : device_alloc(bytes);
    for (int i = 0; i < CONTENDERS; i++)
        if (settings->wanted[i])
            pg_set_algorithm(pg, contenders[i].algorithm); /* shm opens its window now, not in the first sample */
    if (wants_window) {
        pg_set_algorithm(pg, ALLREDUCE_SHM);
        window = pg_world_size(pg) > 1 ? pg_alloc_shared(pg, bytes) : plain; /* one rank may have no window */
    }
}

static void free_buffers(void)
{
    if (window != NULL && window != plain)
        pg_free_shared(pg, window);
    if (gpu_has_nccl())
        device_free_host(plain);
    else
        device_free(plain);
    device_free(on_device);
}

int main(int argc, char **argv)
{
    job_set_program(gpu_has_nccl() ? "collectives_cuda" : "collectives");
    pg = job_open(&argc, &argv);
    guard_job(pg);
    Settings settings = collectives_options(argc, argv);
    pg_set_options(pg, &(ProcessGroupOptions){.algorithm = ALLREDUCE_MPI, .timeout = 300,
                                              .wire_gbps = settings.wire_gbps,
                                              .wire_latency = 1e-6 * settings.wire_microseconds});
    if (settings.help) {
        if (pg_rank(pg) == 0)
            fputs(collectives_usage, stdout);
        job_close(pg);
        return 0;
    }
    bool writes = settings.csv != NULL && pg_rank(pg) == 0;
    AtomicFile csv = {0};
    if (settings.csv != NULL)
        atomic_check_writable("csv", settings.csv);
    if (writes)
        atomic_open(&csv, settings.csv);
    size_t largest = 0;
    for (int s = 0; s < settings.size_count; s++)
        largest = settings.sizes[s] > largest ? settings.sizes[s] : largest;
    ranks_print_processors();
    arrivals = ranks_create_meeting();
    make_buffers(&settings, largest + (size_t)pg_world_size(pg) * sizeof(float)); /* see count_of() */
    long wrong = measure_all(&settings, csv.stream);
    if (writes)
        atomic_commit(&csv);
    free_buffers();
    ranks_free_meeting();
    job_close(pg);
    return wrong != 0;
}
