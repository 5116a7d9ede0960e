/* model.h: the models that every stage trains: a 3-layer MLP and a GPT-2-style transformer.
 *
 * Interface: model_create(spec, ...), then per step model_loss() on a recording tape. Weights have PyTorch's names and
 * layout (weight (out, in)); the GPT has GPT-2's names, as in nanoGPT.
 */
#ifndef LOCKSTEP_NN_MODEL_H
#define LOCKSTEP_NN_MODEL_H

#include "autograd/batch_norm.h"

typedef enum ModelKind { MODEL_MLP, MODEL_GPT } ModelKind;
typedef enum LossKind { LOSS_CROSS_ENTROPY, LOSS_MSE } LossKind;
typedef enum Activation { ACTIVATION_GELU, ACTIVATION_RELU } Activation;
typedef enum Norm { NORM_NONE, NORM_BATCH, NORM_SYNC_BATCH } Norm;

typedef struct MlpSizes {
    int inputs, hidden1, hidden2, outputs;
    bool last_bias;        /* does fc3 have a bias? */
    Activation activation; /* between the layers; see mlp.c */
} MlpSizes;

typedef struct GptSizes {
    int layers, heads, width, context; /* context: the largest T */
    int vocabulary;                    /* number of different tokens */
    int padded_vocabulary;             /* rows of the embedding, >= vocabulary: some sizes multiply faster */
} GptSizes;

typedef struct ModelSpec {
    char name[16]; /* "mlp", "mlp-toy", "gpt", "gpt2" */
    ModelKind kind;
    LossKind loss;
    Norm norm; /* of the MLP, before each activation; the GPTs have layer norms */
    MlpSizes mlp; /* valid if kind is MODEL_MLP; else gpt is */
    GptSizes gpt;
    int skip_layer; /* forward skips this block of the GPT or layer of the MLP, counted from 1; 0: none. It must have
                     * as many outputs as inputs; in an MLP only the second layer can */
} ModelSpec;

#define GPT_MAX_LAYERS 64

typedef struct GptBlock {
    Parameter *ln_1_weight, *ln_1_bias, *c_attn_weight, *c_attn_bias, *attn_proj_weight, *attn_proj_bias;
    Parameter *ln_2_weight, *ln_2_bias, *c_fc_weight, *c_fc_bias, *mlp_proj_weight, *mlp_proj_bias;
    int heads;
} GptBlock;

typedef struct Model {
    ModelSpec spec;
    ParameterList parameters;
    Parameter *fc_weight[3], *fc_bias[3];                   /* MLP */
    BatchNorm norms[2];                                     /* MLP, if it has any */
    const RankGather *norm_ranks; /* the ranks that share their statistics; NULL: this process alone. Not owned */
    Parameter *wte, *wpe, *ln_f_weight, *ln_f_bias;         /* GPT; the output layer is wte again (tied) */
    GptBlock blocks[GPT_MAX_LAYERS];
} Model;

/* Sets *spec to the named model with its default sizes; returns false if there is no such model. */
bool model_spec_by_name(const char *name, ModelSpec *spec);

/* Builds the model and draws its initial weights from `seed`: PyTorch's nn.Linear default for the MLPs
 * (uniform within 1/sqrt(inputs)), GPT-2's for the GPTs (normal, 0.02; residual projections 0.02/sqrt(2 layers)).
 * Free with model_free(). */
void model_create(Model *model, const ModelSpec *spec, uint64_t seed);
void model_free(Model *model);

/* The network's output for `samples` samples.
 * MLP: inputs float (samples, inputs) -> (samples, outputs).
 * GPT: inputs int32 (samples, time) -> logits (samples, time, padded_vocabulary); time <= context. */
Tensor *model_forward(Model *model, Tape *tape, void *inputs, int64_t samples, int64_t time);

/* The loss, SUMMED over samples (MLP) or tokens (GPT). targets: int32 (samples) or (samples, time) for
 * cross-entropy, float (samples, outputs) for MSE. inputs and targets: device memory that stays valid until the
 * next tape_begin(). The MLP ignores time. */
Tensor *model_loss(Model *model, Tape *tape, void *inputs, void *targets, int64_t samples, int64_t time);

/* "gelu" or "relu"; static, not owned. */
const char *activation_name(Activation activation);

/* The number of terms in the summed loss of `samples` samples: samples, or samples * time for the GPT. It includes
 * masked targets; dataset_terms() does not. */
int64_t model_loss_terms(const ModelSpec *spec, int64_t samples, int64_t time);

#endif
