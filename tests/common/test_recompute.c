/* test_recompute.c: a tape that computes blocks again has the same bits and the same events as one that keeps everything;
 * and it keeps one block's activations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "device/device.h"
#include "expect.h"
#include "nn/model.h"

enum { SAMPLES = 3, TIME = 4 };

/* The events of a backward pass: names of parameters whose gradient was ready. */
typedef struct Story {
    char text[4000];
} Story;

static void gradient_ready(void *self, Parameter *parameter)
{
    Story *story = self;
    assert_true(strlen(story->text) + strlen(parameter->name) + 2 < sizeof story->text);
    strcat(story->text, parameter->name);
    strcat(story->text, " ");
}

/* Makes a loss on a recording tape. */
typedef Tensor *(*Loss)(Tape *tape, void *model, void *inputs);

/* What a step leaves: gradients of all parameters (count floats), events, used parameters. */
typedef struct Step {
    float *gradients;
    Story story;
    bool used[100];
    size_t activations, block_activations; /* bytes at most */
    float loss;
} Step;

static Step run_step(Tape tape, ParameterList *parameters, Loss make_loss, void *model, void *inputs)
{
    Step step = {.gradients = parameters_allocate_gradients(parameters)};
    tape.listener = (TapeListener){.self = &step.story, .gradient_ready = gradient_ready};
    tape_begin(&tape, true);
    make_loss(&tape, model, inputs); /* a recording without a backward pass must leave no trace */
    tape_begin(&tape, true);
    Tensor *loss = make_loss(&tape, model, inputs);
    device_to_host(&step.loss, loss->data, sizeof step.loss);
    tape_mark_used(&tape, loss, step.used);
    tape_backward(&tape, loss, 1);
    step.activations = tape.arena.peak;
    step.block_activations = tape.block_arena.peak;
    for (int i = 0; i < parameters->count; i++)
        if (parameters->items[i]->tensor.uses != 0)
            fail_msg("after backward, %s counts as used %d times", parameters->items[i]->name,
                     parameters->items[i]->tensor.uses);
    tape_free(&tape);
    return step;
}

/* Runs a step with and without. Returns what the recomputing one left, but for its gradients. */
static Step expect_same(Tape tape, ParameterList *parameters, Loss make_loss, void *model, void *inputs, const char *what)
{
    tape.recompute = false;
    Step kept = run_step(tape, parameters, make_loss, model, inputs);
    tape.recompute = true;
    Step again = run_step(tape, parameters, make_loss, model, inputs);
    if (memcmp(&kept.loss, &again.loss, sizeof kept.loss) != 0)
        fail_msg("%s: the loss is %g, %g if blocks are computed again", what, (double)kept.loss, (double)again.loss);
    if (memcmp(kept.gradients, again.gradients, parameters_gradient_bytes(parameters)) != 0)
        fail_msg("%s: gradients differ if blocks are computed again; usual causes: another dropout mask, or activations "
                 "that were freed or overwritten before they were used", what);
    if (strcmp(kept.story.text, again.story.text) != 0)
        fail_msg("%s: gradients were ready in the order '%s', if blocks are computed again '%s'", what, kept.story.text,
                 again.story.text);
    if (memcmp(kept.used, again.used, sizeof kept.used) != 0)
        fail_msg("%s: other parameters count as used if blocks are computed again", what);
    parameters_free_gradients(parameters, kept.gradients);
    parameters_free_gradients(parameters, again.gradients);
    return again;
}

/* ---- the GPT ---- */

static Tensor *gpt_loss(Tape *tape, void *model, void *inputs)
{
    return model_loss(model, tape, inputs, inputs, SAMPLES, TIME);
}

static Step step_of_gpt(int layers, float dropout, DType precision, int skipped)
{
    static const int64_t places[SAMPLES] = {4, 0, 7};
    const ModelSpec spec = {.kind = MODEL_GPT, .gpt = {layers, 2, 8, TIME, 11, 11}, .skip_layer = skipped};
    Tape tape = {.precision = precision, .dropout = {.probability = dropout, .seed = 3, .places = places}};
    char what[100];
    Model model;
    model_create(&model, &spec, 1);
    int32_t *tokens = device_alloc(SAMPLES * TIME * sizeof *tokens);
    for (int i = 0; i < SAMPLES * TIME; i++)
        tokens[i] = 7 * i % 11;
    snprintf(what, sizeof what, "gpt of %d blocks, dropout %g, %s, block %d left out", layers, (double)dropout,
             dtype_name(precision), skipped);
    const Step step = expect_same(tape, &model.parameters, gpt_loss, &model, tokens, what);
    device_free(tokens);
    model_free(&model);
    return step;
}

