/* bits.c: trains small models with ordered all-reduces at five bucket caps, and writes a hash of the weights for each
 * model, optimizer and number of micro-batches. Every cap must give the same hash, and the run of one process by shares
 * must give the same bits. Stage 5 does this at each of its levels. test_bits.sh compares the stages' hashes. This is
 * not a cmocka program, because a script compares its output.
 *
 * usage: mpiexec -n N bits FILE [--product]     FILE: one line per case; "-" for none
 *        mpiexec -n N bits --judge test_same_bits for a grader: judge.h
 * --product, stages 4 and 5: all combinations of model, optimizer, clipping and precision, at two caps, with ordered
 * all-reduces and in shared memory. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "data/loader.h"
#include "ddp/replicas.h"
#include "comm/group.h" /* to change the algorithm */
#include "given.h"
#include "judge.h"
#include "mpi_main.h"
#include "toy_models.h"
#include "train/loop/verify.h"

enum { SAMPLES = 120, STEPS = 5, CAPS = 5 };

typedef struct Cap {
    size_t first, others; /* bytes */
    const char *name;
} Cap;

static const Cap caps[CAPS] = {{0, 0, "one bucket per parameter"},
                               {100, 1000, "1000 bytes"},
                               {512, 4096, "4096 bytes"},
                               {4096, 20000, "20000 bytes"},
                               {1 << 30, 1 << 30, "all in one bucket"}};

typedef struct Case {
    const char *model;
    OptimizerKind optimizer;
    float momentum; /* of SGD */
    int accumulate;
    double clip_norm;            /* 0: off */
    DType precision, sent_as; /* of products; of what travels */
    char title[112];
} Case;

static ProcessGroup *pg;
static int failures;
static long runs;

static int zero = 1; /* stage 5: the level */

static Options case_options(const Case *c, const Cap *cap)
{
    Options options = toy_options(c->model);
    options.steps = STEPS;
    options.accumulate = c->accumulate;
    options.optimizer.kind = c->optimizer;
    options.optimizer.momentum = c->momentum;
    options.optimizer.weight_decay = 0.01f;
    options.lr = c->optimizer == OPTIMIZER_SGD ? 0.05f : 0.003f;
    options.ddp.first_bucket_cap_bytes = cap->first;
    options.ddp.bucket_cap_bytes = cap->others;
    options.sharding.level = zero;
    options.ddp.codec = codec_find(precision_name(c->sent_as));
    options.precision = c->precision;
    options.clip_grad_norm = c->clip_norm;
    return options;
}

static void train_steps(const Options *options, Replica *replica, Ddp *ddp, const Dataset *dataset, Loader *loader)
{
    for (long step = 0; step < STEPS; step++) {
        for (int k = 0; k < options->accumulate; k++) {
            const Batch *batch = loader_next(loader);
            ddp_before_forward(ddp, k + 1 == options->accumulate);
            Tensor *loss = replica_loss(replica, dataset, batch->inputs, batch->targets, batch->samples);
            ddp_before_backward(ddp, loss);
            replica_backward(replica, loss);
            ddp_after_backward(ddp, replica_gradient_scale(replica, batch->global_samples));
        }
        replica_update(replica, step);
        ddp_after_update(ddp);
    }
    ddp_gather_weights(ddp);
}

/* Weights that a stage may choose could be such that no gradient changes them: the same bits, and nothing was sent. */
static void expect_first_weights(const Case *c, const ParameterList *got, const ParameterList *first)
{
    for (int i = 0; i < got->count; i++) {
        const Tensor *tensor = &got->items[i]->tensor, *want = &first->items[i]->tensor;
        if (memcmp(tensor->data, want->data, (size_t)tensor_count(tensor) * sizeof(float)) == 0)
            continue;
        failures++;
        fprintf(stderr, "FAIL: stage %d, %s: before the first step %s is not rank 0's; usual cause: ddp_create() must "
                "broadcast every parameter from rank 0, and change no weight\n", ddp_stage_number, c->title,
                got->items[i]->name);
        return;
    }
}

