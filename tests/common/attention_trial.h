/* attention_trial.h: one trial (device_trial.h) of device.h's causal self-attention, forward and then backward. */
#ifndef LOCKSTEP_TESTS_ATTENTION_TRIAL_H
#define LOCKSTEP_TESTS_ATTENTION_TRIAL_H

#include "device_trial.h"

typedef struct Attention {
    int64_t B, T, C;
    int heads;
    DType precision;
    const float *qkv, *dout;
    const float *start; /* of dqkv; NULL: this is its first contribution */
} Attention;

/* Random numbers; W: the width of a head. scale: of qkv. */
Attention random_attention(int64_t B, int64_t T, int heads, int64_t W, float scale, DType precision);

/* Runs it; array 2 of the trial is out, 3 is dqkv. */
Trial run_attention(const Attention *attention);

#endif
