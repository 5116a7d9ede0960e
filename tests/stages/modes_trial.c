/* modes_trial.c: see modes_trial.h. */
#include "modes_trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "comm/group.h" /* to see whether all collectives were waited for */
#include "device/device.h"
#include "expect.h"
#include "given.h"
#include "lent.h"
#include "modes_state.h"
#include "mpi_main.h"
#include "toy_models.h"

const char trial_weights[] = "weights that the test compares";

static int64_t elements(const Trial *trial, int i)
{
    return tensor_count(&trial->whole.parameters.items[i]->tensor);
}

const Tensor *trial_tensor(const Trial *trial, int i)
{
    return &trial->ranks->parameters.items[i]->tensor;
}

int trial_trained(const Trial *trial)
{
    return trial->whole.parameters.count - (trial->mode->frozen >= 0);
}

size_t trial_bytes(const Trial *trial)
{
    int64_t all = parameters_total(&trial->whole.parameters);
    for (int i = 0; i < trial->whole.parameters.count; i++)
        all -= i == trial->mode->frozen ? elements(trial, i) : 0;
    return (size_t)all * sizeof(float);
}

int trial_plan(const Trial *trial, size_t *bytes)
{
    const int count = trial->whole.parameters.count;
    size_t *sizes = alloc_or_fault((size_t)count * sizeof *sizes);
    int *bucket_of = alloc_or_fault((size_t)count * sizeof *bucket_of), trained = 0;
    for (int i = count - 1; i >= 0; i--)
        if (i != trial->mode->frozen)
            sizes[trained++] = (size_t)elements(trial, i) * sizeof(float);
    int buckets = trained;
    if (LOCKSTEP_STAGE > 1)
        buckets = planned_buckets(sizes, trained, &trial->mode->options, bucket_of);
    memset(bytes, 0, (size_t)count * sizeof *bytes);
    for (int i = 0; i < trained; i++)
        bytes[LOCKSTEP_STAGE > 1 ? bucket_of[i] : trained - 1 - i] += sizes[i];
    free(sizes);
    free(bucket_of);
    return buckets;
}

/* A backward pass by each model: from now on its tape needs no more memory. */
static void warm_up(Trial *trial)
{
    void *gradients = parameters_allocate_gradients(&trial->ranks->parameters);
    const Mode mode = {.width = trial->mode->width, .branches = trial->mode->branches, .frozen = trial->mode->frozen,
                       .tied = trial->mode->tied, .biases = trial->mode->biases}; /* nothing is left out */
    fan_own_sum(trial->ranks, &mode, 0, 0, 0);
    fan_own_sum(&trial->whole, &mode, 0, 0, 0);
    parameters_zero_gradients(&trial->ranks->parameters);
    parameters_free_gradients(&trial->ranks->parameters, gradients);
}

/* Inside trial_modes(): of the second model; and what a third one is like, which comes and goes. */
static Trial *other;
static Mode small;

static const GradientCodec *other_codec(const Mode *mode)
{
    return codec_find(LOCKSTEP_STAGE >= 4 && mode->options.codec->dtype == DTYPE_F32 ? "bf16" : "fp32");
}

void trial_modes(ProcessGroup *pg, ModeChoice choice, void (*check)(const Mode *mode))
{
    Mode *modes = alloc_or_fault(MOST_MODES * sizeof *modes);
    const int count = modes_table(modes, choice, pg_world_size(pg), MODES_DRAWN);
    small = modes[0];
    small.width = small.branches = 2, small.frozen = -1, small.tied = false;
    small.sharding = (ShardingOptions){.level = 2};
    small.options.find_unused_parameters = small.options.static_graph = false;
    small.options.codec = other_codec(&modes[count / 2]);
    other = trial_create(pg, &small);
    for (int i = 0; i < count; i++)
        check(&modes[i]);
    trial_free(other);
    other = NULL;
    free(modes);
}

void trial_set_link(ProcessGroup *pg, const Mode *mode, double latency)
{
    pg_set_options(pg, &(ProcessGroupOptions){
        .algorithm = mode->algorithm, .timeout = tests_timeout(), .wire_gbps = latency > 0 ? 10 : 0,
        .wire_latency = latency, .debug_collectives = latency > 0 && mode->options.rebuild_buckets});
}

