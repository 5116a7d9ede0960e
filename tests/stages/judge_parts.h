/* judge_parts.h: what judge.c and judge_stage.c share. */
#ifndef LOCKSTEP_TESTS_JUDGE_PARTS_H
#define LOCKSTEP_TESTS_JUDGE_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern bool judge_left_out; /* the judge does not run this case */

enum { SAYS_SIZE = 1, SAYS_VALUES, SAYS_OVER, ASKS_BACK };

/* Both processes call it in the same order. What the child has not sent in this place, the judge does not accept. */
void judge_pass(uint64_t kind, void *bytes, size_t count);

/* In both processes: a new judge_number(), which the judge draws, and the child gets. */
void judge_draw(void);

#endif