static void expect_moved(const Case *c, const ParameterList *got, const ParameterList *first)
{
    for (int i = 0; i < got->count; i++) {
        const Tensor *tensor = &got->items[i]->tensor, *before = &first->items[i]->tensor;
        const size_t bytes = (size_t)tensor_count(tensor) * sizeof(float);
        if (!tensor->requires_grad || memcmp(tensor->data, before->data, bytes) != 0)
            continue;
        failures++;
        fprintf(stderr, "FAIL: stage %d, %s: %s has not moved in %d steps; usual cause: ddp.c writes weights after the "
                "first step, or its gradient is not in tensor.grad when the optimizer runs\n", ddp_stage_number,
                c->title, got->items[i]->name, STEPS);
        return;
    }
}

/* One training run; returns the hash of the weights. verify: also compares them with the run of one process by
 * shares. */
static uint64_t train_and_hash(const Case *c, const Cap *cap, bool verify)
{
    Options options = case_options(c, cap);
    options.verify = verify ? VERIFY_EXACT : VERIFY_NONE;
    Dataset dataset = toy_dataset(&options, SAMPLES);
    Replica replica;
    Sampler sampler;
    Model first; /* rank 0's, as it was drawn */
    replica_create(&replica, &options, judge_grades() ? toy_seed(pg) : options.seed + (uint64_t)pg_rank(pg), STEPS);
    options.ddp.sharding = &options.sharding;
    Ddp *ddp = ddp_create(pg, &replica.model.parameters, &replica.tape, &options.ddp);
    model_create(&first, &options.model, judge_grades() ? toy_seed_of_rank_0(pg) : options.seed);
    sampler_create(&sampler, SAMPLES, pg_world_size(pg), options.batch_size, options.seed, true, false);
    Loader *loader = loader_start(&dataset, &sampler, pg_rank(pg), options.accumulate, 0);
    float *initial = alloc_or_fault((size_t)parameters_total(&first.parameters) * sizeof *initial);
    parameters_to_host(&first.parameters, initial);
    optimizer_set_partition(&replica.optimizer, ddp_partition(ddp));
    ddp_gather_weights(ddp);
    give_start(&replica.model.parameters, &first.parameters, ddp_partition(ddp));
    expect_first_weights(c, &replica.model.parameters, &first.parameters);
    train_steps(&options, &replica, ddp, &dataset, loader);
    expect_moved(c, &replica.model.parameters, &first.parameters);
    replicas_check_equal(pg, &replica.model.parameters);
    if (verify && !verify_training(&options, pg, &dataset, &replica, initial, 0).passed) {
        failures++;
        if (pg_rank(pg) == 0)
            fprintf(stderr, "FAIL: stage %d, %s: differs from one process that adds the same shares in rank order, and "
                    "then multiplies by gradient_scale; usual cause, if all else is right: a rank's share "
                    "is scaled BEFORE the all-reduce, or in two factors, which rounds differently\n",
                    ddp_stage_number, c->title);
    }
    uint64_t hash = parameters_hash(&replica.model.parameters);
    loader_stop(loader);
    ddp_destroy(ddp);
    sampler_free(&sampler);
    replica_free(&replica);
    model_free(&first);
    dataset_close(&dataset);
    free(initial);
    runs++;
    return hash;
}

static void expect_hash(const Case *c, uint64_t got, uint64_t expected, const char *what)
{
    if (got == expected || pg_rank(pg) != 0)
        return;
    failures++;
    fprintf(stderr, "FAIL: stage %d, %s: %s gives %016" PRIx64 ", but one bucket per parameter, ordered, %016" PRIx64
            "\n", ddp_stage_number, c->title, what, got, expected);
}

static void set_title(Case *c)
{
    snprintf(c->title, sizeof c->title, "%s %s%s%s %s, %s gradients, %d micro-batch(es), %d rank(s)", c->model,
             c->optimizer == OPTIMIZER_ADAMW ? "adamw" : "sgd", c->momentum > 0 ? " momentum" : "",
             c->clip_norm > 0 ? " clipped" : "", precision_name(c->precision), precision_name(c->sent_as),
             c->accumulate, pg_world_size(pg));
}