Trial *trial_prepare(ProcessGroup *pg, const Mode *mode)
{
    Trial *trial = alloc_or_fault(sizeof *trial);
    *trial = (Trial){.pg = pg, .mode = mode};
    pg_set_algorithm(pg, mode->algorithm);
    trial->ranks = lend(sizeof *trial->ranks);
    trial->begins_as_rank_0 = pg_rank(pg) == 0 || (pg_rank(pg) == 2 && mode->seed % 2 == 0);
    fan_create(trial->ranks, mode, mode->seed + (trial->begins_as_rank_0 ? 0 : (uint64_t)pg_rank(pg)));
    fan_create(&trial->whole, mode, mode->seed);
    trial->whole_gradients = parameters_allocate_gradients(&trial->whole.parameters);
    trial->size = alloc_or_fault((size_t)trial->whole.parameters.count * sizeof *trial->size);
    for (int i = 0; i < trial->whole.parameters.count; i++)
        trial->size[i] = alloc_or_fault((size_t)elements(trial, i) * sizeof(float));
    warm_up(trial);
    return trial;
}

static void pass_of(Trial *model, bool last)
{
    Tape *tape = &model->ranks->tape;
    ddp_before_forward(model->ddp, last);
    tape_begin(tape, true);
    Tensor *loss = fan_loss(model->ranks, model->mode, pg_rank(model->pg), 0, 0);
    ddp_before_backward(model->ddp, loss);
    tape_backward(tape, loss, 1);
    ddp_after_backward(model->ddp, 1);
    parameters_zero_gradients(&model->ranks->parameters);
}

static void create(Trial *trial)
{
    DdpOptions options = trial->mode->options;
    options.sharding = &trial->mode->sharding;
    trial->ddp = ddp_create(trial->pg, &trial->ranks->parameters, &trial->ranks->tape, &options);
    CHECK(trial->ddp != NULL, "ddp_create() returned NULL");
}

static void start(Trial *trial)
{
    long *versions = state_versions(trial);
    create(trial);
    state_expect_marked(trial, versions);
    free(versions);
    give_start(&trial->ranks->parameters, &trial->whole.parameters, ddp_partition(trial->ddp));
}

/* What a stage keeps in static variables is now another model's: of another type, and with a shorter life. Its products
 * are in 16 bits, which may round what is gathered at level 3, but not what the model has in the end. Then it is
 * trained again, and has gradients before. */
static void visit(const Trial *trial)
{
    Mode mode = small;
    mode.algorithm = trial->mode->algorithm; /* trial_prepare() makes it the group's */
    mode.options.codec = other_codec(trial->mode);
    mode.sharding.level = trial->mode->sharding.level;
    snprintf(mode.title, sizeof mode.title, "another model, --zero %d, products in bf16", mode.sharding.level);
    Trial *visitor = trial_prepare(trial->pg, &mode);
    visitor->ranks->tape.precision = DTYPE_BF16;
    start(visitor);
    pass_of(visitor, true);
    ddp_after_update(visitor->ddp);
    ddp_destroy(visitor->ddp);
    if (LOCKSTEP_STAGE == 5)
        state_expect_own_weights(visitor);
    void *gradients = parameters_allocate_gradients(&visitor->ranks->parameters);
    memset(gradients, 1, parameters_gradient_bytes(&visitor->ranks->parameters));
    mode.sharding.level = 1;
    create(visitor);
    state_expect_fresh_gradients(visitor);
    device_free(gradients);
    pass_of(visitor, true);
    trial_free(visitor);
}

void trial_start(Trial *trial)
{
    start(trial);
    if (other == NULL)
        return;
    visit(trial);
    pass_of(other, LOCKSTEP_STAGE < 4); /* what it keeps for earlier micro-batches is made before the trial's */
}

Trial *trial_create(ProcessGroup *pg, const Mode *mode)
{
    Trial *trial = trial_prepare(pg, mode);
    trial_start(trial);
    return trial;
}

