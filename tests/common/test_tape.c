/* test_tape.c: the tape raises one gradient-ready event per parameter and backward pass, right after its last
 * contribution. The overlap of communication and backward depends on this. */
#include <stdlib.h>

#include "autograd/ops.h"
#include "base/check.h"
#include "device/device.h"
#include "expect.h"
#include "nn/model.h"

/* ---- a listener that records events ---- */

#define MAX_EVENTS 64

typedef struct Events {
    int count;
    Parameter *parameter[MAX_EVENTS];
    float *gradient[MAX_EVENTS]; /* as it was when the event came, on the host */
} Events;

static float *gradient_on_host(const Parameter *parameter)
{
    size_t bytes = (size_t)tensor_count(&parameter->tensor) * sizeof(float);
    float *gradient = alloc_or_fault(bytes);
    device_to_host(gradient, parameter->tensor.grad, bytes);
    return gradient;
}

static bool gradient_is_zero(const Parameter *parameter)
{
    float *gradient = gradient_on_host(parameter);
    int64_t zeros = 0;
    while (zeros < tensor_count(&parameter->tensor) && gradient[zeros] == 0)
        zeros++;
    free(gradient);
    return zeros == tensor_count(&parameter->tensor);
}

static void write_down(void *listener, Parameter *parameter)
{
    Events *events = listener;
    CHECK(events->count < MAX_EVENTS, "more events than the test can hold: %s", parameter->name);
    events->parameter[events->count] = parameter;
    events->gradient[events->count++] = gradient_on_host(parameter);
}

static void forget(Events *events)
{
    for (int i = 0; i < events->count; i++)
        free(events->gradient[i]);
    events->count = 0;
}

/* Returns the number of the parameter's events; sets *place to the index of the last one. */
static int events_of(const Events *events, const Parameter *parameter, int *place)
{
    int count = 0;
    for (int i = 0; i < events->count; i++)
        if (events->parameter[i] == parameter) {
            *place = i;
            count++;
        }
    return count;
}

/* ---- small models on one random batch ---- */

#define MAX_SAMPLES 3
#define TIME 6

static const ModelSpec small_gpt = {.name = "gpt", .kind = MODEL_GPT, .gpt = {2, 2, 8, TIME, 11, 11}};
static const ModelSpec small_mlp = {.name = "mlp", .kind = MODEL_MLP, .mlp = {TIME, 9, 5, 4, true, ACTIVATION_GELU}};

typedef struct Setup {
    Model model;
    Tape tape;
    Events events;
    void *inputs, *targets, *gradients;
} Setup;

static void setup_create(Setup *setup, const ModelSpec *spec)
{
    *setup = (Setup){.tape = {.listener = {.self = &setup->events, .gradient_ready = write_down}}};
    model_create(&setup->model, spec, 1);
    setup->gradients = parameters_allocate_gradients(&setup->model.parameters);
    enum { COUNT = MAX_SAMPLES * TIME };
    int32_t tokens[COUNT], targets[COUNT];
    float numbers[COUNT];
    Rng rng;
    rng_seed(&rng, 1);
    for (int i = 0; i < COUNT; i++) {
        tokens[i] = (int32_t)rng_below(&rng, 11);
        targets[i] = (int32_t)rng_below(&rng, 4);
        numbers[i] = rng_normal(&rng);
    }
    setup->inputs = device_alloc(sizeof numbers);
    setup->targets = device_alloc(sizeof targets);
    device_from_host(setup->inputs, spec->kind == MODEL_GPT ? (void *)tokens : numbers, sizeof numbers);
    device_from_host(setup->targets, targets, sizeof targets);
}

static void setup_free(Setup *setup)
{
    forget(&setup->events);
    device_free(setup->inputs);
    device_free(setup->targets);
    device_free(setup->gradients);
    model_free(&setup->model);
    tape_free(&setup->tape);
}

static Tensor *forward(Setup *setup, bool recording, int64_t samples)
{
    tape_begin(&setup->tape, recording);
    return model_loss(&setup->model, &setup->tape, setup->inputs, setup->targets, samples, TIME);
}

static void step(Setup *setup, int64_t samples, float seed)
{
    forget(&setup->events);
    tape_backward(&setup->tape, forward(setup, true, samples), seed);
}

/* Every trained parameter had one event, and nothing was added to its gradient after that. */
static void expect_one_complete_event_each(const Setup *setup)
{
    const ParameterList *list = &setup->model.parameters;
    for (int i = 0; i < list->count; i++) {
        int place = 0, count = events_of(&setup->events, list->items[i], &place);
        if (count != 1)
            fail_msg("%s had %d gradient-ready events, expected 1", list->items[i]->name, count);
        assert_true(list->items[i]->has_gradient);
        assert_int_equal(list->items[i]->tensor.uses, 0);
        float *final = gradient_on_host(list->items[i]);
        expect_bits_equal(list->items[i]->name, setup->events.gradient[place], final,
                          tensor_count(&list->items[i]->tensor),
                          "the event came before the last contribution (a tied weight has two)");
        free(final);
    }
}

/* ---- events ---- */

