/* given.h: what a graded test gives to a solution, so that one mistake costs the points of one property only.
 *
 * The environment variable LOCKSTEP_TEST_GIVEN has words out of "start", "factor", "order" (watch.h) and "memory": what
 * pg_alloc_shared() gave may be given to free(). If it is not set, as under ctest, nothing is given. course/cases.sh sets
 * all, but for the lines that grade this very property. (test_shared_memory grades the memory, and never gives it.)
 *
 * The environment's variables for tests are read once, before the stage runs: it could change them.
 */
#ifndef LOCKSTEP_TESTS_GIVEN_H
#define LOCKSTEP_TESTS_GIVEN_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/tensor.h"
#include "optim/optimizer.h"

void given_read(void);           /* reads the variables, unless that was done */
/* A case "factor:zero_1:test_sgd" begins: this word is not given to it, and only this level is tested. */
void given_all_but(const char *name);
bool is_given(const char *what); /* LOCKSTEP_TEST_GIVEN has this word */
int given_level(void);           /* the only level of stage 5 to be tested, also LOCKSTEP_TEST_ZERO; 0: all are */
uint64_t given_seed(void);       /* LOCKSTEP_TEST_SEED; 1 if it is not set */

/* "start": after ddp_create(), sets the ranks' weights to those of `whole`, as a correct broadcast would have done.
 * partition: of stage 5, else NULL; its slices are set, too. */
void give_start(ParameterList *ranks, const ParameterList *whole, const Partition *partition);

/* "factor": before the optimizer, divides all gradients of the ranks by the one factor by which they differ from those
 * of `whole`. Gradients that are wrong in another way stay wrong. partition: as above; its slices' gradients are
 * divided, too. */
void give_factor(ParameterList *ranks, const ParameterList *whole, const Partition *partition);

#endif
