/* tape.c: recording the forward pass, walking it in reverse, and reporting when a gradient is complete. */
#include "autograd/tape.h"

#include <stdlib.h>

#include "base/check.h"
#include "device/device.h"

void tape_begin(Tape *tape, bool recording)
{
    /* If an earlier recording had no backward pass, its uses are still counted: they would delay this step's events. */
    for (int i = 0; i < tape->count; i++)
        for (int k = 0; k < NODE_MAX_INPUTS; k++)
            if (tape->nodes[i].inputs[k] != NULL)
                tape->nodes[i].inputs[k]->uses = 0;
    for (int i = 0; i < tape->block_parameter_count; i++)
        tape->block_parameters[i]->tensor.uses = 0;
    tape->block_parameter_count = 0;
    arena_reset(&tape->arena);
    tape->tensor_count = 0;
    tape->count = 0;
    tape->recording = recording;
    tape->dropout.layer = 0;
}

void tape_free(Tape *tape)
{
    arena_free(&tape->arena);
    arena_free(&tape->block_arena);
    free(tape->block_parameters);
    for (int i = 0; i < tape->tensor_capacity; i++)
        free(tape->tensors[i]);
    free(tape->tensors);
    free(tape->nodes);
    *tape = (Tape){0};
}

TapeListener tape_listen(Tape *tape, TapeListener listener)
{
    const TapeListener before = tape->listener;
    tape->listener = listener;
    return before;
}

Arena *tape_arena(Tape *tape)
{
    return tape->in_block ? &tape->block_arena : &tape->arena;
}

void tape_close_block(Tape *tape)
{
    tape->in_block = false;
    tape->tensor_count = tape->tensors_before_block;
    arena_reset(&tape->block_arena);
}

/* The next Tensor from the pool. The pool usually grows only in the first step. */
static Tensor *next_tensor(Tape *tape)
{
    if (tape->tensor_count == tape->tensor_capacity) {
        int capacity = tape->tensor_capacity ? 2 * tape->tensor_capacity : 64;
        tape->tensors = realloc(tape->tensors, (size_t)capacity * sizeof *tape->tensors);
        CHECK(tape->tensors != NULL, "out of memory for the tape's tensors");
        for (int i = tape->tensor_capacity; i < capacity; i++)
            tape->tensors[i] = alloc_or_fault(sizeof(Tensor));
        tape->tensor_capacity = capacity;
    }
    return tape->tensors[tape->tensor_count++];
}

static Tensor *activation(Tape *tape, DType dtype, int ndim, const int64_t *shape, bool requires_grad)
{
    Tensor *tensor = next_tensor(tape);
    *tensor = tensor_view(NULL, dtype, ndim, shape);
    tensor->data = arena_alloc(tape_arena(tape), device_rounded_bytes(dtype, tensor_count(tensor)));
    tensor->requires_grad = requires_grad;
    tensor->in_block = tape->in_block;
    return tensor;
}

Tensor *tape_tensor(Tape *tape, int ndim, const int64_t *shape, bool requires_grad)
{
    return activation(tape, DTYPE_F32, ndim, shape, requires_grad);
}

Tensor *tape_rounded_tensor(Tape *tape, int ndim, const int64_t *shape, bool requires_grad)
{
    return activation(tape, tape->precision, ndim, shape, requires_grad);
}

Tensor *tape_input(Tape *tape, void *data, DType dtype, int ndim, const int64_t *shape)
{
    Tensor *tensor = next_tensor(tape);
    *tensor = tensor_view(data, dtype, ndim, shape);
    return tensor;
}

float *tape_floats(Tape *tape, int64_t count)
{
    return arena_alloc(tape_arena(tape), (size_t)count * sizeof(float));
}

Node *tape_record(Tape *tape, const char *name, void (*backward)(Tape *, Node *), Tensor *output, Tensor *a,
                  Tensor *b, Tensor *c)
{
    if (!tape->recording || !output->requires_grad)
        return NULL;
    if (tape->count == tape->capacity) {
        tape->capacity = tape->capacity ? 2 * tape->capacity : 64;
        tape->nodes = realloc(tape->nodes, (size_t)tape->capacity * sizeof *tape->nodes);
        CHECK(tape->nodes != NULL, "out of memory for the tape's nodes");
    }
    Node *node = &tape->nodes[tape->count++];
    *node = (Node){.name = name, .backward = backward, .inputs = {a, b, c}, .output = output};
    for (int i = 0; i < NODE_MAX_INPUTS; i++)
        if (node->inputs[i] != NULL)
            node->inputs[i]->uses++;
    return node;
}

void tape_needs(Tape *tape, const Tensor *a, const Tensor *b, const Tensor *c)
{
    const Tensor *const tensors[] = {a, b, c};
    Parameter *needed[NODE_MAX_INPUTS];
    int count = 0;
    for (int i = 0; i < NODE_MAX_INPUTS; i++)
        if (tensors[i] != NULL && tensors[i]->parameter != NULL) {
            needed[count] = tensors[i]->parameter;
            needed[count++]->reads++;
        }
    if (count > 0 && tape->listener.parameters_needed != NULL)
        tape->listener.parameters_needed(tape->listener.self, needed, count);
}

