/* model.c: the toy model, and the formulas of its gradients and weights. */
#include "world/model.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "world/memory.h"
#include "world/world.h"

enum { SIZE, INITIAL, GRADIENT, FROZEN, USED, PLACE, ALWAYS }; /* what mode_hash() draws */

static int64_t toy_count(const Mode *mode, int parameter)
{
    return 1 + (int64_t)(mode_hash(mode, SIZE, parameter, 0, 0) % (uint64_t)mode->most_elements);
}

int toy_always_used(const Mode *mode)
{
    return (int)(mode_hash(mode, ALWAYS, 0, 0, 0) % (uint64_t)mode->parameters);
}

bool toy_is_trained(const Mode *mode, int parameter)
{
    const bool always = parameter == toy_always_used(mode);
    if (mode->buffer && parameter == 0 && !always)
        return false;
    return !mode->frozen || always || mode_hash(mode, FROZEN, parameter, 0, 0) % 3 != 0;
}

bool toy_uses(const Mode *mode, int rank, int step, int micro_batch, int parameter)
{
    if (!mode->unused || parameter == toy_always_used(mode) || (mode->only_first && micro_batch > 0))
        return true;
    if (mode_hash(mode, USED, parameter, -1, 0) % 4 == 0)
        return false; /* no rank ever uses it */
    const int pass = mode->static_graph && !mode->breaks_promise ? 0 : step * mode->micro_batches + micro_batch;
    return mode_hash(mode, USED, parameter, rank, pass) % 3 != 0;
}

bool toy_is_used(const Mode *mode, int step, int parameter)
{
    for (int rank = 0; rank < mode->ranks; rank++)
        for (int m = 0; m < mode->micro_batches; m++)
            if (toy_uses(mode, rank, step, m, parameter))
                return true;
    return false;
}

static bool is_tied(const Mode *mode, int parameter)
{
    return mode->tied && parameter == mode->parameters / 2;
}

int64_t toy_next(int64_t i, int64_t count)
{
    const int64_t next = i + (count > 100 ? count / 17 : 1);
    return next < count || i == count - 1 ? next : count - 1;
}

/* ---- formulas ---- */

/* What contribution() draws, kept: it is asked for each element. */
static uint64_t draw_gradient(const Mode *mode, int rank, int step, int micro_batch, int parameter)
{
    static struct { uint64_t seed, key, drawn; } kept[4096];
    const int pass = (rank * 64 + step) * 8 + micro_batch;
    const uint64_t key = (uint64_t)pass * 64 + (uint64_t)parameter + 1;
    const size_t place = (size_t)(key * 0x9E3779B97F4A7C15u >> 52);
    if (kept[place].key != key || kept[place].seed != mode->seed) {
        kept[place].seed = mode->seed;
        kept[place].key = key;
        kept[place].drawn = mode_hash(mode, GRADIENT, rank, step * 8 + micro_batch, parameter);
    }
    return kept[place].drawn;
}

static float contribution(const Mode *mode, int rank, int step, int micro_batch, int parameter, int64_t element)
{
    const uint64_t pass = draw_gradient(mode, rank, step, micro_batch, parameter);
    return (float)((int)((pass >> 8) + (uint64_t)element * (2 * (pass & 15) + 1)) % 9 - 4);
}

float toy_share(const Mode *mode, int rank, int step, int micro_batches, int parameter, int64_t element)
{
    float sum = 0;
    for (int m = 0; m < micro_batches; m++)
        if (toy_uses(mode, rank, step, m, parameter))
            sum += contribution(mode, rank, step, m, parameter, element) * (is_tied(mode, parameter) ? 2.0f : 1.0f);
    return sum;
}

float toy_sum(const Mode *mode, int step, int parameter, int64_t element)
{
    float sum = 0;
    for (int rank = 0; rank < mode->ranks; rank++)
        sum += toy_share(mode, rank, step, mode->micro_batches, parameter, element);
    return sum;
}

/* The numbers repeat after 251 elements, a prime: so a shard never begins where they repeat. */
static float initial_weight(const Mode *mode, int rank, int parameter, int64_t element)
{
    return (float)((mode_hash(mode, INITIAL, rank, parameter, 0) + (uint64_t)element * 7) % 251) / 16.0f;
}

float toy_weight(const Mode *mode, int step, int parameter, int64_t element)
{
    float weight = initial_weight(mode, 0, parameter, element);
    for (int s = 0; s < step && toy_is_trained(mode, parameter); s++)
        weight -= TOY_RATE * (TOY_SCALE * toy_sum(mode, s, parameter, element));
    return weight;
}

/* ---- the model ---- */

