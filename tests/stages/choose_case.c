/* choose_case.c: see choose_case.h. */
#include "choose_case.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "judge.h"

/* ---- for a grader ---- */

void (*tests_all_ranks_meet)(void);

static struct CMUnitTest *judged; /* in the order in which they run; no one can write there any more */
static int next_judged;

/* Runs the next case. If it returns on all ranks, they have passed it. */
static void run_judged(void **state)
{
    const struct CMUnitTest *test = &judged[next_judged++];
    if (!in_judge() || judge_runs_cases)
        test->test_func(state);
    if (!in_judge() && tests_all_ranks_meet != NULL)
        tests_all_ranks_meet();
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
