/* gpt_blocks.c: the blocks of the GPT, as in the papers. (For a GPU, gpu/gpt_blocks.c replaces this file: the same
 * operations, fused where that saves passes over memory.) */
#include "device/device.h"
#include "nn/layers.h"

/* Tensors are (B, T, C) unless a comment says otherwise. */
static Tensor *attention(const GptBlock *block, Tape *tape, Tensor *x, int heads)
{
    Tensor *h = op_layernorm(tape, x, &block->ln_1_weight->tensor, &block->ln_1_bias->tensor);
    h = op_linear(tape, h, &block->c_attn_weight->tensor, &block->c_attn_bias->tensor); /* (B, T, 3C): q, k, v */
    h = op_attention(tape, h, heads);
    return op_linear(tape, h, &block->attn_proj_weight->tensor, &block->attn_proj_bias->tensor);
}

static Tensor *feed_forward(const GptBlock *block, Tape *tape, Tensor *x)
{
    Tensor *h = op_layernorm(tape, x, &block->ln_2_weight->tensor, &block->ln_2_bias->tensor);
    h = op_gelu(tape, op_linear(tape, h, &block->c_fc_weight->tensor, &block->c_fc_bias->tensor)); /* (B, T, 4C) */
    return op_linear(tape, h, &block->mlp_proj_weight->tensor, &block->mlp_proj_bias->tensor);
}

Tensor *gpt_blocks(const Model *model, Tape *tape, Tensor *x)
{
    for (int layer = 0; layer < model->spec.gpt.layers; layer++) {
        const GptBlock *block = &model->blocks[layer];
        device_range_begin("block %d", layer);
        x = op_add(tape, x, attention(block, tape, x, model->spec.gpt.heads));
        x = op_add(tape, x, feed_forward(block, tape, x));
        device_range_end();
    }
    return op_layernorm(tape, x, &model->ln_f_weight->tensor, &model->ln_f_bias->tensor);
}
