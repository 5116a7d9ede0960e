/* test_stop.c: when one rank has got a signal, all ranks stop before the same step: [note: stop]. Here no collective keeps
 * them together, so that they are many steps apart when the signal comes. */
#include <signal.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "expect.h"
#include "mpi_main.h"
#include "train/guard/guard.h"

enum { FIRST = 7, SIGNALLED = FIRST + 20, MANY = 100000 };

static ProcessGroup *pg;

/* Each rank takes another time for a step. The last rank, which gets the signal, is not the fastest. */
static void test_all_ranks_stop_before_the_same_step(void **state)
{
    const int ranks = pg_world_size(pg), rank = pg_rank(pg);
    long step = FIRST;
    int got = 0;
    (void)state;
    int64_t *steps = alloc_or_fault((size_t)ranks * sizeof *steps);
    pg_barrier(pg);
    stop_on_signals(FIRST, 10);
    for (; step < MANY && (got = stop_is_due(step)) == 0; step++) {
        if (rank == ranks - 1 && step == SIGNALLED)
            raise(SIGTERM);
        sleep_seconds(1e-3 * (rank == 0 ? 1 : 1 + 2 * rank));
    }
    const int64_t mine = step;
    pg_all_gather(pg, &mine, steps, 1, DTYPE_I64, "steps");
    for (int r = 0; r < ranks; r++)
        if (steps[r] != mine)
            fail_msg("the ranks do not stop before the same step: rank %d before step %ld, rank %d before step %ld: a "
                     "rank that trains on waits for the others for ever", rank, (long)mine, r, (long)steps[r]);
    if (got != SIGTERM)
        fail_msg("rank %d: expected signal %d, which rank %d has got, but got %d", rank, SIGTERM, ranks - 1, got);
    if (mine <= SIGNALLED || mine == MANY)
        fail_msg("expected a stop soon after step %d, but the ranks stop before step %ld", SIGNALLED, (long)mine);
    free(steps);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_ranks_stop_before_the_same_step)};
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.timeout = tests_timeout()});
    int failures = cmocka_run_group_tests_name("stop", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
