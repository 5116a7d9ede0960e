/* modes_model.c: the model of modes.h, and what its gradients must be. */
#include "modes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "base/check.h"
#include "base/rng.h"
#include "device/device.h"

/* ---- the model ---- */

int fan_weight(const Mode *mode, int branch)
{
    return 1 + branch * (mode->biases ? 2 : 1);
}

/* A bias has four dimensions, so that its size is not the product of the first ones. */
static void add_parameter(Fan *fan, const char *kind, int branch, const Mode *mode, Rng *rng)
{
    const bool is_bias = strcmp(kind, "bias") == 0;
    const int64_t shape[] = {is_bias ? 1 : mode->width, is_bias ? 1 : mode->width, is_bias ? 1 : mode->width, mode->width};
    char name[32] = "trunk.weight";
    if (branch >= 0)
        snprintf(name, sizeof name, "branch%d.%s", branch, kind);
    Parameter *parameter = parameters_add(&fan->parameters, name, is_bias ? 4 : 2, shape);
    parameter->tensor.requires_grad = parameter->index != mode->frozen;
    init_uniform(parameter, rng, sqrtf(3) / sqrtf((float)(mode->width * (branch >= 0 ? mode->branches : 1))));
}

void fan_create(Fan *fan, const Mode *mode, uint64_t seed)
{
    Rng rng;
    rng_seed(&rng, seed);
    *fan = (Fan){.tape = {.precision = DTYPE_F32}};
    add_parameter(fan, "weight", -1, mode, &rng);
    for (int k = 0; k < mode->branches; k++) {
        add_parameter(fan, "weight", k, mode, &rng);
        if (mode->biases)
            add_parameter(fan, "bias", k, mode, &rng);
    }
}

void fan_free(Fan *fan)
{
    tape_free(&fan->tape);
    parameters_free(&fan->parameters);
}

int mode_micro_batches(const Mode *mode, int step)
{
    const int fewer[] = {mode->micro_batches, 1, mode->micro_batches - 1};
    return mode->micro_batches == 1 ? 1 : fewer[step % 3];
}

/* One branch in six is left out: by all ranks, by every other rank, or by every other rank in some micro-batches. A
 * static graph is the same in all of them; with --shard-ranks, every other group takes the place of every other rank. */
static bool left_out(const Mode *mode, int branch, int rank, int step, int micro_batch)
{
    if (mode->options.static_graph)
        step = micro_batch = 0;
    if (!mode->unused || (branch + step + (int)(mode->seed % 6)) % 6 != 0)
        return false;
    if (mode->options.rebuild_buckets && step == 0 && rank == 0)
        return false; /* so that its order of readiness, by which buckets are rebuilt, is that of events */
    if (mode->sharding.shard_ranks > 0)
        rank /= mode->sharding.shard_ranks;
    switch (branch / 6 % 3) {
    case 0: return true;
    case 1: return (rank + branch) % 2 == 0;
    default: return (rank + micro_batch) % 2 == 0;
    }
}

