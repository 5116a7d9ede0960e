/* attention_trial.c: see attention_trial.h. */
#include "attention_trial.h"

enum { GUARD = 16 };

/* Device memory for `count` numbers and a guard after them, which must not be written. */
static float *guarded(int64_t count)
{
    float *room = device_alloc((size_t)(count + GUARD) * sizeof *room);
    device_fill(room + count, 1234, GUARD);
    return room;
}

static void free_guarded(float *room, int64_t count, const char *name)
{
    float guard[GUARD];
    device_to_host(guard, room + count, sizeof guard);
    for (int i = 0; i < GUARD; i++)
        if (guard[i] != 1234)
            fail_msg("%s() is too small: a number was written after its %lld numbers", name, (long long)count);
    device_free(room);
}

/* array: qkv, dout, out, dqkv. */
static void call_attention(const Trial *trial, void **array)
{
    const int64_t B = trial->shape[0], T = trial->shape[1], C = trial->shape[2];
    const DType precision = trial->precision;
    const int64_t saved_count = device_attention_saved(B, T, C, trial->heads);
    const int64_t scratch_count = device_attention_scratch(B, T, C, trial->heads);
    float *saved = guarded(saved_count), *scratch = guarded(scratch_count);
    void *out = operand_of(array[2], precision, B * T * C);
    device_attention_forward(out, saved, array[0], B, T, C, trial->heads, precision);
    device_attention_backward(trial_gradient(trial, array, 3), scratch, array[1], array[0], out, saved, B, T, C,
                              trial->heads, precision);
    numbers_of(array[2], out, precision, B * T * C);
    device_free(out);
    free_guarded(saved, saved_count, "device_attention_saved");
    free_guarded(scratch, scratch_count, "device_attention_scratch");
}

Trial run_attention(const Attention *a)
{
    Trial trial = {.name = "attention",
                   .call = call_attention,
                   .shape = {a->B, a->T, a->C},
                   .heads = a->heads,
                   .precision = a->precision};
    trial_input(&trial, a->qkv, a->B * a->T * 3 * a->C);
    trial_input(&trial, a->dout, a->B * a->T * a->C);
    trial_output(&trial, "out", NULL, a->B * a->T * a->C);
    trial_output(&trial, "dqkv", a->start, a->B * a->T * 3 * a->C);
    trial_run(&trial);
    return trial;
}

Attention random_attention(int64_t B, int64_t T, int heads, int64_t W, float scale, DType precision)
{
    const int64_t C = heads * W;
    return (Attention){.B = B,
                       .T = T,
                       .C = C,
                       .heads = heads,
                       .precision = precision,
                       .qkv = normals_around(0, scale, B * T * 3 * C),
                       .dout = normals(B * T * C),
                       .start = normals(B * T * 3 * C)};
}
