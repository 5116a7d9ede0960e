/* mpi_main.c: one report from N ranks, and no rank left waiting when another fails. */
#include "mpi_main.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char rank_line[64];
static int rank_line_length;

/* cmocka ends a failed test with abort(); only write() is safe here. */
static void on_abort(int signal_number)
{
    (void)signal_number;
    ssize_t written = write(STDERR_FILENO, rank_line, (size_t)rank_line_length);
    (void)written;
}

void tests_run_as_rank(int rank)
{
    rank_line_length = snprintf(rank_line, sizeof rank_line, "\nthe test failed on rank %d\n", rank);
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    signal(SIGABRT, on_abort);
    if (rank != 0 && freopen("/dev/null", "w", stdout) == NULL)
        fprintf(stderr, "rank %d: cannot open /dev/null\n", rank);
}
