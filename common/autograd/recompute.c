/* recompute.c: activation checkpointing: the tape keeps only the input and the result of a block of operations, and
 * backward recomputes the rest. The same kernels on the same inputs give the same bits, and dropout recomputes its
 * masks (DropoutMask). Source: Chen et al., 2016.
 *
 * note: recompute
 * On the tape, the block is one node. When backward reaches it, the nodes of the block's operations replace it, as if
 * they had been there all the time, and backward continues with the last of them. Until then the node counts as one use
 * of each of the block's parameters, so that no gradient counts as ready too early. */
#include <stdlib.h>

#include "autograd/tape.h"
#include "base/check.h"

static void enter_block(Tape *tape)
{
    CHECK(!tape->in_block, "a block within a block cannot be recomputed");
    tape->in_block = true;
    tape->block_begin = tape->count;
    tape->tensors_before_block = tape->tensor_count;
}

static void add_parameter(Tape *tape, int first, Parameter *parameter)
{
    for (int i = first; i < tape->block_parameter_count; i++)
        if (tape->block_parameters[i] == parameter)
            return;
    if (tape->block_parameter_count == tape->block_parameter_capacity) {
        tape->block_parameter_capacity = 2 * tape->block_parameter_capacity + 16;
        tape->block_parameters =
            realloc(tape->block_parameters, (size_t)tape->block_parameter_capacity * sizeof(Parameter *));
        CHECK(tape->block_parameters != NULL, "out of memory for the list of blocks' parameters");
    }
    tape->block_parameters[tape->block_parameter_count++] = parameter;
}

/* Removes the block's nodes from the tape; lists their parameters, and counts one use of each. */
static void remove_nodes(Tape *tape)
{
    const int first = tape->block_parameter_count;
    for (int i = tape->block_begin; i < tape->count; i++)
        for (int k = 0; k < NODE_MAX_INPUTS; k++) {
            Tensor *input = tape->nodes[i].inputs[k];
            if (input == NULL)
                continue;
            input->uses--;
            if (input->parameter != NULL)
                add_parameter(tape, first, input->parameter);
        }
    tape->count = tape->block_begin;
    for (int i = first; i < tape->block_parameter_count; i++)
        tape->block_parameters[i]->tensor.uses++;
}

/* The backward function of the block's node. */
static void open_block(Tape *tape, Node *node)
{
    const Node block = *node; /* the block's own nodes take its place */
    tape->count = (int)(node - tape->nodes);
    tape->dropout.layer = block.layer;
    enter_block(tape);
    Tensor *result = block.forward(tape, block.inputs[0], block.what);
    result->grad = block.output->grad;
    result->grad_dtype = block.output->grad_dtype;
    for (int i = 0; i < block.parameter_count; i++) {
        Parameter *parameter = tape->block_parameters[block.first_parameter + i];
        CHECK(--parameter->tensor.uses > 0, "%s was used when the block was computed, but not when it was recomputed",
              parameter->name);
    }
    block.inputs[0]->uses--;
}

Tensor *tape_block(Tape *tape, Tensor *x, TapeBlock forward, const void *what)
{
    if (!tape->recompute)
        return forward(tape, x, what);
    const uint32_t layer = tape->dropout.layer;
    const int first = tape->block_parameter_count;
    Tensor *out = tape_tensor(tape, x->ndim, x->shape, false);
    enter_block(tape);
    const Tensor *result = forward(tape, x, what);
    CHECK(tensor_count(result) == tensor_count(out), "a block's result must have its input's shape");
    device_copy(out->data, result->data, (size_t)tensor_count(out) * sizeof(float));
    out->requires_grad = result->requires_grad;
    remove_nodes(tape);
    tape_close_block(tape);
    Node *node = tape_record(tape, "block", open_block, out, x, NULL, NULL);
    if (node != NULL) {
        node->layer = layer;
        node->forward = forward;
        node->what = what;
        node->first_parameter = first;
        node->parameter_count = tape->block_parameter_count - first;
    }
    return out;
}