static void test_layers_get_ready_from_last_to_first(void **state)
{
    Setup setup;
    setup_create(&setup, &small_mlp);
    step(&setup, MAX_SAMPLES, 1);
    expect_one_complete_event_each(&setup);
    for (int i = 0; i < 6; i++) /* fc3, fc3, fc2, fc2, fc1, fc1 */
        assert_int_equal(setup.events.parameter[i]->name[2], '3' - i / 2);
    setup_free(&setup);
}

static void test_tied_weight_is_ready_after_its_second_contribution(void **state)
{
    Setup setup;
    setup_create(&setup, &small_gpt);
    step(&setup, 3, 1);
    expect_one_complete_event_each(&setup);
    /* The output layer is the first node of backward, the embedding the last: wte must wait for it. */
    int wte = 0, wpe = 0;
    events_of(&setup.events, setup.model.wte, &wte);
    events_of(&setup.events, setup.model.wpe, &wpe);
    assert_true(wte >= setup.events.count - 2);
    assert_true(wpe >= setup.events.count - 2);
    step(&setup, 3, 1); /* and again in the next step */
    expect_one_complete_event_each(&setup);
    setup_free(&setup);
}

static void test_zero_samples_raise_all_events(void **state)
{
    const ModelSpec *specs[] = {&small_mlp, &small_gpt};
    for (int i = 0; i < 2; i++) {
        Setup setup;
        setup_create(&setup, specs[i]);
        step(&setup, 0, 1);
        expect_one_complete_event_each(&setup);
        for (int k = 0; k < setup.model.parameters.count; k++)
            assert_true(gradient_is_zero(setup.model.parameters.items[k]));
        setup_free(&setup);
    }
}

static void test_frozen_parameters_get_nothing(void **state)
{
    Setup setup;
    setup_create(&setup, &small_gpt);
    ParameterList *list = &setup.model.parameters;
    Parameter *frozen[] = {setup.model.wte, setup.model.blocks[0].c_fc_weight, setup.model.blocks[1].ln_1_bias};
    for (int i = 0; i < 3; i++)
        frozen[i]->tensor.requires_grad = false;
    step(&setup, 3, 1);
    assert_int_equal(setup.events.count, list->count - 3);
    for (int i = 0; i < 3; i++) {
        int place;
        assert_int_equal(events_of(&setup.events, frozen[i], &place), 0);
        assert_false(frozen[i]->has_gradient);
        assert_true(gradient_is_zero(frozen[i]));
    }
    for (int i = 0; i < list->count; i++)
        list->items[i]->tensor.requires_grad = false;
    Tensor *loss = forward(&setup, true, 3);
    assert_false(loss->requires_grad);
    assert_int_equal(setup.tape.count, 0); /* nothing needs a gradient, so no node was recorded */
    setup_free(&setup);
}

/* ---- gradients add up ---- */

static void test_gradients_accumulate_until_zeroed(void **state)
{
    Setup setup;
    setup_create(&setup, &small_gpt);
    const Parameter *wte = setup.model.wte;
    int64_t count = tensor_count(&wte->tensor);
    step(&setup, 3, 1);
    float *once = gradient_on_host(wte);
    step(&setup, 3, 0.5f); /* another micro-batch adds half as much */
    expect_one_complete_event_each(&setup);
    float *more = gradient_on_host(wte);
    for (int64_t i = 0; i < count; i++)
        once[i] *= 1.5f;
    expect_close("wte after two backward passes", more, once, count, 1e-6, 1e-5,
                 "the second backward pass must add seed * gradient to what is there");
    parameters_zero_gradients(&setup.model.parameters);
    assert_false(wte->has_gradient);
    assert_true(gradient_is_zero(wte));
    free(once);
    free(more);
    setup_free(&setup);
}

static void go_back_twice(void *argument)
{
    Setup *setup = argument;
    Tensor *loss = forward(setup, true, 3);
    tape_backward(&setup->tape, loss, 1);
    tape_backward(&setup->tape, loss, 1);
}

static void test_backward_twice_is_a_fault(void **state)
{
    Setup setup;
    setup_create(&setup, &small_mlp);
    expect_dies(go_back_twice, &setup, 1, "backward");
    setup_free(&setup);
}

/* ---- a branch that the loss does not depend on ----
 * `shared` is used in the branch of the loss and, before and after it, in dead branches; `dead` only in dead ones. */

typedef struct Branches {
    ParameterList list;
    Parameter *shared, *dead;
    void *gradients, *x;
    Events events;
    Tape tape;
} Branches;

static void branches_create(Branches *branches)
{
    *branches = (Branches){.tape = {.listener = {.self = &branches->events, .gradient_ready = write_down}}};
    branches->shared = parameters_add(&branches->list, "shared", 2, (int64_t[]){3, 3});
    branches->dead = parameters_add(&branches->list, "dead", 2, (int64_t[]){3, 3});
    const float ones[18] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    parameters_from_host(&branches->list, ones);
    branches->gradients = parameters_allocate_gradients(&branches->list);
    branches->x = device_alloc(sizeof ones);
    device_from_host(branches->x, ones, sizeof ones);
}

