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
void (*tests_give_all_but)(const char *name);

/* A case as the command line names it: "factor:zero_1:test_sgd". */
typedef struct Judged {
    char name[128];
    CMUnitTestFunction run;
} Judged;

static Judged *judged; /* in the order in which they run; no one can write there any more */
static size_t judged_count;

/* Runs the cases. If one returns on all ranks, they have passed it. */
static void run_judged(void **state)
{
    for (size_t i = 0; i < judged_count; i++) {
        if (tests_give_all_but != NULL)
            tests_give_all_but(judged[i].name);
        if (!in_judge() || judge_runs_cases)
            judged[i].run(state);
        if (!in_judge() && tests_all_ranks_meet != NULL)
            tests_all_ranks_meet();
        judge_case_is_over(judged[i].name);
        fflush(stdout);
    }
}

/* The first of the tests becomes all of these cases. */
static void judge(char **names, size_t wanted, struct CMUnitTest *tests, size_t count)
{
    const size_t bytes = wanted * sizeof *judged;
    judged = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(judged != MAP_FAILED, "no memory for the cases");
    judged_count = wanted;
    for (size_t i = 0; i < wanted; i++) {
        const char *words_end = strrchr(names[i], ':'), *name = words_end != NULL ? words_end + 1 : names[i];
        snprintf(judged[i].name, sizeof judged[i].name, "%s", names[i]);
        for (size_t k = 0; k < count; k++)
            if (strcmp(tests[k].name, name) == 0)
                judged[i].run = tests[k].test_func;
        CHECK(judged[i].run != NULL, "there is no case %s: --list shows which there are", name);
    }
    CHECK(mprotect(judged, bytes, PROT_READ) == 0, "mprotect failed");
    tests[0].name = "the cases of --judge";
    tests[0].test_func = run_judged;
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
    const bool for_grader = strcmp(argv[1], "--judge") == 0;
    const size_t wanted = (size_t)argc - 2;
    size_t chosen = 0;
    if (for_grader && wanted > 0) {
        judge(argv + 2, wanted, tests, count);
        chosen = 1;
    }
    while (strcmp(argv[1], "--case") == 0 && chosen < wanted && move_test(tests, count, argv[2 + chosen], chosen))
        chosen++;
    if (chosen == 0 || (!for_grader && chosen < wanted)) {
        fprintf(stderr, "usage: %s [--list | --case NAME ... | --judge NAME ...]     NAME: one that --list shows\n",
                program);
        exit(2);
    }
    for (size_t i = chosen; i < count; i++)
        tests[i].test_func = NULL; /* cmocka leaves it out */
}
