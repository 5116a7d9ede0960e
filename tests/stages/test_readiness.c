/* test_readiness.c: the faults of stage3_overlap/readiness.c. Without MPI: a fault ends a forked child. */
#include <stdio.h>

#include "autograd/ops.h"
#include "base/check.h"
#include "stage3_overlap/readiness.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "expect.h"

static ParameterList three_parameters(void)
{
    const char *const names[] = {"fc1.weight", "fc2.weight", "fc3.weight"};
    ParameterList list = {0};
    for (int i = 0; i < 3; i++)
        parameters_add(&list, names[i], 1, (int64_t[]){4});
    return list;
}

/* One backward pass: which parameter is frozen (or none: -1), and which raise events, up to -1. */
typedef struct Pass {
    int frozen, marks[4];
} Pass;

static void run_pass(void *argument)
{
    const Pass *pass = argument;
    ParameterList list = three_parameters();
    Readiness readiness;
    readiness_create(&readiness, &list, false);
    if (pass->frozen >= 0)
        list.items[pass->frozen]->tensor.requires_grad = false;
    readiness_begin(&readiness, &list);
    for (const int *mark = pass->marks; *mark >= 0; mark++)
        readiness_mark(&readiness, list.items[*mark]);
    readiness_check_complete(&readiness, &list);
}

/* If no parameter at all was marked, the cause is not the model, but a listener that is not registered. */
static void test_events_that_do_not_fit(void **state)
{
    expect_dies(run_pass, &(Pass){-1, {2, 1, 1, -1}}, 1, "the gradient of fc2.weight was marked ready twice");
    expect_dies(run_pass, &(Pass){1, {1, -1}}, 1, "fc2.weight was marked ready, but it is frozen");
    expect_dies(run_pass, &(Pass){-1, {1, -1}}, 1, "2 parameter(s) got no gradient: fc1.weight, fc3.weight");
    expect_dies(run_pass, &(Pass){0, {-1}}, 1, "no gradient-ready event was recorded for any of 2 parameters");
}

/* Stages 1 and 2 listen to no events: a parameter has its gradient if an operation has used it. */
static void check_without_events(void *used)
{
    ParameterList list = three_parameters();
    list.items[2]->tensor.requires_grad = *(bool *)used;
    list.items[1]->has_gradient = *(bool *)used;
    replicas_check_gradients(&list, NULL);
}

static void test_without_events(void **state)
{
    expect_dies(check_without_events, &(bool){false}, 1, "2 parameter(s) got no gradient: fc1.weight, fc2.weight. ");
    expect_dies(check_without_events, &(bool){true}, 1, "2 parameter(s) got no gradient: fc1.weight, fc3.weight. ");
}

/* There is room for some of the names. */
static void use_none_of_many(void *argument)
{
    ParameterList list = {0};
    for (int i = 0; i < 100; i++) {
        char name[32];
        snprintf(name, sizeof name, "a.rather.long.name.%d", i);
        parameters_add(&list, name, 1, (int64_t[]){4});
    }
    replicas_check_gradients(&list, NULL);
}

static void test_many_names(void **state)
{
    expect_dies(use_none_of_many, NULL, 1, "100 parameter(s) got no gradient: a.rather.long.name.0, a.rather.long.");
}

/* fc1 is used twice, fc3 in a branch that the loss does not depend on, and the frozen one needs no gradient. */
static void test_unused(void **state)
{
    ParameterList list = three_parameters();
    Parameter *frozen = parameters_add(&list, "frozen", 1, (int64_t[]){4});
    Readiness readiness;
    Tape tape = {0};
    float zeros[4] = {0};
    frozen->tensor.requires_grad = false;
    readiness_create(&readiness, &list, false);
    tape_begin(&tape, true);
    Tensor *x = op_add(&tape, &list.items[0]->tensor, &list.items[0]->tensor);
    op_add(&tape, x, &list.items[2]->tensor);
    Tensor *loss = op_mse(&tape, x, zeros);
    for (int again = 0; again < 2; again++) {
        readiness_find_unused(&readiness, &list, &tape, loss);
        assert_int_equal(readiness.unused_count, 2);
        assert_ptr_equal(readiness.unused[0], list.items[1]);
        assert_ptr_equal(readiness.unused[1], list.items[2]);
    }
    readiness_begin(&readiness, &list);
    assert_int_equal(readiness.unused_count, 0);
    readiness_free(&readiness);
    tape_free(&tape);
    parameters_free(&list);
}

