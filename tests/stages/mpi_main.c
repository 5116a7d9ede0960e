/* mpi_main.c: prints one report for N ranks, and ends all ranks when one fails. */
#include "mpi_main.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

/* ---- for a grader ---- */

static struct CMUnitTest *judged; /* in the order in which they run; no one can write there any more */
static int next_judged;

/* Runs the next case. If it returns on all ranks, they have passed it. */
static void run_judged(void **state)
{
    const struct CMUnitTest *test = &judged[next_judged++];
    if (!in_judge() || judge_runs_cases)
        test->test_func(state);
    if (!in_judge())
        MPI_Barrier(MPI_COMM_WORLD);
    judge_case_is_over(test->name);
    fflush(stdout);
}

static void judge(struct CMUnitTest *tests, size_t count)
{
    const size_t bytes = count * sizeof *judged;
    judged = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(judged != MAP_FAILED, "no memory for the cases");
    memcpy(judged, tests, bytes);
    CHECK(mprotect(judged, bytes, PROT_READ) == 0, "mprotect failed");
    for (size_t i = 0; i < count; i++)
        tests[i].test_func = run_judged;
    judge_start();
}

/* ---- the command line ---- */

/* Moves the test with this name to the place `to`, if it is there or after it. */
static bool move_test(struct CMUnitTest *tests, size_t count, const char *name, size_t to)
{
    for (size_t i = to; i < count; i++) {
        if (strcmp(tests[i].name, name) == 0) {
            struct CMUnitTest found = tests[i];
            tests[i] = tests[to];
            tests[to] = found;
            return true;
        }
    }
    return false;
}

void tests_choose_case(int argc, char **argv, struct CMUnitTest *tests, size_t count)
{
    const char *slash = strrchr(argv[0], '/'), *program = slash != NULL ? slash + 1 : argv[0];
    job_set_program(program);
    given_read();
    if (argc == 1)
        return;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++)
            puts(tests[i].name);
        exit(0);
    }
    bool for_grader = strcmp(argv[1], "--judge") == 0;
    size_t wanted = (size_t)argc - 2, chosen = 0;
    while ((for_grader || strcmp(argv[1], "--case") == 0) && chosen < wanted &&
           move_test(tests, count, argv[2 + chosen], chosen))
        chosen++;
    if (chosen == 0 || chosen < wanted) {
        fprintf(stderr, "usage: %s [--list | --case NAME ... | --judge NAME ...]     NAME: one that --list shows\n",
                program);
        exit(2);
    }
    if (for_grader)
        judge(tests, chosen);
    for (size_t i = chosen; i < count; i++)
        tests[i].test_func = NULL; /* cmocka leaves it out */
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

ProcessGroup *tests_start_group(int *argc, char ***argv, const ProcessGroupOptions *options)
{
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