Gradient tape_gradient(Tape *tape, Tensor *tensor)
{
    if (tensor == NULL || !tensor->requires_grad)
        return (Gradient){.values = NULL};
    if (tensor->grad == NULL && tensor->parameter != NULL && tape->listener.gradient_needed != NULL)
        tape->listener.gradient_needed(tape->listener.self, tensor->parameter);
    CHECK(tensor->grad_dtype == DTYPE_F32, "a gradient was rounded before its last contribution");
    const bool first = tensor->grad == NULL;
    CHECK(!first || tensor->parameter == NULL, "parameter %s has no memory for its gradient: ddp_create() must "
          "give it some (stage 5: or listen to gradient_needed)", tensor->parameter->name);
    if (first) {
        tensor->grad_dtype = gradient_dtype(tape, tensor);
        tensor->grad_in_block = tensor->in_block;
        tensor->grad = arena_alloc(tensor->in_block ? &tape->block_arena : &tape->arena,
                                   device_rounded_bytes(tensor->grad_dtype, tensor_count(tensor)));
    }
    return (Gradient){.values = tensor->grad, .add = !first, .dtype = tensor->grad_dtype};
}

/* note: gradient-ready
 * A parameter's gradient is complete when backward has passed every node that used the parameter, whether the node
 * contributed or was skipped. Do not send it earlier. If it is reduced after the first of two contributions, the result
 * depends on timing. It may be equally wrong on every rank, which only --verify finds, or different on each rank, or
 * correct by luck (notes/tape.md). */
static void count_down(Tape *tape, Tensor *input, bool contributed)
{
    Parameter *parameter = input->parameter;
    input->uses--;
    if (parameter == NULL || !input->requires_grad)
        return;
    if (contributed)
        parameter->contributed = true;
    if (input->uses > 0 || !parameter->contributed)
        return;
    parameter->contributed = false;
    parameter->has_gradient = true;
    device_mark("gradient-ready %s", parameter->name);
    if (tape->listener.gradient_ready != NULL)
        tape->listener.gradient_ready(tape->listener.self, parameter);
}

static void count_down_inputs(Tape *tape, const Node *node, bool contributed)
{
    for (int i = 0; i < NODE_MAX_INPUTS; i++)
        if (node->inputs[i] != NULL)
            count_down(tape, node->inputs[i], contributed);
    for (int i = 0; i < node->parameter_count; i++) /* a block that the loss does not depend on */
        count_down(tape, &tape->block_parameters[node->first_parameter + i]->tensor, contributed);
}

/* Names the range after the operation and its first parameter, which shows where in the model the operation stands. */
static void begin_range(const Node *node)
{
    const Parameter *parameter = NULL;
    for (int i = 0; i < NODE_MAX_INPUTS && parameter == NULL; i++)
        parameter = node->inputs[i] != NULL ? node->inputs[i]->parameter : NULL;
    if (parameter != NULL)
        device_range_begin("%s %s", node->name, parameter->name);
    else
        device_range_begin("%s", node->name);
}

/* note: tape-backward
 * The nodes from the last to the first. A node contributes to the gradients of its inputs, and then their uses are
 * counted down. A node whose output has no gradient is skipped, because the loss does not depend on it. The uses of its
 * inputs are counted down all the same, so that their parameters become ready. */
void tape_backward(Tape *tape, Tensor *loss, float seed)
{
    CHECK(tape->recording, "backward without a recording: tape_begin(tape, true) comes first, and backward only once");
    CHECK(tensor_count(loss) == 1, "backward starts from one number, not %lld", (long long)tensor_count(loss));
    CHECK(loss->requires_grad, "the loss does not depend on any parameter that is trained");
    device_fill(tape_gradient(tape, loss).values, seed, 1);
    for (int i = tape->count - 1; i >= 0; i--) {
        if (tape->in_block && i < tape->block_begin)
            tape_close_block(tape);
        Node *node = &tape->nodes[i];
        bool contributes = node->output->grad != NULL; /* false: the loss does not depend on this node */
        if (contributes && node->forward != NULL) {
            node->backward(tape, node);
            i = tape->count; /* continue with the last of the nodes that have replaced it */
            continue;
        }
        if (contributes) {
            begin_range(node);
            tape->running = node;
            node->backward(tape, node);
            device_range_end();
        }
        count_down_inputs(tape, node, contributes);
    }
    if (tape->in_block)
        tape_close_block(tape);
    tape->running = NULL;
    tape->recording = false;
}

/* From the last node to the first: the loss is reached, and so are the inputs of a node whose output is reached. */
void tape_mark_used(const Tape *tape, const Tensor *loss, bool *used)
{
    for (int i = 0; i < tape->count; i++)
        tape->nodes[i].output->reached = tape->nodes[i].output == loss;
    for (int i = tape->count - 1; i >= 0; i--) {
        const Node *node = &tape->nodes[i];
        for (int k = 0; k < node->parameter_count && node->output->reached; k++)
            used[tape->block_parameters[node->first_parameter + k]->index] = true;
        for (int k = 0; k < NODE_MAX_INPUTS && node->output->reached; k++) {
            Tensor *input = node->inputs[k];
            if (input == NULL)
                continue;
            input->reached = true;
            if (input->parameter != NULL)
                used[input->parameter->index] = true;
        }
    }
}
