/* guard.c: see guard.h. */
#include "train/guard/guard.h"

#include <stdlib.h>

#include "base/check.h"
#include "comm/group.h"
#include "train/guard/compare_calls.h"
#include "train/guard/ending.h"
#include "train/guard/watchdog.h"

/* The launcher says how many ranks it has started. If MPI sees fewer, the program was built for another MPI than the
 * launcher's: every rank would believe that it is alone, and would train by itself. Slurm's srun sets an MPI's own
 * variables only if it supports that MPI. (MPICH's mpiexec starts its helpers with srun. Then Slurm's number counts the
 * helpers, so the launcher's variables decide.) */
static void check_launcher(int world_size)
{
    static const char *const variables[] = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"};
    bool has_launcher = false;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *started = getenv(variables[i]);
        has_launcher |= started != NULL;
        if (started != NULL && atoi(started) != world_size)
            die("the launcher started %s ranks, but this program's MPI library sees %d: it was built with another MPI; "
                "use that MPI's own mpiexec", started, world_size);
    }
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    if (!has_launcher && tasks != NULL && atoi(tasks) > 1 && world_size == 1)
        die("srun started %s ranks, but this program's MPI library sees 1: srun does not support it; try srun "
            "--mpi=pmix or --mpi=pmi2 (srun --mpi=list shows which there are), or the MPI's own mpiexec", tasks);
}

void guard_job(void)
{
    ending_open();
    check_launcher(job_world_size());
}

void guard_group(ProcessGroup *pg)
{
    if (pg_world_size(pg) > 1)
        watchdog_start(pg);
    ending_observe(pg);
    if (pg->options.debug_collectives)
        guard_compare_calls(pg);
}

void guard_compare_calls(ProcessGroup *pg)
{
    pg_observe(pg, &(GroupObserver){.self = pg, .ready = compare_calls});
}

void guard_end(void)
{
    ending_close();
}
