/* fault_rank.c: a program in which one rank misbehaves on purpose: the argument says how. Run by test_faults.sh.
 * It trains nothing; it makes the calls that a training step makes. */
#include <limits.h>
#include <mpi.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "dist/process_group.h"
#include "dist/supervise.h"

#define STEPS 5
#define BAD_STEP 2
#define ELEMENTS 1000

static void all_reduce_buckets(ProcessGroup *pg, float *gradient, bool leave_out_the_first)
{
    static const char *const names[] = {"bucket 0", "bucket 1"};
    Work *works[2] = {NULL, NULL};
    for (int b = leave_out_the_first; b < 2; b++)
        works[b] = pg_all_reduce_async(pg, gradient + b * ELEMENTS, gradient + b * ELEMENTS, ELEMENTS, DTYPE_F32,
                                       REDUCE_SUM, names[b]);
    for (int b = leave_out_the_first; b < 2; b++)
        work_wait(works[b]);
}

/* ---- MPI_Finalize, as in an MPI that hangs there ---- */

static bool finalize_hangs;

/* The linker takes this one; PMPI_Finalize is the library's. */
int MPI_Finalize(void)
{
    while (finalize_hangs)
        sleep_seconds(1);
    return PMPI_Finalize();
}

/* ---- a device that does not get to the end of what was queued ---- */

static atomic_bool device_hangs;

/* The linker takes this one; on a CPU there is never anything to wait for. */
void __wrap_device_event_wait(DeviceEvent *event);
void __wrap_device_event_wait(DeviceEvent *event)
{
    (void)event;
    while (device_hangs)
        sleep_seconds(1);
}

/* ---- misbehaving ---- */

/* With 4 ranks MPICH sends what rank 0 has to rank 1 and, by way of rank 2, to rank 3. Rank 2 never comes, so rank 3 waits;
 * ranks 0 and 1 have done their part, and compute for ever. */
static void broadcast_without_one(ProcessGroup *pg, float *buffer)
{
    if (pg_rank(pg) != 2)
        pg_broadcast(pg, buffer, ELEMENTS, DTYPE_F32, 0, "weights");
    sleep_seconds(1000);
}

static void start_all_reduces(ProcessGroup *pg, float *gradient, long count)
{
    for (long i = 0; i < count; i++)
        pg_all_reduce_async(pg, gradient, gradient, ELEMENTS, DTYPE_F32, REDUCE_SUM, "bucket 0");
}

static void misbehave(ProcessGroup *pg, const char *how, float *gradient)
{
    if (strcmp(how, "sleep") == 0)
        sleep_seconds(1000);
    else if (strcmp(how, "device") == 0)
        device_hangs = true; /* and the rank goes on, and makes its calls as the others do */
    else if (strcmp(how, "skip") == 0)
        all_reduce_buckets(pg, gradient, true);
    else if (strcmp(how, "count") == 0)
        pg_all_reduce(pg, gradient, gradient, ELEMENTS / 2, DTYPE_F32, REDUCE_SUM, "bucket 0");
    else if (strcmp(how, "unstarted") == 0)
        work_wait(NULL);
    else if (strcmp(how, "endless") == 0)
        start_all_reduces(pg, gradient, LONG_MAX);
    else if (strcmp(how, "unwaited") == 0) {
        start_all_reduces(pg, gradient, 3);
        pg_free_shared(pg, gradient);
    } else if (strcmp(how, "leave") == 0) { /* as a rank that runs out of data */
        pg_free_shared(pg, gradient);
        pg_destroy(pg);
        exit(0);
    } else if (strcmp(how, "exit") == 0)
        _Exit(3);
    else if (strcmp(how, "abort") == 0)
        abort();
    else if (strcmp(how, "crash") == 0)
        raise(SIGSEGV);
}

int main(int argc, char **argv)
{
    supervise_rank();
    pg_initialize(&argc, &argv);
    const char *how = argc > 1 ? argv[1] : "";
    const char *where = argc > 2 ? argv[2] : "";
    ProcessGroupOptions options = {.algorithm = strcmp(where, "shm") == 0 ? ALLREDUCE_SHM : ALLREDUCE_MPI, .timeout = 3,
                                   .debug_collectives = strcmp(where, "debug") == 0};
    ProcessGroup *pg = pg_create(&options);
    device_init(pg_local_rank(pg), 1);
    float *gradient = pg_alloc_shared(pg, 2 * ELEMENTS * sizeof *gradient);
    bool bad = pg_rank(pg) == pg_world_size(pg) - 1;
    if (strcmp(how, "model") == 0) { /* the last rank has another model */
        ParameterList parameters = {0};
        parameters_add(&parameters, "fc1.weight", 2, (int64_t[]){4, bad ? 5 : 3});
        replicas_check_same_model(pg, &parameters);
    }
    for (int step = 0; step < STEPS; step++) {
        job_set_step(step);
        if (step == BAD_STEP && strcmp(how, "broadcast") == 0)
            broadcast_without_one(pg, gradient);
        if (bad && step == BAD_STEP)
            misbehave(pg, how, gradient);
        all_reduce_buckets(pg, gradient, false);
    }
    pg_free_shared(pg, gradient);
    finalize_hangs = bad && strcmp(how, "finalize") == 0;
    pg_destroy(pg);
    return 0;
}