void toy_create(Toy *toy, const Mode *mode, int rank)
{
    *toy = (Toy){.mode = mode, .rank = rank};
    for (int p = 0; p < mode->parameters; p++) {
        char name[32];
        snprintf(name, sizeof name, "layer%d.weight", p);
        const int64_t count = toy_count(mode, p);
        if (p % 2 == 0)
            toy->list.layers++;
        Parameter *parameter = parameters_add(&toy->list, name, 1, &count);
        parameter->tensor.requires_grad = toy_is_trained(mode, p);
        if (mode->buffer && p == 0 && !parameter->tensor.requires_grad)
            parameter_make_buffer(parameter);
        float *values = parameter->tensor.data;
        for (int64_t i = 0; i < count; i++)
            values[i] = initial_weight(mode, rank, p, i);
    }
}

void toy_free(Toy *toy)
{
    tape_free(&toy->tape);
    parameters_free(&toy->list);
}

static void check_weights(const Toy *toy, const Parameter *parameter, const char *when)
{
    const float *values = parameter->tensor.data;
    const int64_t count = tensor_count(&parameter->tensor);
    if (values == NULL)
        world_fault("%s needs %s, but its data is NULL", when, parameter->name);
    for (int64_t i = 0; i < count; i += count > 4 ? (count - 1) / 2 : 1) { /* some, because a formula is slow */
        const float expected = toy_weight(toy->mode, toy->step, parameter->index, i);
        if (values[i] != expected)
            world_fault("%s reads element %lld of %s: it is %g, but this step's weight is %g", when, (long long)i,
                        parameter->name, (double)values[i], (double)expected);
    }
}

static void backward(Tape *tape, Node *node)
{
    Toy *toy = (Toy *)(uintptr_t)node->what;
    Tensor *weight = node->inputs[1];
    tape_needs(tape, weight, NULL, NULL);
    check_weights(toy, weight->parameter, "backward");
    const Gradient gradient = tape_gradient(tape, weight);
    const int64_t count = tensor_count(weight);
    float *values = world_alloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = contribution(toy->mode, toy->rank, toy->step, toy->micro_batch, weight->parameter->index, i);
    if (gradient.values != NULL)
        device_contribute(gradient, values, count);
    world_free(values);
    const Gradient below = tape_gradient(tape, node->inputs[0]);
    const float zero = 0;
    if (below.values != NULL)
        device_contribute(below, &zero, 1);
}

static Tensor *operation(Toy *toy, Tensor *x, Parameter *parameter)
{
    const int64_t one = 1;
    tape_needs(&toy->tape, &parameter->tensor, NULL, NULL);
    check_weights(toy, parameter, "forward");
    Tensor *y = tape_tensor(&toy->tape, 1, &one, x->requires_grad || parameter->tensor.requires_grad);
    *(float *)y->data = 0;
    Node *node = tape_record(&toy->tape, "toy", backward, y, x, &parameter->tensor, NULL);
    if (node != NULL)
        node->what = toy;
    return y;
}

/* Writes the order of the operations. Backward goes through it from the end. */
static void choose_order(const Toy *toy, int *order)
{
    const Mode *mode = toy->mode;
    const int pass = toy->step * mode->micro_batches + toy->micro_batch;
    for (int p = 0; p < mode->parameters; p++)
        order[p] = p;
    for (int p = mode->parameters - 1; p > 0 && mode->order != ORDER_REVERSED; p--) {
        const bool own = mode->order == ORDER_PER_RANK;
        const int other = (int)(mode_hash(mode, PLACE, p, own ? toy->rank : -1, own ? pass : 0) % (uint64_t)(p + 1));
        const int kept = order[p];
        order[p] = order[other];
        order[other] = kept;
    }
}

Tensor *toy_forward(Toy *toy, int step, int micro_batch)
{
    static float input;
    const int64_t one = 1;
    const Mode *mode = toy->mode;
    int *order = world_alloc((size_t)mode->parameters * sizeof *order);
    toy->step = step;
    toy->micro_batch = micro_batch;
    tape_begin(&toy->tape, true);
    choose_order(toy, order);
    Tensor *x = tape_input(&toy->tape, &input, DTYPE_F32, 1, &one);
    for (int i = 0; i < mode->parameters; i++)
        if (toy_uses(mode, toy->rank, step, micro_batch, order[i]))
            x = operation(toy, x, toy->list.items[order[i]]);
    if (is_tied(mode, mode->parameters / 2) && toy_uses(mode, toy->rank, step, micro_batch, mode->parameters / 2))
        x = operation(toy, x, toy->list.items[mode->parameters / 2]);
    world_free(order);
    return x;
}
