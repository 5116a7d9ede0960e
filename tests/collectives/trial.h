/* trial.h: one collective, on some ranks, with some count: the ranks' arrays, and what is in them afterwards. */
#ifndef LOCKSTEP_TESTS_TRIAL_H
#define LOCKSTEP_TESTS_TRIAL_H

#include "mailboxes.h"

enum { MOST_DIGITS = 9 }; /* ranks of DIGITS */

typedef enum Kind { BROADCAST, REDUCE_SCATTER, ALL_GATHER, RING, HALVING } Kind;

/* What the ranks begin with. DIGITS: each rank's part is one digit of a 64-bit integer, so that a sum shows which parts
 * are in it. FRACTIONS: float32 whose sum depends on the order. NUMBERS: of the trial's dtype, one of those that
 * combine() knows (of float32 and float64 one is NaN, and of what is compared some are zeros of either sign), or bf16,
 * for what only copies. */
typedef enum Values { DIGITS, FRACTIONS, NUMBERS } Values;

typedef enum Place { APART, IN_PLACE, SOME_IN_PLACE } Place; /* SOME: every second rank */

typedef struct Trial {
    Kind kind;
    int ranks, root;
    size_t count;
    Values values;
    DType dtype; /* of NUMBERS */
    ReduceOp op;
    Place place; /* of a broadcast: always in place */
    Rules rules;
} Trial;

typedef struct Outcome {
    DType dtype;
    unsigned char *send[MOST_RANKS], *receive[MOST_RANKS]; /* the same array if it is in place. Owned by arrays.c */
    Traffic traffic[MOST_RANKS];
} Outcome;

/* The outcome is there until the next one. */
void trial_run(Trial *trial, Outcome *outcome);

/* These fail with a message. Each needs the Values that it names. */
void expect_values(const Trial *trial, const Outcome *outcome);    /* DIGITS, REDUCE_SUM */
void expect_same_bits(const Trial *trial, const Outcome *outcome); /* FRACTIONS; of the all-reduces */
void expect_numbers(const Trial *trial, const Outcome *outcome);   /* NUMBERS; of the all-reduces, same bits, too */
void expect_sent(const Trial *trial, const Outcome *outcome);      /* any; as much as the results need at least */

#endif
