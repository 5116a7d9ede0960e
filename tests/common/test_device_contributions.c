/* test_device_contributions.c: a step's memory still holds the last step's numbers, because it is not cleared. So no
 * kernel may read memory before it is written, and the first contribution to a gradient must be stored with =. Here
 * whole steps run in memory full of NaN, on the device that this is linked with, and must give the same bits as in
 * zeroed memory. */
#include "autograd/ops.h"
#include "device_trial.h"
#include "nn/model.h"

#include <stdio.h>

enum { SAMPLES = 3, TIME = 6, TOKENS = SAMPLES * TIME, NUMBERS = TOKENS * TIME };
static const size_t STEP_BYTES = 1 << 20; /* no step here needs more */

/* A network, and numbers to run it with, in device memory. */
typedef struct Network {
    Model model; /* "sums": no model, but the parameters of sums_loss() */
    int32_t *tokens, *classes;
    float *numbers;
} Network;

static const ModelSpec specs[] = {
    {.name = "mlp", .kind = MODEL_MLP, .mlp = {TIME, 9, 5, 4, true, ACTIVATION_GELU}},
    {.name = "gpt", .kind = MODEL_GPT, .gpt = {2, 2, 8, TIME, 11, 11}},
    {.name = "sums"},
};

static void network_create(Network *network, const ModelSpec *spec)
{
    *network = (Network){.tokens = device_copy_of(indices_below(11, TOKENS), TOKENS * sizeof(int32_t)),
                         .classes = device_copy_of(indices_below(4, TOKENS), TOKENS * sizeof(int32_t)),
                         .numbers = device_copy_of(normals(NUMBERS), NUMBERS * sizeof(float))};
    ParameterList *list = &network->model.parameters;
    if (strcmp(spec->name, "sums") != 0) {
        model_create(&network->model, spec, 1);
        return;
    }
    network->model.spec = *spec;
    parameters_add(list, "tokens", 2, (int64_t[]){11, TIME});
    parameters_add(list, "weight", 2, (int64_t[]){TIME, TIME});
    parameters_add(list, "scale", 1, (int64_t[]){TIME});
    parameters_add(list, "shift", 1, (int64_t[]){TIME});
    parameters_from_host(list, normals(parameters_total(list)));
}

static void network_free(Network *network)
{
    model_free(&network->model);
    device_free(network->tokens);
    device_free(network->classes);
    device_free(network->numbers);
}

/* A case that the models lack: an activation that is used four times, by operations that set and add in all orders. */
static Tensor *sums_loss(Network *network, Tape *tape, int64_t samples)
{
    Parameter **items = network->model.parameters.items;
    Tensor *tokens = &items[0]->tensor, *weight = &items[1]->tensor, *scale = &items[2]->tensor,
           *shift = &items[3]->tensor;
    Tensor *x = op_embedding(tape, network->tokens, samples, TIME, tokens, weight);
    Tensor *bent = op_add(tape, x, op_add(tape, op_relu(tape, x), op_gelu(tape, x)));
    Tensor *sum = op_add(tape, bent, x), *norm = op_layernorm(tape, sum, scale, shift);
    Tensor *bend = op_linear(tape, op_gelu(tape, op_linear(tape, norm, weight, shift)), weight, NULL);
    Tensor *out = op_add(tape, bend, op_linear(tape, op_layernorm(tape, sum, scale, scale), weight, NULL));
    return op_mse(tape, op_add(tape, out, op_linear(tape, sum, weight, NULL)), network->numbers);
}

static Tensor *network_loss(Network *network, Tape *tape, int64_t samples)
{
    if (strcmp(network->model.spec.name, "sums") == 0)
        return sums_loss(network, tape, samples);
    const bool is_gpt = network->model.spec.kind == MODEL_GPT;
    return model_loss(&network->model, tape, is_gpt ? (void *)network->tokens : network->numbers, network->classes,
                      samples, TIME);
}

/* One step in memory that is zero, or, byte for byte, `left_behind`. Returns all gradients, then the loss. */
static float *run_step(Network *network, DType precision, int64_t samples, int left_behind)
{
    Tape tape = {.precision = precision};
    ParameterList *list = &network->model.parameters;
    void *gradients = parameters_allocate_gradients(list), *bytes = room_for_floats((int64_t)(STEP_BYTES / 4));
    memset(bytes, left_behind, STEP_BYTES);
    device_from_host(arena_alloc(&tape.arena, STEP_BYTES), bytes, STEP_BYTES);
    tape_begin(&tape, true);
    Tensor *loss = network_loss(network, &tape, samples);
    tape_backward(&tape, loss, 1);
    assert_int_equal(tape.arena.block_count, 1); /* the step used no other memory */

    float *result = room_for_floats(parameters_total(list) + 1), *next = result;
    for (int i = 0; i < list->count; i++) {
        const int64_t count = tensor_count(&list->items[i]->tensor);
        device_to_host(next, list->items[i]->tensor.grad, (size_t)count * sizeof *next);
        next += count;
    }
    device_to_host(next, loss->data, sizeof *next);
    tape_free(&tape);
    device_free(gradients);
    return result;
}

static void check_step(const ModelSpec *spec, DType precision, int64_t samples)
{
    Network network;
    char name[100];
    network_create(&network, spec);
    const int64_t count = parameters_total(&network.model.parameters) + 1;
    const float *clean = run_step(&network, precision, samples, 0);
    const float *dirty = run_step(&network, precision, samples, 0xff); /* in any of the three formats this is NaN */
    snprintf(name, sizeof name, "%s, %s, %lld samples: gradients and loss", spec->name, dtype_name(precision),
             (long long)samples);
    expect_bits_equal(name, dirty, clean, count,
                      "a kernel read memory that was not written in this step: the first contribution to a gradient "
                      "must be set, even if its sum has no terms");
    for (int64_t i = 0; i < count; i++)
        assert_true(isfinite(clean[i]));
    network_free(&network);
}

static void test_steps_in_used_memory(void **state)
{
    const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++)
        for (int p = 0; p < 3; p++)
            for (int64_t samples = 0; samples <= SAMPLES; samples += SAMPLES) {
                check_step(&specs[s], precisions[p], samples);
                free_room(NULL);
            }
}

int main(void)
{
    device_init(0, 1);
    return run_cases("device_contributions", cmocka_unit_test_teardown(test_steps_in_used_memory, free_room));
}