static void branches_free(Branches *branches)
{
    forget(&branches->events);
    parameters_free(&branches->list);
    device_free(branches->gradients);
    device_free(branches->x);
    tape_free(&branches->tape);
}

static Tensor *branches_forward(Branches *branches)
{
    Tape *tape = &branches->tape;
    tape_begin(tape, true);
    Tensor *x = tape_input(tape, branches->x, DTYPE_F32, 2, (int64_t[]){2, 3});
    Tensor *side = op_linear(tape, x, &branches->shared->tensor, NULL);
    op_relu(tape, op_linear(tape, side, &branches->dead->tensor, NULL));
    Tensor *loss = op_mse(tape, op_linear(tape, x, &branches->shared->tensor, NULL), (float *)branches->x + 6);
    op_linear(tape, side, &branches->shared->tensor, NULL);
    return loss;
}

static void test_dead_branch_is_passed_over(void **state)
{
    Branches branches;
    branches_create(&branches);
    tape_backward(&branches.tape, branches_forward(&branches), 1);
    assert_null(branches.tape.running);
    assert_int_equal(branches.events.count, 1);
    assert_ptr_equal(branches.events.parameter[0], branches.shared);
    assert_true(branches.shared->has_gradient);
    assert_false(branches.dead->has_gradient);
    float *dead = gradient_on_host(branches.dead), *shared = gradient_on_host(branches.shared);
    /* prediction 3, target 1: d(loss)/d(prediction) = 2/3 (3 - 1), times x = 1, over two rows */
    const float each = 2 * 2.0f / 3 * 2, zeros[9] = {0};
    const float expected[9] = {each, each, each, each, each, each, each, each, each};
    expect_bits_equal("dead", dead, zeros, 9, "the loss does not depend on it");
    expect_close("shared", shared, expected, 9, 0, 1e-6, "only the living use contributes");
    expect_bits_equal("shared at its event", branches.events.gradient[0], shared, 9, "the event came too early");
    free(dead);
    free(shared);
    branches_free(&branches);
}

static void test_mark_used_finds_what_the_loss_depends_on(void **state)
{
    Branches branches;
    branches_create(&branches);
    bool used[2] = {false, false};
    Tensor *loss = branches_forward(&branches);
    tape_mark_used(&branches.tape, loss, used);
    assert_true(used[branches.shared->index]);
    assert_false(used[branches.dead->index]);

    tape_begin(&branches.tape, true); /* now as an operation's first input */
    used[branches.shared->index] = false;
    loss = op_mse(&branches.tape, op_relu(&branches.tape, &branches.shared->tensor), branches.x);
    tape_mark_used(&branches.tape, loss, used);
    assert_true(used[branches.shared->index]);
    branches_free(&branches);

    Setup setup;
    setup_create(&setup, &small_gpt);
    bool all[MAX_EVENTS] = {false};
    loss = forward(&setup, true, 3);
    tape_mark_used(&setup.tape, loss, all);
    for (int i = 0; i < setup.model.parameters.count; i++)
        if (!all[i])
            fail_msg("%s counts as unused", setup.model.parameters.items[i]->name);
    setup_free(&setup);
}

/* The uses counted in a forward pass without backward must be reset: otherwise the next step's events never come. */
static void test_an_abandoned_forward_pass_leaves_no_trace(void **state)
{
    Setup setup;
    setup_create(&setup, &small_gpt);
    forward(&setup, true, 3);
    forward(&setup, false, 3);
    tape_begin(&setup.tape, true);
    op_relu(&setup.tape, &setup.model.wte->tensor); /* a parameter that is an operation's first input */
    step(&setup, 3, 1);
    expect_one_complete_event_each(&setup);
    setup_free(&setup);
}

static void test_evaluation_records_nothing(void **state)
{
    Setup setup;
    setup_create(&setup, &small_gpt);
    float trained, evaluated;
    device_to_host(&trained, forward(&setup, true, 3)->data, sizeof trained);
    assert_true(setup.tape.count > 0);
    device_to_host(&evaluated, forward(&setup, false, 3)->data, sizeof evaluated);
    assert_int_equal(setup.tape.count, 0);
    expect_bits_equal("loss", &evaluated, &trained, 1, "recording must not change the numbers");
    setup_free(&setup);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("tape", cmocka_unit_test(test_layers_get_ready_from_last_to_first),
                     cmocka_unit_test(test_tied_weight_is_ready_after_its_second_contribution),
                     cmocka_unit_test(test_zero_samples_raise_all_events),
                     cmocka_unit_test(test_frozen_parameters_get_nothing),
                     cmocka_unit_test(test_gradients_accumulate_until_zeroed),
                     cmocka_unit_test(test_backward_twice_is_a_fault),
                     cmocka_unit_test(test_dead_branch_is_passed_over),
                     cmocka_unit_test(test_mark_used_finds_what_the_loss_depends_on),
                     cmocka_unit_test(test_an_abandoned_forward_pass_leaves_no_trace),
                     cmocka_unit_test(test_evaluation_records_nothing));
}
