/* model.c: the table of models, and functions that serve both MLP and GPT. */
#include "nn/model.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "device/device.h"
#include "nn/layers.h"

static const ModelSpec known_models[] = {
    {.name = "mlp", .kind = MODEL_MLP, .loss = LOSS_CROSS_ENTROPY, .mlp = {784, 512, 512, 10, true, ACTIVATION_GELU}},
    {.name = "mlp-toy", .kind = MODEL_MLP, .loss = LOSS_MSE, .mlp = {10, 20, 20, 5, false, ACTIVATION_GELU}},
    {.name = "gpt", .kind = MODEL_GPT, .loss = LOSS_CROSS_ENTROPY, .gpt = {4, 4, 256, 128, 256, 256}},
    {.name = "gpt2", .kind = MODEL_GPT, .loss = LOSS_CROSS_ENTROPY, .gpt = {12, 12, 768, 1024, 50257, 50304}},
};

bool model_spec_by_name(const char *name, ModelSpec *spec)
{
    for (size_t i = 0; i < sizeof known_models / sizeof *known_models; i++) {
        if (strcmp(known_models[i].name, name) == 0) {
            *spec = known_models[i];
            return true;
        }
    }
    return false;
}

void model_create(Model *model, const ModelSpec *spec, uint64_t seed)
{
    *model = (Model){.spec = *spec};
    Rng rng;
    rng_seed(&rng, seed);
    if (spec->kind == MODEL_MLP)
        mlp_create(model, &rng);
    else
        gpt_create(model, &rng);
}

void model_free(Model *model)
{
    parameters_free(&model->parameters);
}

Tensor *model_forward(Model *model, Tape *tape, void *inputs, int64_t samples, int64_t time)
{
    if (model->spec.kind == MODEL_MLP)
        return mlp_forward(model, tape, inputs, samples);
    return gpt_forward(model, tape, inputs, samples, time);
}

Tensor *model_loss(Model *model, Tape *tape, void *inputs, void *targets, int64_t samples, int64_t time)
{
    Tensor *output = model_forward(model, tape, inputs, samples, time);
    device_range_begin("loss");
    Tensor *loss = model->spec.loss == LOSS_MSE ? op_mse(tape, output, targets)
                                                : op_cross_entropy(tape, output, targets);
    device_range_end();
    return loss;
}

int64_t model_loss_terms(const ModelSpec *spec, int64_t samples, int64_t time)
{
    return spec->kind == MODEL_GPT ? samples * time : samples;
}
