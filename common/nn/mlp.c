/* mlp.c: three linear layers with a GELU (or a ReLU) between them, and perhaps a batch norm before each.
 *
 * note: kink
 * GELU is the default because it is smooth. ReLU has a kink at 0: its derivative jumps from 0 to 1. If two runs differ
 * in the last bit of an activation near 0, a whole contribution to the gradient may be present in one run and missing
 * in the other. So with ReLU, the weights of N ranks and of one process differ visibly sooner or later. */
#include <math.h>
#include <stdio.h>

#include "base/check.h"
#include "device/device.h"
#include "nn/layers.h"

/* One layer's weight (outputs, inputs) and bias (outputs), with torch.nn.Linear's distribution. */
static void add_linear(Model *model, int layer, int inputs, int outputs, bool bias, Rng *rng)
{
    char name[64];
    float limit = 1.0f / sqrtf((float)inputs);
    model->parameters.layers++;
    snprintf(name, sizeof name, "fc%d.weight", layer + 1);
    model->fc_weight[layer] = parameters_add(&model->parameters, name, 2, (int64_t[]){outputs, inputs});
    init_uniform(model->fc_weight[layer], rng, limit);
    if (!bias)
        return;
    snprintf(name, sizeof name, "fc%d.bias", layer + 1);
    model->fc_bias[layer] = parameters_add(&model->parameters, name, 1, (int64_t[]){outputs});
    init_uniform(model->fc_bias[layer], rng, limit);
}

void mlp_create(Model *model, Rng *rng)
{
    const MlpSizes *sizes = &model->spec.mlp;
    const bool has_norms = model->spec.norm != NORM_NONE; /* a norm would subtract the bias before it */
    add_linear(model, 0, sizes->inputs, sizes->hidden1, !has_norms, rng);
    if (has_norms)
        model->norms[0] = batch_norm_create(&model->parameters, "bn1", sizes->hidden1);
    add_linear(model, 1, sizes->hidden1, sizes->hidden2, !has_norms, rng);
    if (has_norms)
        model->norms[1] = batch_norm_create(&model->parameters, "bn2", sizes->hidden2);
    add_linear(model, 2, sizes->hidden2, sizes->outputs, sizes->last_bias, rng);
}

const char *activation_name(Activation activation)
{
    switch (activation) {
    case ACTIVATION_GELU: return "gelu";
    case ACTIVATION_RELU: return "relu";
    }
    FAULT("there is no activation number %d", (int)activation);
}

static Tensor *activate(Tape *tape, Tensor *x, Activation activation)
{
    switch (activation) {
    case ACTIVATION_GELU: return op_gelu(tape, x);
    case ACTIVATION_RELU: return op_relu(tape, x);
    }
    FAULT("there is no activation number %d", (int)activation);
}

static Tensor *normalize(Model *model, Tape *tape, Tensor *x, int layer)
{
    const BatchNorm *norm = &model->norms[layer];
    if (model->spec.norm == NORM_NONE)
        return x;
    return op_batch_norm(tape, x, &norm->weight->tensor, &norm->bias->tensor, &norm->running, model->norm_ranks);
}

Tensor *mlp_forward(Model *model, Tape *tape, void *inputs, int64_t samples)
{
    Tensor *x = tape_input(tape, inputs, DTYPE_F32, 2, (int64_t[]){samples, model->spec.mlp.inputs});
    for (int layer = 0; layer < 3; layer++) {
        Parameter *bias = model->fc_bias[layer];
        if (layer + 1 == model->spec.skip_layer)
            continue;
        device_range_begin("fc%d", layer + 1);
        x = op_linear(tape, x, &model->fc_weight[layer]->tensor, bias != NULL ? &bias->tensor : NULL);
        if (layer < 2)
            x = op_dropout(tape, activate(tape, normalize(model, tape, x, layer), model->spec.mlp.activation));
        device_range_end();
    }
    return x;
}
