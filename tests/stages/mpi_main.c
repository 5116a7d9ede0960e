/* mpi_main.c: prints one report for N ranks, and ends all ranks when one fails. */
#include "mpi_main.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "comm/observer.h"
#include "device/device.h"
#include "train/guard/guard.h"

static char rank_line[64];
static int rank_line_length;

/* cmocka ends a failed test with abort(); only write() is safe here. */
static void on_abort(int signal_number)
{
    (void)signal_number;
    ssize_t written = write(STDERR_FILENO, rank_line, (size_t)rank_line_length);
    (void)written;
}

static bool is_among(const char *name, char **names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

void tests_choose_case(int argc, char **argv, struct CMUnitTest *tests, size_t count)
{
    const char *slash = strrchr(argv[0], '/'), *program = slash != NULL ? slash + 1 : argv[0];
    job_set_program(program);
    if (argc == 1)
        return;
    bool list = argc == 2 && strcmp(argv[1], "--list") == 0;
    int chosen = 0;
    for (size_t i = 0; i < count; i++) {
        if (list)
            puts(tests[i].name);
        else if (strcmp(argv[1], "--case") == 0 && is_among(tests[i].name, argv + 2, argc - 2))
            chosen++;
        else
            tests[i].test_func = NULL; /* cmocka leaves it out */
    }
    if (list)
        exit(0);
    if (chosen == 0 || chosen != argc - 2) {
        fprintf(stderr, "usage: %s [--list | --case NAME ...]     NAME: one that --list shows\n", program);
        exit(2);
    }
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
    (void)signal_number;
    ssize_t written = write(STDERR_FILENO, idle_line, strlen(idle_line));
    _exit(written > 0 ? 1 : 2);
}

static void start_count_again(void *self, const Collective *collective)
{
    (void)self, (void)collective;
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

ProcessGroup *tests_start_group(int *argc, char ***argv, const ProcessGroupOptions *options)
{
    pg_initialize(argc, argv);
    guard_job();
    ProcessGroup *pg = pg_create(options);
    guard_group(pg);
    device_init(pg_local_rank(pg), 1);
    tests_run_as_rank(pg_rank(pg));
    tests_end_if_idle((unsigned)(2 * options->timeout)); /* the watchdog reports a rank that waits in a collective */
    pg_observe(pg, &(GroupObserver){.called = start_count_again});
    return pg;
}
