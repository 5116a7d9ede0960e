/* judge.h: for a grader: a process of its own judges the cases, because a submission can write to all memory of the
 * process in which it runs.
 *
 * judge_start() forks before MPI starts. The child runs MPI, the tests and the submission. The parent of rank 0, the
 * judge, runs the same cases without a submission and without MPI: where the child's test has got weights or gradients
 * from the stage, it sends them, and the judge takes them in the same place (judged_bytes()). It then computes and
 * compares by itself. The secrets that show which cases have passed are in the pipe that LOCKSTEP_TEST_SECRETS names.
 * The judge empties it before the child goes on, so that they are nowhere else, also not in mpiexec. A program whose
 * cases cannot be run so (because they look at calls and events) is judged by what the child says at the end of each
 * case alone. */
#ifndef LOCKSTEP_TESTS_JUDGE_H
#define LOCKSTEP_TESTS_JUDGE_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/process_group.h"

typedef struct ParameterList ParameterList; /* autograd/tensor.h; not every test program has tensors */

/* Set it to true before tests_choose_case(): the judge runs this program's cases, too. */
extern bool judge_runs_cases;

/* A case that needs more of the stage than weights and gradients begins with `if (judge_leaves_case_out()) return;`. It
 * is false everywhere but in the judge. */
bool judge_leaves_case_out(void);

void judge_start(void);
bool in_judge(void); /* false in a process that was not judge_start()ed, too */
bool judge_grades(void); /* judge_start() was called: a grader runs */

/* What the judge has drawn for this case, in the judge and on rank 0: the submission on other ranks cannot know it. 0
 * where there is no judge. */
uint64_t judge_number(void);

/* In the judge, after the last case: ends it as the child has ended. found_wrong: if the child has found nothing, what
 * the judge's comparisons have printed is shown. Async-signal-safe. */
_Noreturn void judge_end(bool found_wrong);

/* In the judge: a group of as many ranks as the child's, whose collectives do nothing. job_close() ends the process
 * as the child has ended. In the child and elsewhere: tells the judge how many ranks there are; returns pg. */
ProcessGroup *judge_group(ProcessGroup *pg);

/* A case is over. In the child, on rank 0: asks the judge, who prints "passed: NAME SECRET" if nothing has differed. */
void judge_case_is_over(const char *name);

/* From rank 0's stage to the judge: the child sends what is there, the judge overwrites what is there. Elsewhere:
 * nothing. A test calls them right after the calls of the stage, in the same order in both processes. */
void judged_weights(const ParameterList *parameters);
void judged_gradients(const ParameterList *parameters); /* of trained parameters */

#endif
