/* choose_case.h: the command line of a test program, whose cases can be run one by one. */
#ifndef LOCKSTEP_TESTS_CHOOSE_CASE_H
#define LOCKSTEP_TESTS_CHOOSE_CASE_H

#include "expect.h"

/* Reads the command line: "--list" prints the names of the cases and ends; "--case NAME ..." runs only these cases;
 * anything else ends the program with status 2. The cases are independent. A case that fails ends all ranks, so run
 * each case by itself to learn which ones pass. Call it before MPI is started. Faults carry the test program's name
 * from now on.
 * "--judge NAME ..." is for a grader, which must not believe what a submission prints: the cases run in this order, and
 * after each one that all ranks have passed, rank 0 prints "passed: NAME SECRET", where SECRET is the next line of
 * the pipe LOCKSTEP_TEST_SECRETS. A process without the submission decides this, and prints it: judge.h. Here a NAME may
 * begin with words, "factor:zero_1:test_sgd": given_all_but() (given.h). */
void tests_choose_case(int argc, char **argv, struct CMUnitTest *tests, size_t count);

/* Called after each judged case; returns when all ranks have called it. NULL: the program has no other ranks. */
extern void (*tests_all_ranks_meet)(void);
/* Called before each judged case, with its whole name. NULL: the program gives nothing. */
extern void (*tests_give_all_but)(const char *name);

#endif