/* Branches in the order in which this rank records them. */
static void record_order(const Mode *mode, int rank, int step, int *order)
{
    Rng rng;
    for (int i = 0; i < mode->branches; i++)
        order[i] = i;
    if (!mode->shuffled)
        return;
    rng_seed(&rng, mode->seed + 100 * (uint64_t)step + (uint64_t)rank);
    for (int i = mode->branches - 1; i > 0; i--) {
        const int other = (int)rng_below(&rng, (uint64_t)i + 1), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

static Tensor *random_rows(Tape *tape, const Mode *mode, Rng *rng)
{
    Tensor *rows = tape_tensor(tape, 2, (int64_t[]){MODE_SAMPLES, mode->width}, false);
    for (int i = 0; i < MODE_SAMPLES * mode->width; i++)
        ((float *)rows->data)[i] = rng_normal(rng);
    return rows;
}

Tensor *fan_loss(Fan *fan, const Mode *mode, int rank, int step, int micro_batch)
{
    Tape *tape = &fan->tape;
    Tensor **outputs = alloc_or_fault((size_t)mode->branches * sizeof *outputs), *prediction;
    Parameter **items = fan->parameters.items;
    int *order = alloc_or_fault((size_t)mode->branches * sizeof *order);
    Rng rng;
    rng_seed(&rng, mode->seed + 1000 * (uint64_t)step + 10 * (uint64_t)rank + (uint64_t)micro_batch);
    Tensor *inputs = random_rows(tape, mode, &rng), *targets = random_rows(tape, mode, &rng);
    for (int i = 0; i < MODE_SAMPLES * mode->width && mode->large && step == 2; i++)
        ((float *)targets->data)[i] *= 2e5f;
    if (mode->not_finite && rank == 0 && step == 2 && micro_batch + 1 == mode_micro_batches(mode, step))
        ((float *)targets->data)[0] = mode->seed % 4 == 1 ? NAN : INFINITY;
    Tensor *h = op_linear(tape, inputs, &items[0]->tensor, NULL);
    record_order(mode, rank, step, order);
    for (int i = 0; i < mode->branches; i++) {
        const int k = order[i];
        Tensor *x = h;
        if (left_out(mode, k, rank, step, micro_batch))
            continue;
        if (mode->tied && k == mode->branches / 2)
            x = op_linear(tape, x, &items[fan_weight(mode, k + 1)]->tensor, NULL);
        const int weight = fan_weight(mode, k);
        outputs[k] = op_linear(tape, x, &items[weight]->tensor, mode->biases ? &items[weight + 1]->tensor : NULL);
    }
    prediction = h;
    for (int k = 0; k < mode->branches; k++) /* added in one order on all ranks, so that the rounding is the same */
        if (outputs[k] != NULL)
            prediction = op_add(tape, prediction, outputs[k]);
    free(outputs);
    free(order);
    return op_mse(tape, prediction, targets->data);
}

bool fan_uses(const Mode *mode, int ranks, int step, int parameter)
{
    const int branch = (parameter - 1) / (mode->biases ? 2 : 1);
    const bool is_weight = parameter == fan_weight(mode, branch);
    bool used = parameter == 0 || parameter == mode->frozen;
    const int micro_batches = mode_micro_batches(mode, step);
    for (int i = 0; i < ranks * micro_batches && !used; i++) {
        const int rank = i / micro_batches, k = i % micro_batches;
        used = !left_out(mode, branch, rank, step, k) ||
               (mode->tied && is_weight && branch == mode->branches / 2 + 1 && !left_out(mode, branch - 1, rank, step, k));
    }
    return used;
}

/* ---- what is expected ---- */

void fan_own_sum(Fan *fan, const Mode *mode, int rank, int step, int last)
{
    parameters_zero_gradients(&fan->parameters);
    for (int k = 0; k <= last; k++) {
        tape_begin(&fan->tape, true);
        tape_backward(&fan->tape, fan_loss(fan, mode, rank, step, k), 1);
    }
}

static void round_to(DType dtype, float *values, int64_t count)
{
    if (dtype == DTYPE_F32)
        return;
    uint16_t *half = alloc_or_fault((size_t)count * sizeof *half);
    device_to_half(half, values, dtype, count);
    device_from_half(values, half, dtype, count);
    free(half);
}

void fan_expected(Fan *fan, const Mode *mode, int ranks, int step, float **sum, float **size)
{
    for (int rank = 0; rank < ranks; rank++) {
        fan_own_sum(fan, mode, rank, step, mode_micro_batches(mode, step) - 1);
        for (int i = 0; i < fan->parameters.count; i++) {
            const int64_t count = tensor_count(&fan->parameters.items[i]->tensor);
            float *own = fan->parameters.items[i]->tensor.grad;
            if (own == NULL)
                continue;
            for (int64_t k = 0; k < count; k++)
                size[i][k] += fabsf(own[k]);
            round_to(mode->options.codec->dtype, own, count);
            device_accumulate(sum[i], own, count);
        }
    }
    for (int i = 0; i < fan->parameters.count; i++)
        round_to(mode->options.codec->dtype, sum[i], tensor_count(&fan->parameters.items[i]->tensor));
}
