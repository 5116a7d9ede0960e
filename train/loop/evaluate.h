/* evaluate.h: measures the model on data that it was not trained on, and prints sample text of a GPT. */
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

/* Prints a short prompt and `bytes` bytes drawn from the GPT's predictions, by text_print_byte(). Call it on rank 0
 * alone. Faults if the vocabulary has more than 256 tokens. */
void generate_text(Replica *replica, long bytes, uint64_t seed);

/* ---- generated text: bytes that become characters ---- */

typedef struct TextOutput {
    unsigned char pending[4]; /* the beginning of a character of UTF-8 */
    int count;
} TextOutput;

/* Prints the byte once its character is complete; begin with {0}. Control characters, and bytes that belong to no
 * character of UTF-8, become '?', so that a model that is hardly trained does not spoil the terminal. A last character
 * that stays incomplete is not printed. */
void text_print_byte(TextOutput *text, unsigned char byte);

#endif
