/* gradient_dtype.c: chooses which gradients are stored in 16 bits; replaces common/autograd/gradient_dtype.c.
 *
 * note: product-gradient
 * Under bf16 and f16, the backward pass of a linear layer reads its output's gradient rounded. Stored in float32, that
 * gradient would be written, read again, and written rounded. So the kernel that computes it rounds it at once, if it
 * can. But a sum must be rounded after its last addition. So this is done only if the gradient has one contribution:
 * the current one is the first, and no other use of the tensor is left. Then the bits are those of rounding later. */
#include <string.h>

#include "autograd/tape.h"

/* The kernels of these operations store in Gradient.dtype. The other kernels store float32 only. */
static bool can_store_16_bits(const Node *node)
{
    return strcmp(node->name, "add") == 0 || strcmp(node->name, "attention") == 0 ||
           strcmp(node->name, "cross-entropy") == 0;
}

static bool is_output_of_linear(const Tape *tape, const Tensor *tensor)
{
    for (const Node *node = tape->running - 1; node >= tape->nodes; node--)
        if (node->output == tensor)
            return strcmp(node->name, "linear") == 0;
    return false;
}

DType gradient_dtype(const Tape *tape, const Tensor *tensor)
{
    const bool only_contribution = tensor->grad == NULL && tensor->uses == 1;
    if (tape->running == NULL || !only_contribution || !can_store_16_bits(tape->running))
        return DTYPE_F32;
    return is_output_of_linear(tape, tensor) ? tape->precision : DTYPE_F32;
}
