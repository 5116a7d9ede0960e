/* evaluate.h: measures the model on held-out data, and prints text that a GPT generates. */
#ifndef LOCKSTEP_TRAIN_EVALUATE_H
#define LOCKSTEP_TRAIN_EVALUATE_H

#include "train/loop/replica.h"

typedef struct Evaluation {
    double loss;     /* mean over samples (MLP) or tokens (GPT), in nats */
    double accuracy; /* share of samples whose largest logit is at the target; NAN for regression */
    int64_t terms;   /* number of samples or tokens evaluated */
} Evaluation;

/* The ranks share the evaluation set: rank r takes samples r, r + N, ... Evaluates at most `limit` samples (0: all), in
 * batches as large as the largest micro-batch of training. Collective; the result is equal on all ranks. */
Evaluation evaluate(Replica *replica, const Dataset *dataset, ProcessGroup *pg, int64_t limit);

/* Prints a short prompt and `bytes` bytes drawn from the GPT's predictions. Faults if tokens are not bytes. */
void generate_text(Replica *replica, long bytes, uint64_t seed);

typedef struct TextOutput {
    unsigned char pending[4]; /* the first bytes of an incomplete UTF-8 character */
    int count;
} TextOutput;

/* Prints the byte as soon as its UTF-8 character is complete; start with {0}. Replaces control characters and invalid
 * bytes by '?', because the output of a barely trained model could garble the terminal. */
void text_print_byte(TextOutput *text, unsigned char byte);

#endif
