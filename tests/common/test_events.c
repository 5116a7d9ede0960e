/* test_events.c: what happens in a step, in which order: the tape's three events, and the ranges by which a profiler
 * says which part takes the time. On a CPU, ranges have no effect, so this program puts its own functions before the
 * device's. And the mark of the running operation. */
#include <stdio.h>
#include <string.h>

#include "device/device.h"
#include "expect.h"
#include "nn/model.h"

static char story[2000]; /* what happened so far; ranges are in brackets: "(linear fc3.weight)(gelu)" */

static void append(const char *text)
{
    assert_true(strlen(story) + strlen(text) < sizeof story);
    strcat(story, text);
}

/* ---- the linker puts these before the device's functions (-Wl,--wrap) ---- */

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

/* ---- the tape's events: "[fc1.weight ]" is needed, "+fc1.weight" gets a gradient, "-fc1.weight" is ready ---- */

static void parameters_needed(void *listener, Parameter *const *parameters, int count)
{
    append("[");
    for (int i = 0; i < count; i++) {
        append(parameters[i]->name);
        append(" ");
    }
    append("]");
}

static void gradient_needed(void *listener, Parameter *parameter)
{
    append("+");
    append(parameter->name);
    parameter->tensor.grad = (unsigned char *)listener + 64 * parameter->index;
}

static void gradient_ready(void *listener, Parameter *parameter)
{
    append("-");
    append(parameter->name);
}

/* ---- a step: forward and backward over a batch of zeros ---- */

static void expect_story(Tape tape, const ModelSpec *spec, const char *forward, const char *backward)
{
    enum { SAMPLES = 2, TIME = 3 };
    Model model;
    model_create(&model, spec, 1);
    void *gradients = parameters_allocate_gradients(&model.parameters);
    for (int i = 0; i < model.parameters.count && tape.listener.gradient_needed != NULL; i++)
        model.parameters.items[i]->tensor.grad = NULL;
    tape.listener.self = gradients;
    void *inputs = device_alloc(SAMPLES * TIME * sizeof(float));
    tape_begin(&tape, true);
    story[0] = '\0';
    Tensor *loss = model_loss(&model, &tape, inputs, inputs, SAMPLES, TIME);
    assert_string_equal(story, forward);
    story[0] = '\0';
    tape_backward(&tape, loss, 1);
    assert_string_equal(story, backward);
    parameters_free_gradients(&model.parameters, gradients);
    device_free(inputs);
    model_free(&model);
    tape_free(&tape);
}

/* In backward, a range has the name of the operation and of its first parameter. */
static void test_ranges(void **state)
{
    const ModelSpec mlp = {.kind = MODEL_MLP, .mlp = {3, 4, 4, 2, true, ACTIVATION_GELU}};
    expect_story((Tape){0}, &mlp, "(fc1)(fc2)(fc3)(loss)",
                 "(cross-entropy)(linear fc3.weight)(gelu)(linear fc2.weight)(gelu)(linear fc1.weight)");
    const ModelSpec gpt = {.kind = MODEL_GPT, .gpt = {1, 2, 4, 3, 5, 5}};
    expect_story((Tape){0}, &gpt, "(embedding)(block 0)(output layer)(loss)",
                 "(cross-entropy)(linear transformer.wte.weight)(layernorm transformer.ln_f.weight)"
                 "(add)(linear transformer.h.0.mlp.c_proj.weight)(gelu)(linear transformer.h.0.mlp.c_fc.weight)"
                 "(layernorm transformer.h.0.ln_2.weight)"
                 "(add)(linear transformer.h.0.attn.c_proj.weight)(attention)"
                 "(linear transformer.h.0.attn.c_attn.weight)(layernorm transformer.h.0.ln_1.weight)"
                 "(embedding transformer.wte.weight)");
}

/* The first layer's input needs no gradient, so backward does not read that layer's weight. */
static void test_events(void **state)
{
    const Tape tape = {.listener = {.parameters_needed = parameters_needed, .gradient_needed = gradient_needed,
                                    .gradient_ready = gradient_ready}};
    const ModelSpec mlp = {.kind = MODEL_MLP, .mlp = {3, 4, 4, 2, false, ACTIVATION_RELU}};
    expect_story(tape, &mlp, "(fc1[fc1.weight fc1.bias ])(fc2[fc2.weight fc2.bias ])(fc3[fc3.weight ])(loss)",
                 "(cross-entropy)(linear fc3.weight[fc3.weight ]+fc3.weight)-fc3.weight"
                 "(relu)(linear fc2.weight[fc2.weight ]+fc2.weight+fc2.bias)-fc2.weight-fc2.bias"
                 "(relu)(linear fc1.weight+fc1.weight+fc1.bias)-fc1.weight-fc1.bias");
}

static void test_activations_raise_no_event(void **state)
{
    Tape tape = {.listener = {.parameters_needed = parameters_needed}};
    story[0] = '\0';
    tape_begin(&tape, true);
    Tensor *x = tape_tensor(&tape, 1, (int64_t[]){1}, false);
    tape_needs(&tape, x, x, NULL);
    assert_string_equal(story, "");
    tape_free(&tape);
}

/* ---- the running operation, from which a GPU chooses how it stores a gradient ---- */

static void look(Tape *tape, Node *node)
{
    assert_ptr_equal(tape->running, node);
    device_contribute(tape_gradient(tape, node->inputs[0]), node->output->grad, 1);
}

static void test_the_running_operation_is_marked(void **state)
{
    Tape tape = {0};
    ParameterList list = {0};
    Parameter *weight = parameters_add(&list, "weight", 1, (int64_t[]){1});
    tape_begin(&tape, true);
    Tensor *x[3];
    for (int i = 0; i < 3; i++)
        x[i] = tape_tensor(&tape, 1, (int64_t[]){1}, true);
    tape_record(&tape, "first", look, x[1], x[0], NULL, NULL);
    tape_record(&tape, "second", look, x[2], x[1], NULL, &weight->tensor);
    story[0] = '\0';
    tape_backward(&tape, x[2], 5);
    assert_string_equal(story, "(second weight)(first)");
    assert_null(tape.running);
    expect_bits_equal("the gradient of x", x[0]->grad, (float[]){5}, 1, "did both backward functions run?");
    tape_free(&tape);
    parameters_free(&list);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("events", cmocka_unit_test(test_ranges), cmocka_unit_test(test_events),
                     cmocka_unit_test(test_activations_raise_no_event),
                     cmocka_unit_test(test_the_running_operation_is_marked));
}
