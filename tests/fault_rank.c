/* fault_rank.c: a program in which one rank misbehaves on purpose: the argument says how. Run by test_faults.sh.
 * It trains nothing; it makes the calls that a training step makes. */
#include <signal.h>
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

static void misbehave(ProcessGroup *pg, const char *how, float *gradient)
{
    if (strcmp(how, "sleep") == 0)
        sleep_seconds(1000);
    else if (strcmp(how, "skip") == 0)
        all_reduce_buckets(pg, gradient, true);
    else if (strcmp(how, "count") == 0)
        pg_all_reduce(pg, gradient, gradient, ELEMENTS / 2, DTYPE_F32, REDUCE_SUM, "bucket 0");
    else if (strcmp(how, "leave") == 0) { /* as a rank that runs out of data */
        device_free(gradient);
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
    ProcessGroupOptions options = {.algorithm = ALLREDUCE_MPI, .timeout = 3,
                                   .debug_collectives = argc > 2 && strcmp(argv[2], "debug") == 0};
    ProcessGroup *pg = pg_create(&options);
    device_init(pg_local_rank(pg), 1);
    float *gradient = device_alloc(2 * ELEMENTS * sizeof *gradient);
    bool bad = pg_rank(pg) == pg_world_size(pg) - 1;
    if (strcmp(how, "model") == 0) { /* the last rank has another model */
        ParameterList parameters = {0};
        parameters_add(&parameters, "fc1.weight", 2, (int64_t[]){4, bad ? 5 : 3});
        replicas_check_same_model(pg, &parameters);
    }
    for (int step = 0; step < STEPS; step++) {
        job_set_step(step);
        if (bad && step == BAD_STEP)
            misbehave(pg, how, gradient);
        all_reduce_buckets(pg, gradient, false);
    }
    device_free(gradient);
    pg_destroy(pg);
    return 0;
}