/* ---- a static graph: fc2 is not used in the first pass ---- */

static Readiness readiness_without_fc2(ParameterList *list, Tape *tape, bool static_graph)
{
    Readiness readiness;
    *list = three_parameters();
    readiness_create(&readiness, list, static_graph);
    for (int pass = 0; pass < 2; pass++) { /* the second one uses fc3 alone; if static, nothing looks */
        static float zeros[4];
        readiness_begin(&readiness, list);
        tape_begin(tape, true);
        Tensor *x = op_add(tape, &list->items[pass == 0 ? 0 : 2]->tensor, &list->items[2]->tensor);
        readiness_find_unused(&readiness, list, tape, op_mse(tape, x, zeros));
        for (int i = 0; i < list->count && pass == 0; i++)
            readiness_mark(&readiness, list->items[i]);
        if (pass == 0)
            readiness_check_complete(&readiness, list);
    }
    return readiness;
}

static void test_static_graph(void **state)
{
    for (int is_static = 0; is_static < 2; is_static++) {
        ParameterList list;
        Tape tape = {0};
        Readiness readiness = readiness_without_fc2(&list, &tape, is_static);
        assert_int_equal(readiness.unused_count, is_static ? 1 : 2);
        assert_ptr_equal(readiness.unused[readiness.unused_count - 1], list.items[1]);
        readiness_free(&readiness);
        tape_free(&tape);
        parameters_free(&list);
    }
}

/* marks: the parameters that raise events after the one that is unused, up to -1. */
static void mark_static(void *marks)
{
    ParameterList list;
    Tape tape = {0};
    Readiness readiness = readiness_without_fc2(&list, &tape, true);
    readiness_mark(&readiness, list.items[1]);
    for (const int *mark = marks; *mark >= 0; mark++)
        readiness_mark(&readiness, list.items[*mark]);
    readiness_check_complete(&readiness, &list);
    readiness_free(&readiness);
    tape_free(&tape);
    parameters_free(&list);
}

static void test_changed_graph(void **state)
{
    mark_static((int[]){2, 0, -1}); /* as in the first pass */
    expect_dies(mark_static, (int[]){2, 1, 0, -1}, 1,
                "--static-graph: this pass uses fc2.weight, but the first pass did not");
    expect_dies(mark_static, (int[]){2, -1}, 1,
                "--static-graph: this pass does not use fc1.weight, but the first pass did");
    expect_dies(mark_static, (int[]){2, 2, -1}, 1, "the gradient of fc3.weight was marked ready twice");
}

/* Each backward pass starts with no marks, frozen parameters are not waited for, and the order is recorded. */
static void test_each_pass_anew(void **state)
{
    ParameterList list = three_parameters();
    Readiness readiness;
    readiness_create(&readiness, &list, false);
    list.items[0]->tensor.requires_grad = false;
    for (int pass = 0; pass < 3; pass++) {
        readiness_begin(&readiness, &list);
        assert_int_equal(readiness.count, 0);
        readiness_mark(&readiness, list.items[1 + pass % 2]);
        readiness_mark(&readiness, list.items[2 - pass % 2]);
        readiness_check_complete(&readiness, &list);
        assert_int_equal(readiness.order[0], 1 + pass % 2);
        assert_int_equal(readiness.order[1], 2 - pass % 2);
    }
    readiness_free(&readiness);
    parameters_free(&list);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("readiness", cmocka_unit_test(test_events_that_do_not_fit),
                     cmocka_unit_test(test_without_events), cmocka_unit_test(test_many_names),
                     cmocka_unit_test(test_unused), cmocka_unit_test(test_static_graph),
                     cmocka_unit_test(test_changed_graph),
                     cmocka_unit_test(test_each_pass_anew));
}