void trial_free(Trial *trial)
{
    if (trial->ddp != NULL)
        ddp_destroy(trial->ddp);
    if (trial->keeps_weights)
        state_expect_own_weights(trial); /* take_weights() has given both models the same */
    for (int i = 0; i < trial->whole.parameters.count; i++)
        free(trial->size[i]);
    free(trial->size);
    parameters_free_gradients(&trial->whole.parameters, trial->whole_gradients);
    fan_free(trial->ranks);
    take_back(trial->ranks);
    fan_free(&trial->whole);
    free(trial);
}

/* The factor in ddp.c. Loss scales and unequal numbers of terms make it another one in each step, and it may be 0; only
 * that of the last micro-batch counts. */
static float scale_of(const Trial *trial, int step, int k)
{
    const int micro_batches = mode_micro_batches(trial->mode, step);
    const bool last = k == micro_batches - 1;
    const float of_last = step % 7 == 6 ? 0 : 0.37f + 0.11f * (float)(step % 7);
    return (last ? of_last : 3) / (float)(pg_world_size(trial->pg) * micro_batches);
}

static float last_scale(const Trial *trial, int step)
{
    return scale_of(trial, step, mode_micro_batches(trial->mode, step) - 1);
}

void trial_micro_batch(Trial *trial, int step, int k)
{
    Tape *tape = &trial->ranks->tape;
    state_expect_weights(trial, step, k);
    ddp_before_forward(trial->ddp, k == mode_micro_batches(trial->mode, step) - 1);
    if (LOCKSTEP_STAGE > 3 && (!trial->others_send || step % 2 == 0))
        pass_of(other, false); /* never the last one, so nothing is sent from stage 4 on */
    tape_begin(tape, true);
    Tensor *loss = fan_loss(trial->ranks, trial->mode, pg_rank(trial->pg), step, k);
    if (trial->before_backward != NULL)
        trial->before_backward(true);
    ddp_before_backward(trial->ddp, loss);
    if (trial->before_backward != NULL)
        trial->before_backward(false);
    tape_backward(tape, loss, 1);
    if (trial->after_events != NULL)
        trial->after_events();
    if (LOCKSTEP_STAGE > 3 && trial->others_send)
        pass_of(other, true); /* both models' sums are under way; in odd steps it has no gradients before */
    ddp_after_backward(trial->ddp, scale_of(trial, step, k));
    if (LOCKSTEP_STAGE < 5) /* there gathers are under way */
        worker_check_all_waited_for(trial->pg, "ddp_after_backward() returns");
}

/* ---- what is expected ---- */

/* Leaves in whole's gradients what every rank must have after the step. */
static void compute_expected(Trial *trial, int step)
{
    const int count = trial->whole.parameters.count;
    const float scale = last_scale(trial, step);
    float **sum = alloc_or_fault((size_t)count * sizeof *sum);
    for (int i = 0; i < count; i++) {
        sum[i] = device_alloc((size_t)elements(trial, i) * sizeof(float));
        memset(trial->size[i], 0, (size_t)elements(trial, i) * sizeof(float));
    }
    fan_expected(&trial->whole, trial->mode, pg_world_size(trial->pg), step, sum, trial->size);
    for (int i = 0; i < count; i++) {
        float *gradient = trial->whole.parameters.items[i]->tensor.grad;
        for (int64_t k = 0; k < elements(trial, i) && gradient != NULL; k++)
            gradient[k] = sum[i][k] * scale;
        device_free(sum[i]);
    }
    free(sum);
}

/* Of a sum of such a size: the part that 16 bits cannot hold. fp16's least numbers are 6e-8 apart. */
static float tolerance(DType dtype, float size)
{
    const float part = dtype == DTYPE_BF16 ? 0x1p-7f : dtype == DTYPE_F16 ? 0x1p-10f : 1e-5f;
    return part * size + (dtype == DTYPE_F16 ? 1e-6f : 1e-7f);
}

