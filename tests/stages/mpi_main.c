/* mpi_main.c: prints one report for N ranks, and ends all ranks when one fails. */
#include "mpi_main.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "comm/observer.h"
#include "device/device.h"
#include "given.h"
#include "judge.h"
#include "train/guard/guard.h"

static char rank_line[64];
static int rank_line_length;

/* cmocka ends a failed test with abort(); only write() is safe here. */
static void on_abort(int signal_number)
{
    ssize_t written = write(STDERR_FILENO, rank_line, (size_t)rank_line_length);
    (void)written;
}

double tests_timeout(void)
{
    const char *text = getenv("LOCKSTEP_TEST_TIMEOUT");
    if (text == NULL)
        return 60;
    char *end = NULL;
    double seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !(seconds > 0))
        die("LOCKSTEP_TEST_TIMEOUT: \"%s\" must be a number of seconds above 0", text);
    return seconds;
}

void tests_run_as_rank(int rank)
{
    rank_line_length = snprintf(rank_line, sizeof rank_line, "\nthe test failed on rank %d\n", rank);
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    signal(SIGABRT, on_abort);
    if (rank != 0 && freopen("/dev/null", "w", stdout) == NULL)
        fprintf(stderr, "rank %d: cannot open /dev/null\n", rank);
}

/* ---- a rank that hangs outside collectives ---- */

static char idle_line[280];
static unsigned idle_seconds;

static void end_idle(int signal_number)
{
    ssize_t written = write(STDERR_FILENO, idle_line, strlen(idle_line));
    _exit(written > 0 ? 1 : 2);
}

static void start_count_again(void *self, const Collective *collective)
{
    alarm(idle_seconds);
}

void tests_end_if_idle(unsigned seconds)
{
    idle_seconds = seconds;
    snprintf(idle_line, sizeof idle_line, "test: fault: rank %d: it has called no collective for %u s, and still runs\n"
             "  usual cause: a loop in ddp.c that never ends, or memory that was overwritten\n", job_rank(), seconds);
    signal(SIGALRM, end_idle);
    alarm(seconds);
}

static void meet(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

ProcessGroup *tests_start_group(int *argc, char ***argv, const ProcessGroupOptions *options)
{
    given_read();
    tests_all_ranks_meet = meet;
    tests_give_all_but = given_all_but;
    if (in_judge())
        return judge_group(NULL);
    ProcessGroup *pg = job_open(argc, argv);
    guard_job(pg);
    pg_set_options(pg, options);
    device_init(pg_local_rank(pg), 1);
    tests_run_as_rank(pg_rank(pg));
    tests_end_if_idle((unsigned)(2 * options->timeout)); /* the watchdog reports a rank that waits in a collective */
    pg_observe(pg, &(GroupObserver){.called = start_count_again});
    return judge_group(pg);
}