static void run_case(Case c, FILE *file)
{
    set_title(&c);
    zero = 1;
    uint64_t first = train_and_hash(&c, &caps[0], true);
    for (int i = 1; i < CAPS && LOCKSTEP_STAGE > 1; i++)
        expect_hash(&c, train_and_hash(&c, &caps[i], false), first, caps[i].name);
    if (pg_world_size(pg) <= 2) { /* a + b = b + a: MPI cannot add in another order */
        pg->options.algorithm = ALLREDUCE_MPI;
        expect_hash(&c, train_and_hash(&c, &caps[2], false), first, "the default all-reduce");
        pg->options.algorithm = ALLREDUCE_ORDERED;
    }
    for (zero = 2; zero <= 3 && LOCKSTEP_STAGE == 5; zero++)
        for (int i = 0; i < CAPS; i += 2)
            expect_hash(&c, train_and_hash(&c, &caps[i], false), first, zero == 2 ? "--zero 2" : "--zero 3");
    if (file != NULL)
        fprintf(file, "%s: %016" PRIx64 "\n", c.title, first);
}

/* The same case at every level of sharding, at two caps, added up in two ways. */
static void run_case_of_product(Case c, FILE *file)
{
    set_title(&c);
    zero = 1;
    pg->options.algorithm = ALLREDUCE_ORDERED;
    uint64_t first = train_and_hash(&c, &caps[0], true);
    for (zero = 1; zero <= (LOCKSTEP_STAGE == 5 ? 3 : 1); zero++)
        for (int i = 0; i < CAPS; i += CAPS - 1)
            for (int in_memory = 0; in_memory <= 1; in_memory++) {
                char what[96];
                pg->options.algorithm = in_memory ? ALLREDUCE_SHM : ALLREDUCE_ORDERED;
                snprintf(what, sizeof what, "--zero %d, %s, %s", zero, caps[i].name, in_memory ? "shm" : "ordered");
                expect_hash(&c, train_and_hash(&c, &caps[i], false), first, what);
            }
    if (file != NULL)
        fprintf(file, "%s: %016" PRIx64 "\n", c.title, first);
}

/* What travels is float32 with one micro-batch, and as wide as the products' operands with two. */
static void run_product(const char *const *models, FILE *file)
{
    const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int i = 0; i < 3 * 3 * 2 * 3 * 2; i++) {
        int optimizer = i % 3;
        Case c = {.model = models[i / 36], .precision = precisions[i / 6 % 3], .accumulate = 1 + i / 18 % 2,
                  .optimizer = optimizer == 2 ? OPTIMIZER_ADAMW : OPTIMIZER_SGD,
                  .momentum = optimizer == 1 ? 0.9f : 0, .clip_norm = i / 3 % 2 * 0.05};
        c.sent_as = c.accumulate == 2 ? c.precision : DTYPE_F32;
        run_case_of_product(c, file);
    }
}

static void run_caps(const char *const *models, FILE *file)
{
    for (int m = 0; m < 3; m++)
        for (int optimizer = OPTIMIZER_SGD; optimizer <= OPTIMIZER_ADAMW; optimizer++)
            for (int accumulate = 1; accumulate <= (LOCKSTEP_STAGE < 4 ? 1 : 3); accumulate += 2)
                run_case((Case){.model = models[m], .optimizer = (OptimizerKind)optimizer, .accumulate = accumulate,
                                .momentum = optimizer == OPTIMIZER_SGD ? 0.9f : 0}, file);
}

int main(int argc, char **argv)
{
    const char *const models[] = {"mlp-toy", "mlp", "gpt"};
    const bool product = argc > 2 && strcmp(argv[2], "--product") == 0;
    job_set_program("bits");
    const bool for_grader = argc > 2 && strcmp(argv[1], "--judge") == 0;
    if (for_grader)
        judge_start();
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){ /* shm needs its memory from the start */
        .algorithm = product ? ALLREDUCE_SHM : ALLREDUCE_ORDERED, .timeout = tests_timeout(), .debug_collectives = true});
    const bool writes = pg_rank(pg) == 0 && argc > 1 && !for_grader && strcmp(argv[1], "-") != 0;
    FILE *file = writes ? fopen(argv[1], "w") : NULL;
    if (writes && file == NULL)
        die("%s: cannot be written", argv[1]);
    if (!in_judge())
        (product ? run_product : run_caps)(models, file);
    if (file != NULL)
        fclose(file);
    if (pg_rank(pg) == 0 && !in_judge())
        fprintf(stderr, "stage %d, %d rank(s): %ld runs, %d failure(s)\n", ddp_stage_number, pg_world_size(pg), runs,
                failures);
    if (for_grader && failures == 0)
        judge_case_is_over("test_same_bits");
    job_close(pg);
    return failures != 0;
}
