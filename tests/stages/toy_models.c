/* toy_models.c: small data sets made in memory, and a model whose branches can be recorded in any order. */
#include "toy_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "autograd/ops.h"
#include "base/check.h"
#include "base/rng.h"
#include "given.h"
#include "judge.h"
#include "mpi_main.h"

Options toy_options(const char *model_name)
{
    Options options = {.batch_size = 24, .accumulate = 1, .seed = 3, .lr = 0.05f, .steps = 6, .threads = 1};
    CHECK(model_spec_by_name(model_name, &options.model), "no model named %s", model_name);
    if (options.model.kind == MODEL_GPT) {
        options.dataset = DATASET_TEXT;
        options.model.gpt = (GptSizes){.layers = 2, .heads = 2, .width = 32, .context = 16, .vocabulary = 256,
                                       .padded_vocabulary = 256};
    } else if (options.model.loss == LOSS_CROSS_ENTROPY) {
        options.dataset = DATASET_IMAGES;
        options.model.mlp = (MlpSizes){64, 48, 32, 10, true, ACTIVATION_GELU};
    } else {
        options.dataset = DATASET_RANDOM;
    }
    options.optimizer = (OptimizerOptions){.kind = OPTIMIZER_SGD, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
    options.precision = DTYPE_F32;
    options.initial_loss_scale = 1024;
    options.group.timeout = tests_timeout();
    options.group.debug_collectives = true; /* a stage under test may make any calls: name the wrong one */
    options.ddp = (DdpOptions){.bucket_cap_bytes = 4096, .first_bucket_cap_bytes = 512, .codec = codec_find("fp32")};
    options.sharding.level = given_level() > 0 ? given_level() : 2; /* stage 5: its tests are run once for each level */
    return options;
}

static unsigned char *random_bytes(int64_t count, uint64_t below, uint64_t seed)
{
    Rng rng;
    rng_seed(&rng, seed);
    unsigned char *bytes = alloc_or_fault((size_t)count);
    for (int64_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)rng_below(&rng, below);
    return bytes;
}

/* Image i has a random class, and its pixels of this class are brighter, so that there is something to learn. */
static Dataset toy_images(const MlpSizes *sizes, int64_t samples)
{
    Dataset dataset = {.kind = DATASET_IMAGES, .size = samples, .inputs = sizes->inputs, .targets = 1,
                       .input_bytes = (size_t)sizes->inputs * sizeof(float), .target_bytes = sizeof(int32_t)};
    dataset.byte_count = samples * sizes->inputs;
    dataset.bytes = random_bytes(dataset.byte_count, 128, 17);
    dataset.labels = random_bytes(samples, (uint64_t)sizes->outputs, 18);
    for (int64_t i = 0; i < samples; i++)
        for (int k = 0; k < 6; k++)
            dataset.bytes[i * sizes->inputs + dataset.labels[i] * 6 + k] += 100;
    return dataset;
}

static Dataset toy_text(int64_t context, int64_t samples)
{
    Dataset dataset = {.kind = DATASET_TEXT, .split = SPLIT_TRAIN, .size = samples, .inputs = context,
                       .targets = context, .input_bytes = (size_t)context * sizeof(int32_t),
                       .target_bytes = (size_t)context * sizeof(int32_t), .seed = 5};
    dataset.byte_count = (samples + 2) * context;
    dataset.bytes = random_bytes(dataset.byte_count, 26, 19);
    return dataset;
}

Dataset toy_dataset(const Options *options, int64_t samples)
{
    Dataset dataset;
    if (options->dataset == DATASET_IMAGES)
        return toy_images(&options->model.mlp, samples);
    if (options->dataset == DATASET_TEXT)
        return toy_text(options->model.gpt.context, samples);
    dataset_open_random(&dataset, samples, options->model.mlp.inputs, options->model.mlp.outputs, 7);
    return dataset;
}

/* ---- first weights ---- */

/* The toys and the branches have ReLUs. With some weights in a million, an activation is so near 0 that rounding decides
 * on which side, and gradients differ by more than any tolerance. With these seeds it does not happen. */
enum { SEEDS_OF_GRADERS = 16 };

uint64_t toy_seed(ProcessGroup *pg)
{
    static uint64_t own;
    if (judge_number() != 0) /* in the judge and on rank 0 */
        return 3 + judge_number() % SEEDS_OF_GRADERS;
    if (!judge_grades())
        return given_seed() + 2 + (uint64_t)pg_rank(pg);
    if (own == 0)
        CHECK(getrandom(&own, sizeof own, 0) == (ssize_t)sizeof own, "getrandom() failed");
    return own;
}

void toy_seeds_of_all(ProcessGroup *pg, uint64_t *seeds)
{
    const uint64_t mine = toy_seed(pg);
    pg_all_gather(pg, &mine, seeds, 1, DTYPE_I64, "seeds of the first weights");
}

uint64_t toy_seed_of_rank_0(ProcessGroup *pg)
{
    uint64_t *seeds = alloc_or_fault((size_t)pg_world_size(pg) * sizeof *seeds), seed;
    toy_seeds_of_all(pg, seeds);
    seed = seeds[0];
    free(seeds);
    return seed;
}

/* ---- a model with branches ---- */

void branches_create(Branches *branches, uint64_t seed)
{
    Rng rng;
    rng_seed(&rng, seed);
    *branches = (Branches){.tape = {.precision = DTYPE_F32}};
    for (int k = 0; k < BRANCHES; k++) {
        char name[32];
        snprintf(name, sizeof name, "branch%d.weight", k);
        parameters_add(&branches->parameters, name, 2, (int64_t[]){BRANCH_WIDTH, BRANCH_WIDTH});
        snprintf(name, sizeof name, "branch%d.bias", k);
        parameters_add(&branches->parameters, name, 1, (int64_t[]){BRANCH_WIDTH});
    }
    parameters_add(&branches->parameters, "trunk.weight", 2, (int64_t[]){BRANCH_WIDTH, BRANCH_WIDTH});
    for (int i = 0; i < branches->parameters.count; i++) {
        float *values = branches->parameters.items[i]->tensor.data;
        for (int64_t k = 0; k < tensor_count(&branches->parameters.items[i]->tensor); k++)
            values[k] = 0.4f * rng_normal(&rng);
    }
}

void branches_free(Branches *branches)
{
    tape_free(&branches->tape);
    parameters_free(&branches->parameters);
}

BranchPlan branches_plan(int turn)
{
    BranchPlan plan = {{0}, {false}, {false}};
    for (int k = 0; k < BRANCHES; k++)
        plan.order[k] = (turn % 2 == 0 ? turn + k : turn + BRANCHES - 1 - k) % BRANCHES;
    return plan;
}

static Tensor *random_rows(Tape *tape, Rng *rng)
{
    Tensor *rows = tape_tensor(tape, 2, (int64_t[]){BRANCH_SAMPLES, BRANCH_WIDTH}, false);
    for (int i = 0; i < BRANCH_SAMPLES * BRANCH_WIDTH; i++)
        ((float *)rows->data)[i] = rng_normal(rng);
    return rows;
}

Tensor *branches_loss(Branches *branches, const BranchPlan *plan, int rank, long step)
{
    Tape *tape = &branches->tape;
    Parameter **items = branches->parameters.items;
    Tensor *outputs[BRANCHES] = {NULL}, *prediction = NULL;
    Rng rng;
    rng_seed(&rng, 1000 + 100 * (uint64_t)step + (uint64_t)rank);
    Tensor *inputs = random_rows(tape, &rng), *targets = random_rows(tape, &rng);
    Tensor *trunk = &items[2 * BRANCHES]->tensor;
    Tensor *h = op_linear(tape, op_relu(tape, op_linear(tape, inputs, trunk, NULL)), trunk, NULL);
    for (int i = 0; i < BRANCHES; i++) {
        int k = plan->order[i];
        if (!plan->left_out[k])
            outputs[k] = op_linear(tape, h, &items[2 * k]->tensor, &items[2 * k + 1]->tensor);
    }
    for (int k = 0; k < BRANCHES; k++) /* added in one order on all ranks, so that the rounding is the same */
        if (outputs[k] != NULL && !plan->dead_end[k])
            prediction = prediction == NULL ? outputs[k] : op_add(tape, prediction, outputs[k]);
    return op_mse(tape, prediction, targets->data);
}

int planned_buckets(const size_t *sizes, int count, const DdpOptions *caps, int *bucket_of)
{
    size_t filled = 0;
    int bucket = 0;
    for (int i = 0; i < count; i++) {
        bucket_of[i] = bucket;
        filled += sizes[i];
        if (filled >= (bucket == 0 ? caps->first_bucket_cap_bytes : caps->bucket_cap_bytes)) {
            bucket++;
            filled = 0;
        }
    }
    return bucket + (filled > 0);
}

int planned_sums(const ParameterList *parameters, const DdpOptions *caps)
{
    size_t *sizes = alloc_or_fault((size_t)parameters->count * sizeof *sizes);
    int *bucket_of = alloc_or_fault((size_t)parameters->count * sizeof *bucket_of), trained = 0;
    for (int i = parameters->count - 1; i >= 0; i--)
        if (parameters->items[i]->tensor.requires_grad)
            sizes[trained++] = (size_t)tensor_count(&parameters->items[i]->tensor) * sizeof(float);
    const int buckets = caps == NULL ? trained : planned_buckets(sizes, trained, caps, bucket_of);
    free(sizes);
    free(bucket_of);
    return buckets;
}

const char *precision_name(DType precision)
{
    return precision == DTYPE_F32 ? "fp32" : precision == DTYPE_BF16 ? "bf16" : "fp16";
}
