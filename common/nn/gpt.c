/* gpt.c: a GPT-2-style transformer: token + position embedding, pre-layernorm blocks of causal self-attention and
 * a GELU network, a last layernorm, and an output layer whose weight is the token embedding (tied weights).
 * Parameters have GPT-2's names, as in nanoGPT. Weights have torch.nn.Linear's layout (out, in); GPT-2's own files have
 * (in, out). Source: Radford et al., 2019 (GPT-2). */
#include <math.h>
#include <stdio.h>

#include "device/device.h"
#include "nn/layers.h"

static Parameter *add(Model *model, const char *prefix, const char *name, int64_t rows, int64_t columns)
{
    char full[64];
    snprintf(full, sizeof full, "transformer.%s%s", prefix, name);
    if (columns == 0)
        return parameters_add(&model->parameters, full, 1, (int64_t[]){rows});
    return parameters_add(&model->parameters, full, 2, (int64_t[]){rows, columns});
}

static Parameter *add_normal(Model *model, const char *prefix, const char *name, int64_t rows, int64_t columns,
                             Rng *rng, float deviation)
{
    Parameter *parameter = add(model, prefix, name, rows, columns);
    init_normal(parameter, rng, deviation);
    return parameter;
}

static Parameter *add_ones(Model *model, const char *prefix, const char *name, int64_t count)
{
    Parameter *parameter = add(model, prefix, name, count, 0);
    init_constant(parameter, 1);
    return parameter;
}

static void add_block(Model *model, int layer, Rng *rng)
{
    int64_t C = model->spec.gpt.width;
    /* The residual stream is a sum of 2 * layers branches; GPT-2 scales each so that the sum keeps its variance. */
    float residual = 0.02f / sqrtf(2.0f * (float)model->spec.gpt.layers);
    char prefix[16];
    snprintf(prefix, sizeof prefix, "h.%d.", layer);
    GptBlock *block = &model->blocks[layer];
    block->heads = model->spec.gpt.heads;
    model->parameters.layers++; /* the last layernorm counts as a part of the last block */
    block->ln_1_weight = add_ones(model, prefix, "ln_1.weight", C);
    block->ln_1_bias = add(model, prefix, "ln_1.bias", C, 0);
    block->c_attn_weight = add_normal(model, prefix, "attn.c_attn.weight", 3 * C, C, rng, 0.02f);
    block->c_attn_bias = add(model, prefix, "attn.c_attn.bias", 3 * C, 0);
    block->attn_proj_weight = add_normal(model, prefix, "attn.c_proj.weight", C, C, rng, residual);
    block->attn_proj_bias = add(model, prefix, "attn.c_proj.bias", C, 0);
    block->ln_2_weight = add_ones(model, prefix, "ln_2.weight", C);
    block->ln_2_bias = add(model, prefix, "ln_2.bias", C, 0);
    block->c_fc_weight = add_normal(model, prefix, "mlp.c_fc.weight", 4 * C, C, rng, 0.02f);
    block->c_fc_bias = add(model, prefix, "mlp.c_fc.bias", 4 * C, 0);
    block->mlp_proj_weight = add_normal(model, prefix, "mlp.c_proj.weight", C, 4 * C, rng, residual);
    block->mlp_proj_bias = add(model, prefix, "mlp.c_proj.bias", C, 0);
}

void gpt_create(Model *model, Rng *rng)
{
    const GptSizes *sizes = &model->spec.gpt;
    model->wte = add_normal(model, "", "wte.weight", sizes->padded_vocabulary, sizes->width, rng, 0.02f);
    model->wpe = add_normal(model, "", "wpe.weight", sizes->context, sizes->width, rng, 0.02f);
    for (int layer = 0; layer < sizes->layers; layer++)
        add_block(model, layer, rng);
    model->ln_f_weight = add_ones(model, "", "ln_f.weight", sizes->width);
    model->ln_f_bias = add(model, "", "ln_f.bias", sizes->width, 0);
}

/* Tensors are (B, T, C) unless a comment says otherwise. */
static Tensor *attention(const GptBlock *block, Tape *tape, Tensor *x)
{
    Tensor *h = op_layernorm(tape, x, &block->ln_1_weight->tensor, &block->ln_1_bias->tensor);
    h = op_linear(tape, h, &block->c_attn_weight->tensor, &block->c_attn_bias->tensor); /* (B, T, 3C): q, k, v */
    h = op_attention(tape, h, block->heads);
    return op_dropout(tape, op_linear(tape, h, &block->attn_proj_weight->tensor, &block->attn_proj_bias->tensor));
}

static Tensor *feed_forward(const GptBlock *block, Tape *tape, Tensor *x)
{
    Tensor *h = op_layernorm(tape, x, &block->ln_2_weight->tensor, &block->ln_2_bias->tensor);
    h = op_gelu(tape, op_linear(tape, h, &block->c_fc_weight->tensor, &block->c_fc_bias->tensor)); /* (B, T, 4C) */
    return op_dropout(tape, op_linear(tape, h, &block->mlp_proj_weight->tensor, &block->mlp_proj_bias->tensor));
}

static Tensor *block_forward(Tape *tape, Tensor *x, const void *gpt_block)
{
    const GptBlock *block = gpt_block;
    x = op_add(tape, x, attention(block, tape, x));
    return op_add(tape, x, feed_forward(block, tape, x));
}

Tensor *gpt_forward(Model *model, Tape *tape, void *inputs, int64_t samples, int64_t time)
{
    device_range_begin("embedding");
    Tensor *x = op_embedding(tape, inputs, samples, time, &model->wte->tensor, &model->wpe->tensor); /* (B, T, C) */
    x = op_dropout(tape, x);
    device_range_end();
    for (int layer = 0; layer < model->spec.gpt.layers; layer++) {
        if (layer + 1 == model->spec.skip_layer)
            continue;
        device_range_begin("block %d", layer);
        x = tape_block(tape, x, block_forward, &model->blocks[layer]);
        device_range_end();
    }
    x = op_layernorm(tape, x, &model->ln_f_weight->tensor, &model->ln_f_bias->tensor);
    device_range_begin("output layer");
    Tensor *logits = op_linear(tape, x, &model->wte->tensor, NULL); /* tied: wte's second use */
    device_range_end();
    return logits;
}
