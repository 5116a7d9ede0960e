/* test_ranges.c: the names of the ranges, by which a profiler says which part of a step takes the time. On a CPU they
 * have no effect, so this program puts its own functions before the device's. And the mark of the running operation. */
#include <stdio.h>
#include <string.h>

#include "device/device.h"
#include "expect.h"
#include "nn/model.h"

/* ---- the ranges of a step: the linker puts these before the device's functions (-Wl,--wrap) ---- */

static char ranges[2000]; /* "(linear fc3.weight)(gelu)..."; a range inside another one has its brackets inside */

static void append(const char *text)
{
    assert_true(strlen(ranges) + strlen(text) < sizeof ranges);
    strcat(ranges, text);
}

void __wrap_device_range_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
void __wrap_device_range_end(void);

void __wrap_device_range_begin(const char *format, ...)
{
    char name[100];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    append("(");
    append(name);
}

void __wrap_device_range_end(void)
{
    append(")");
}

/* A forward and a backward pass over a batch of zeros. */
static void expect_ranges(const ModelSpec *spec, const char *forward, const char *backward)
{
    enum { SAMPLES = 2, TIME = 3 };
    Model model;
    Tape tape = {0};
    model_create(&model, spec, 1);
    void *gradients = parameters_allocate_gradients(&model.parameters);
    void *inputs = device_alloc(SAMPLES * TIME * sizeof(float));
    tape_begin(&tape, true);
    ranges[0] = '\0';
    Tensor *loss = model_loss(&model, &tape, inputs, inputs, SAMPLES, TIME);
    assert_string_equal(ranges, forward);
    ranges[0] = '\0';
    tape_backward(&tape, loss, 1);
    assert_string_equal(ranges, backward);
    parameters_free_gradients(&model.parameters, gradients);
    device_free(inputs);
    model_free(&model);
    tape_free(&tape);
}

/* In backward, a range has the name of the operation and of its first parameter. */
static void test_ranges(void **state)
{
    (void)state;
    const ModelSpec mlp = {.kind = MODEL_MLP, .mlp = {3, 4, 4, 2, true, ACTIVATION_GELU}};
    expect_ranges(&mlp, "(fc1)(fc2)(fc3)(loss)",
                  "(cross-entropy)(linear fc3.weight)(gelu)(linear fc2.weight)(gelu)(linear fc1.weight)");
    const ModelSpec gpt = {.kind = MODEL_GPT, .gpt = {1, 2, 4, 3, 5, 5}};
    expect_ranges(&gpt, "(embedding)(block 0)(output layer)(loss)",
                  "(cross-entropy)(linear transformer.wte.weight)(layernorm transformer.ln_f.weight)"
                  "(add)(linear transformer.h.0.mlp.c_proj.weight)(gelu)(linear transformer.h.0.mlp.c_fc.weight)"
                  "(layernorm transformer.h.0.ln_2.weight)"
                  "(add)(linear transformer.h.0.attn.c_proj.weight)(attention)"
                  "(linear transformer.h.0.attn.c_attn.weight)(layernorm transformer.h.0.ln_1.weight)"
                  "(embedding transformer.wte.weight)");
}

/* ---- the running operation, from which a GPU chooses how it stores a gradient ---- */

static void look(Tape *tape, Node *node)
{
    assert_ptr_equal(tape->running, node);
    device_contribute(tape_gradient(tape, node->inputs[0]), node->output->grad, 1);
}

static void test_the_running_operation_is_marked(void **state)
{
    (void)state;
    Tape tape = {0};
    tape_begin(&tape, true);
    Tensor *x[3];
    for (int i = 0; i < 3; i++)
        x[i] = tape_tensor(&tape, 1, (int64_t[]){1}, true);
    tape_record(&tape, "first", look, x[1], x[0], NULL, NULL);
    tape_record(&tape, "second", look, x[2], x[1], NULL, NULL);
    tape_backward(&tape, x[2], 5);
    assert_null(tape.running);
    expect_bits_equal("the gradient of x", x[0]->grad, (float[]){5}, 1, "did both backward functions run?");
    tape_free(&tape);
}

int main(void)
{
    device_init(0, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_the_running_operation_is_marked),
    };
    return cmocka_run_group_tests_name("ranges", tests, NULL, NULL);
}