/* rounding: the difference is no larger than that of one more rounding to the codec's type. */
static const char *usual_cause(float got, float want, bool rounding)
{
    if (!isfinite(want))
        return "a NaN or an infinity of one rank is hidden, but --on-nan and the loss scale must see it";
    if (got == 0)
        return "the bucket was not sent, or was made again after the sum";
    if (rounding)
        return "each rank's own sum over micro-batches is rounded once, as options.codec says (ties to even), when it "
               "is sent; the factor comes after the sum";
    return "a rank's part of the sum is missing, is of an earlier step or another bucket (memory that both are sent "
           "from), was sent before it was complete, or is scaled by another step's factor";
}

static void expect_near(const Trial *trial, int i, int64_t begin, int64_t count, const float *got, int step)
{
    const float *want = (const float *)trial->whole.parameters.items[i]->tensor.grad + begin;
    const float *size = trial->size[i] + begin, scale = last_scale(trial, step);
    const DType dtype = trial->mode->options.codec->dtype;
    CHECK(got != want, "the gradient of %s is the memory with which the test compares it",
          trial->whole.parameters.items[i]->name);
    for (int64_t k = 0; k < count; k++) {
        if (!isfinite(want[k]) && step != 2) /* where the model plants what is not finite */
            fail_msg("rank %d: the gradient of %s in step %d cannot be finite, because of weights that the stage has "
                     "left (%s)", pg_rank(trial->pg), trial->ranks->parameters.items[i]->name, step + 1,
                     trial->mode->title);
        const bool rounding = fabsf(got[k] - want[k]) <= tolerance(dtype, size[k]) * scale;
        if (got[k] == want[k] || (isfinite(want[k]) ? rounding && !trial->exact : !isfinite(got[k])))
            continue;
        fail_msg("rank %d: element %lld of the gradient of %s in step %d is %.9g, not %.9g (%s); usual cause: %s",
                 pg_rank(trial->pg), (long long)(begin + k), trial->ranks->parameters.items[i]->name, step + 1,
                 (double)got[k], (double)want[k], trial->mode->title, usual_cause(got[k], want[k], rounding));
    }
}

static void expect_own_sum(Trial *trial, int step, int last)
{
    fan_own_sum(&trial->whole, trial->mode, pg_rank(trial->pg), step, last);
    for (int i = 0; i < trial->ranks->parameters.count; i++) {
        const float *got = trial_tensor(trial, i)->grad, *want = trial->whole.parameters.items[i]->tensor.grad;
        CHECK(got == NULL || got != want, "the gradient of %s is the memory with which the test compares it",
              trial->whole.parameters.items[i]->name);
        for (int64_t k = 0; k < elements(trial, i) && got != NULL && want != NULL; k++)
            if (!(fabsf(got[k] - want[k]) <= 1e-5f * fabsf(want[k]) + 1e-6f))
                fail_msg("rank %d: after micro-batch %d of %d in step %d, element %lld of the gradient of %s is %g, "
                         "not %g, this rank's own sum (%s); usual cause: a micro-batch before the last one is summed "
                         "over ranks, or scaled", pg_rank(trial->pg), last + 1, mode_micro_batches(trial->mode, step),
                         step + 1,
                         (long long)k, trial->ranks->parameters.items[i]->name, (double)got[k], (double)want[k],
                         trial->mode->title);
    }
}

void trial_expect_gradients(Trial *trial, int step, int k)
{
    const Partition *partition = ddp_partition(trial->ddp);
    if (k < mode_micro_batches(trial->mode, step) - 1) {
        expect_own_sum(trial, step, k);
        return;
    }
    state_expect_level(trial);
    state_expect_partition(trial);
    compute_expected(trial, step);
    give_factor(&trial->ranks->parameters, &trial->whole.parameters, partition);
    for (int i = 0; i < trial->ranks->parameters.count; i++) {
        if (i == trial->mode->frozen)
            continue;
        state_expect_use(trial, i, step);
        if (partition != NULL)
            expect_near(trial, i, partition->slices[i].begin, partition->slices[i].count, partition->slices[i].grad, step);
        else if (trial_tensor(trial, i)->grad == NULL)
            fail_msg("%s has no memory for its gradient (%s)", trial->ranks->parameters.items[i]->name,
                     trial->mode->title);
        else
            expect_near(trial, i, 0, elements(trial, i), trial_tensor(trial, i)->grad, step);
    }
}
