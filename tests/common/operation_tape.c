/* operation_tape.c: an operation and its backward pass on a tape, in memory that held NaN. See operation_check.h. */
#include "autograd/ops.h"
#include "operation_check.h"

/* A loss for the test: the sum of direction * x; its gradient is the direction. */
static void project_backward(Tape *tape, Node *node)
{
    for (int k = 0; k < 2; k++)
        if (node->inputs[k] != NULL)
            device_contribute(tape_gradient(tape, node->inputs[k]), node->saved[0], tensor_count(node->inputs[k]));
}

/* The loss of a, and of b unless it is NULL. Its value is not used; backward must start with 1. */
static Tensor *project(Tape *tape, Tensor *a, Tensor *b, float *direction)
{
    Tensor *loss = tape_tensor(tape, 1, (int64_t[]){1}, true);
    Node *node = tape_record(tape, "project", project_backward, loss, a, b, NULL);
    node->saved[0] = direction;
    return loss;
}

static void *on_tape(Tape *tape, const float *host, int64_t count)
{
    float *device = tape_floats(tape, count);
    device_from_host(device, host, (size_t)count * sizeof *host);
    return device;
}

/* Fills the memory of the next step with NaN, so that reading memory before it is written shows. */
static void leave_nan_behind(Tape *tape)
{
    enum { COUNT = 1 << 18 };
    device_fill(tape_floats(tape, COUNT), NAN, COUNT);
}

static float *to_host(const float *device, int64_t count)
{
    float *host = room_for_floats(count);
    device_to_host(host, device, (size_t)count * sizeof *host);
    return host;
}

Results run_on_tape(const Case *c, unsigned needs, int uses)
{
    Results results = {0};
    Tape tape = {.precision = c->precision};
    Tensor *tensor[CHECKED_ARRAYS] = {NULL};
    void *a[CHECKED_ARRAYS];
    leave_nan_behind(&tape);
    tape_begin(&tape, true);
    for (int k = 0; k < c->arrays; k++) {
        const CheckedArray *array = &c->array[k];
        a[k] = on_tape(&tape, array->start, array->count);
        if (!is_differentiable(array))
            continue;
        tensor[k] = tape_input(&tape, a[k], DTYPE_F32, array->ndim, array->shape);
        tensor[k]->requires_grad = needs >> k & 1;
    }
    const int64_t count = c->array[c->out].count;
    float *direction = on_tape(&tape, c->direction, count), *numbers = tape_floats(&tape, count);
    Tensor *out = c->operation->record(c, &tape, tensor, a);
    assert_int_equal(tensor_count(out), count);
    Tensor *second = uses == 2 ? c->operation->record(c, &tape, tensor, a) : NULL;
    tape_backward(&tape, project(&tape, out, second, direction), 1);
    if (out->dtype == DTYPE_F32)
        device_copy(numbers, out->data, (size_t)count * sizeof *numbers);
    else
        numbers_of(numbers, out->data, out->dtype, count);
    results.array[c->out] = to_host(numbers, count);
    for (int k = 0; k < c->arrays; k++)
        if (tensor[k] != NULL && tensor[k]->grad != NULL)
            results.gradient[k] = to_host(tensor[k]->grad, c->array[k].count);
    tape_free(&tape);
    return results;
}
