/* guard.c: checks the launcher, compares the ranks' calls, and starts the guard's parts (parts.h). */
#include "train/guard/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/observer.h"
#include "train/guard/parts.h"

/* The launcher sets a variable to its number of ranks. If MPI sees one rank, the program was built for another MPI than
 * the launcher's, and each rank would train alone. Slurm's srun sets an MPI's own variables only if it supports that
 * MPI. (MPICH's mpiexec starts its helpers with srun. Slurm's number then counts the helpers, so the launcher's
 * variables decide.) A launcher also gives each process its rank: a number of ranks alone is a leftover. */
static void check_launcher(int world_size)
{
    enum { SLURM = 2 };
    static const char *const sizes[] = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"};
    static const char *const ranks[] = {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"};
    bool has_launcher = false;
    for (int i = 0; i <= SLURM && world_size == 1; i++) {
        const char *started = getenv(sizes[i]);
        const bool starts_ranks = started != NULL && getenv(ranks[i]) != NULL && !(i == SLURM && has_launcher);
        has_launcher |= starts_ranks;
        if (started == NULL || atoi(started) <= 1)
            continue;
        if (starts_ranks)
            die("%s started %s ranks (%s), but this program's MPI library sees 1: %s; or unset %s, if this is not so",
                i == SLURM ? "srun" : "the launcher", started, sizes[i], i == SLURM
                ? "srun does not support it; try srun --mpi=pmix or --mpi=pmi2 (srun --mpi=list shows which there "
                  "are), or the MPI's own mpiexec"
                : "it was built with another MPI; use that MPI's own mpiexec", sizes[i]);
        if (!has_launcher)
            advise("%s=%s is set, but no launcher has given this process a rank: it trains alone", sizes[i], started);
    }
}

#define CALL_SIZE 160 /* "all_reduce number 35 of bucket 2: 262144 x float32, sum", sent as 40 int32 words */

static void describe_call(const Collective *c, char *text)
{
    memset(text, 0, CALL_SIZE); /* all bytes are compared */
    snprintf(text, CALL_SIZE, "%s number %ld of %.60s: %zu x %s, %s, root %d", operation_name(c->operation),
             c->sequence, c->carries[0] != '\0' ? c->carries : "nothing", c->count, dtype_name(c->dtype),
             c->op == REDUCE_SUM ? "sum" : "max", c->root);
}

/* Faults and shows both calls if ranks are about to run different collectives (number, operation, dtype, count, name of
 * the payload). MPI would hang, fail far from the cause, or add gradients of different parameters. Collective. */
static void compare_calls(void *self, const Collective *collective)
{
    ProcessGroup *pg = self;
    char mine[CALL_SIZE];
    if (!pg_options(pg)->debug_collectives)
        return;
    char *all = alloc_or_fault((size_t)pg_world_size(pg) * CALL_SIZE);
    describe_call(collective, mine);
    pg_run_unobserved(pg, &(Collective){.operation = OP_ALL_GATHER, .send = mine, .receive = all,
                                    .count = CALL_SIZE / sizeof(int32_t), .dtype = DTYPE_I32,
                                    .carries = "the call to be compared", .sequence = collective->sequence,
                                    .background = collective->background});
    for (int rank = 1; rank < pg_world_size(pg); rank++) {
        const char *theirs = all + (size_t)rank * CALL_SIZE;
        if (memcmp(all, theirs, CALL_SIZE) == 0)
            continue;
        if (pg_rank(pg) != 0)
            sleep_seconds(5); /* meanwhile rank 0 prints the message, and ends the job */
        FAULT("the ranks%s call different collectives: rank %d %s; rank %d %s. Ranks must make the same calls in the "
              "same order", pg_of_group(pg), pg_job_rank(pg, 0), all, pg_job_rank(pg, rank), theirs);
    }
    free(all);
}

static void guard_group(void *self, ProcessGroup *pg)
{
    (void)self;
    if (pg_world_size(pg) > 1)
        watchdog_watch(pg);
    pg_observe(pg, &(GroupObserver){.self = pg, .ready = compare_calls, .split = guard_group});
}

void guard_job(ProcessGroup *world)
{
    shutdown_open();
    check_launcher(job_world_size());
    guard_group(NULL, world);
}
