/* evaluate.h: how good the model is on data it was not trained on, and a sample of what a GPT has learnt. */
#ifndef LOCKSTEP_TRAIN_EVALUATE_H
#define LOCKSTEP_TRAIN_EVALUATE_H

#include "train/loop/replica.h"

typedef struct Evaluation {
    double loss;     /* mean over samples (MLP) or tokens (GPT), in nats */
    double accuracy; /* share of samples whose largest logit is at the target; NAN for regression */
    int64_t terms;   /* samples or tokens looked at */
} Evaluation;

/* The ranks share the evaluation set: rank r takes samples r, r + N, ... Collective; equal on all ranks.
 * At most `limit` samples are looked at (0: all). */
Evaluation evaluate(Replica *replica, const Dataset *dataset, ProcessGroup *pg, int64_t limit);

/* Prints `bytes` bytes drawn from the GPT's predictions, following a short prompt. On rank 0 alone. Needs a
 * byte-level vocabulary. */
void generate_text(Replica *replica, long bytes, uint64_t seed);

#endif
