/* gpt_blocks.c: the blocks of the GPT with fewer passes over memory; replaces common/nn/gpt_blocks.c. A sum and the
 * layernorm after it are one kernel. The last sum of a block is followed by the next block's first layernorm, so the
 * loop below computes these two together. The bits are the same: tests/common/test_fusions.c. */
#include "device/device.h"
#include "gpu/fused_ops.h"
#include "nn/layers.h"

/* x: the residual stream, normalized: layernorm(*x), both (B, T, C). Adds attention's branch to *x. Returns the MLP's
 * branch, which the caller adds to *x. */
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