static void test_gpt_has_the_same_bits(void **state)
{
    const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int layers = 1; layers <= 3; layers++)
        for (int dropout = 0; dropout <= 1; dropout++)
            for (int p = 0; p < 3; p++)
                step_of_gpt(layers, 0.3f * (float)dropout, precisions[p], 0);
    step_of_gpt(3, 0.3f, DTYPE_F32, 2);
    step_of_gpt(1, 0, DTYPE_F32, 1);
}

/* A further block adds its result to what is kept, and nothing to what a block takes. */
static void test_one_block_is_kept(void **state)
{
    const Step three = step_of_gpt(3, 0, DTYPE_F32, 0), nine = step_of_gpt(9, 0, DTYPE_F32, 0);
    assert_int_equal(nine.block_activations, three.block_activations);
    assert_int_equal(nine.activations - three.activations, 6 * SAMPLES * TIME * 8 * sizeof(float));
}

/* ---- blocks whose input needs a gradient of its own, and a weight that blocks and the rest share ---- */

static Tensor *linear_gelu(Tape *tape, Tensor *x, const void *list)
{
    const ParameterList *parameters = list;
    return op_gelu(tape, op_linear(tape, x, &parameters->items[0]->tensor, &parameters->items[1]->tensor));
}

static Tensor *twice(Tape *tape, Tensor *x, const void *list)
{
    return linear_gelu(tape, linear_gelu(tape, x, list), list);
}

/* The gradient of x + linear(x) lies in the block's memory, and must not become x's. */
static Tensor *residual_gelu(Tape *tape, Tensor *x, const void *list)
{
    const ParameterList *parameters = list;
    return op_gelu(tape, op_add(tape, x, op_linear(tape, x, &parameters->items[0]->tensor, NULL)));
}

static Tensor *shared_loss(Tape *tape, void *list, void *inputs)
{
    ParameterList *parameters = list;
    Tensor *x = tape_input(tape, inputs, DTYPE_F32, 2, (int64_t[]){SAMPLES, 4});
    Tensor *first = op_linear(tape, x, &parameters->items[2]->tensor, NULL);
    Tensor *h = tape_block(tape, first, twice, list); /* which overwrites more than the others */
    h = tape_block(tape, h, residual_gelu, list);
    h = tape_block(tape, h, twice, list);
    h = op_add(tape, tape_block(tape, h, linear_gelu, list), first);
    tape_block(tape, h, linear_gelu, list); /* the loss does not depend on it */
    h = op_linear(tape, h, &parameters->items[0]->tensor, NULL);
    return op_mse(tape, op_add(tape, tape_block(tape, h, linear_gelu, list), h), inputs);
}

static void test_blocks_share_a_weight(void **state)
{
    ParameterList parameters = {0};
    const char *const names[] = {"shared.weight", "shared.bias", "first.weight"};
    for (int i = 0; i < 3; i++) {
        Parameter *parameter = parameters_add(&parameters, names[i], i == 1 ? 1 : 2, (int64_t[]){4, 4});
        for (int k = 0; k < (i == 1 ? 4 : 16); k++)
            ((float *)parameter->tensor.data)[k] = 0.3f * (float)(k * (5 + i) % 7) - 0.8f;
    }
    float *inputs = device_alloc(SAMPLES * 4 * sizeof *inputs);
    for (int i = 0; i < SAMPLES * 4; i++)
        inputs[i] = 0.1f * (float)i - 0.5f;
    const Step step = expect_same((Tape){0}, &parameters, shared_loss, &parameters, inputs, "a weight of six blocks");
    assert_string_equal(step.story.text, "shared.weight shared.bias first.weight ");
    device_free(inputs);
    parameters_free(&parameters);
}

int main(void)
{
    return run_cases("recompute", cmocka_unit_test(test_gpt_has_the_same_bits),
                     cmocka_unit_test(test_one_block_is_kept), cmocka_unit_test(test_blocks_share_a_weight));
}
