/* gpt_blocks.c: the blocks of the GPT with fewer passes over memory, in the place of common/nn/gpt_blocks.c: a sum and
 * the layernorm that follows it are one kernel. A block ends with a sum whose layernorm is the next block's, so each block
 * leaves its last sum to its successor. The bits are the same: tests/common/test_fusions.c. */
#include "device/device.h"
#include "gpu/fused_ops.h"
#include "nn/layers.h"

/* The residual stream x and what the block is applied to, layernorm(x), both (B, T, C). Returns what the block's second
 * half adds to *x: the caller does so. */
static Tensor *block_forward(const GptBlock *block, Tape *tape, Tensor **x, Tensor *normalized, int heads)
{
    Tensor *h = op_linear(tape, normalized, &block->c_attn_weight->tensor, &block->c_attn_bias->tensor);
    h = op_attention(tape, h, heads);
    h = op_linear(tape, h, &block->attn_proj_weight->tensor, &block->attn_proj_bias->tensor);
    h = op_add_layernorm(tape, *x, h, &block->ln_2_weight->tensor, &block->ln_2_bias->tensor, x); /* *x = *x + h */
    h = op_linear_gelu(tape, h, &block->c_fc_weight->tensor, &block->c_fc_bias->tensor);
    return op_linear(tape, h, &block->mlp_proj_weight->tensor, &block->mlp_proj_bias->tensor);
}

Tensor *gpt_blocks(const Model *model, Tape *tape, Tensor *x)
{
    const GptBlock *first = model->blocks, *end = first + model->spec.gpt.layers;
    Tensor *normalized = op_layernorm(tape, x, &first->ln_1_weight->tensor, &first->ln_1_bias->tensor);
    for (const GptBlock *block = first; block < end; block++) {
        const bool last = block + 1 == end;
        Parameter *weight = last ? model->ln_f_weight : block[1].ln_1_weight;
        Parameter *bias = last ? model->ln_f_bias : block[1].ln_1_bias;
        device_range_begin("block %d", (int)(block - first));
        Tensor *h = block_forward(block, tape, &x, normalized, model->spec.gpt.heads);
        normalized = op_add_layernorm(tape, x, h, &weight->tensor, &bias->tensor, &x); /* x = x + h */
        device_range_end();
    }
    return normalized;
}
