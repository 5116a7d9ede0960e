/* verify.c: see verify.h. */
#include "train/loop/verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "data/sampler.h"
#include "device/device.h"

/* The one process that computes the work of all ranks. */
typedef struct Reference {
    const Dataset *dataset;
    Replica replica;
    Sampler sampler;
    float *gradients;  /* of all parameters, for one share (device); owned */
    float *sums;       /* exact mode: of the shares' gradients so far (device); owned */
    float *host_sums;  /* the same for one host's shares; NULL: there is only one host; owned */
    int64_t elements;  /* of each of the three */
    int ranks_per_host; /* ranks whose shares are added first (hierarchical, --shard-ranks); else: all ranks */
    int64_t *indices, *places; /* these four have room for a global batch (host); owned */
    void *inputs, *targets;
} Reference;

/* Creates the reference in the state that the ranks had before the first step. */
static void reference_create(Reference *reference, const Options *options, const Dataset *dataset,
                             const ProcessGroup *pg, long total_steps, const float *initial)
{
    const int world_size = pg_world_size(pg);
    const bool by_host = all_reduce_algorithm(pg_algorithm(pg), options->ddp.codec->dtype) == ALLREDUCE_HIERARCHICAL;
    *reference = (Reference){.dataset = dataset, .ranks_per_host = world_size / (by_host ? pg_hosts(pg) : 1)};
    if (options->sharding.shard_ranks > 0)
        reference->ranks_per_host = options->sharding.shard_ranks;
    replica_create(&reference->replica, options, options->seed, total_steps);
    parameters_from_host(&reference->replica.model.parameters, initial);
    ParameterList *parameters = &reference->replica.model.parameters;
    reference->gradients = parameters_allocate_gradients(parameters);
    reference->elements = (int64_t)(parameters_gradient_bytes(parameters) / sizeof(float));
    sampler_create(&reference->sampler, dataset->size, world_size, options->batch_size, options->seed, true,
                   options->drop_last);
    if (options->rank_samples_count > 0)
        sampler_set_rank_samples(&reference->sampler, options->rank_samples);
    reference->replica.resumes_quietly = true;
    replica_make_codec(&reference->replica, 0, world_size, world_size);
    if (options->resume != NULL) /* the optimizer's state and the place; the weights are the same as `initial` */
        replica_resume(&reference->replica, options->resume, &reference->sampler);
    int64_t epoch = reference->sampler.length;
    size_t room = (size_t)(options->batch_size < epoch ? options->batch_size : epoch);
    reference->indices = alloc_or_fault(room * sizeof *reference->indices);
    reference->places = alloc_or_fault(room * sizeof *reference->places);
    reference->inputs = alloc_or_fault(room * dataset->input_bytes);
    reference->targets = alloc_or_fault(room * dataset->target_bytes);
    if (options->verify == VERIFY_EXACT)
        reference->sums = device_alloc(parameters_gradient_bytes(parameters));
    if (options->verify == VERIFY_EXACT && reference->ranks_per_host < world_size)
        reference->host_sums = device_alloc(parameters_gradient_bytes(parameters));
}

static void reference_free(Reference *reference)
{
    device_free(reference->host_sums);
    device_free(reference->sums);
    device_free(reference->gradients);
    sampler_free(&reference->sampler);
    free(reference->indices);
    free(reference->places);
    free(reference->inputs);
    free(reference->targets);
    replica_free(&reference->replica);
}

/* Adds the gradient of the summed loss over `count` samples (reference->indices, at reference->places). */
static void add_gradient(Reference *reference, int64_t count)
{
    dataset_get(reference->dataset, reference->sampler.epoch, reference->indices, count, reference->inputs,
                reference->targets);
    reference->replica.counted_terms += dataset_terms(reference->dataset, reference->targets, count);
    Tensor *loss = replica_loss(&reference->replica, reference->dataset, reference->inputs, reference->targets, count);
    replica_backward(&reference->replica, loss);
}

/* note: exact-reference
 * Computes the sum of N ranks with --allreduce ordered: each share's gradient from zero, micro-batch by micro-batch;
 * then adds the shares in rank order, in float32 (hierarchical: those of each host, and then the hosts' sums). Leaves
 * the sum in the parameters' gradients. A codec that sends 16 bits rounds each share, and also the sum, which is sent
 * back.
 *
 * note: minus-zero
 * The first share is copied to the sum of the shares, because 0 + x is not always x: -0 would become 0. */
static void gradient_by_shares(Reference *reference, int64_t step)
{
    const size_t bytes = (size_t)reference->elements * sizeof(float);
    const int accumulate = reference->replica.options->accumulate, L = reference->ranks_per_host;
    const GradientCodec *codec = replica_codec(&reference->replica);
    for (int rank = 0; rank < reference->sampler.world_size; rank++) {
        parameters_zero_gradients(&reference->replica.model.parameters);
        for (int k = 0; k < accumulate; k++) {
            sampler_places(&reference->sampler, step, rank, k, accumulate, reference->places);
            add_gradient(reference, sampler_indices(&reference->sampler, step, rank, k, accumulate,
                                                    reference->indices));
        }
        if (codec->round_share != NULL)
            codec->round_share(codec, rank, reference->gradients, reference->elements);
        float *sums = rank < L ? reference->sums : reference->host_sums; /* the first host adds to the result */
        if (rank % L == 0)
            device_copy(sums, reference->gradients, bytes);
        else
            device_accumulate(sums, reference->gradients, reference->elements);
        if (rank >= L && rank % L == L - 1)
            device_accumulate(reference->sums, sums, reference->elements);
    }
    device_copy(reference->gradients, reference->sums, bytes);
    if (codec->round_sum != NULL)
        codec->round_sum(codec, -1, reference->gradients, reference->elements);
}

/* Adds the gradient of all ranks' samples at once. With batch norm, adds it micro-batch by micro-batch, in rank order,
 * because a batch norm takes its statistics over one micro-batch of all ranks. */
static void whole_gradient(Reference *reference, int64_t step)
{
    const Options *options = reference->replica.options;
    const Sampler *sampler = &reference->sampler;
    const int K = options->accumulate;
    int64_t count = 0;
    if (options->model.norm == NORM_NONE) {
        count = sampler_whole_batch(sampler, step, reference->indices);
        for (int64_t i = 0; i < count; i++)
            reference->places[i] = i;
        add_gradient(reference, count);
        return;
    }
    for (int k = 0; k < K; k++, count = 0) {
        for (int rank = 0; rank < sampler->world_size; rank++) {
            sampler_places(sampler, step, rank, k, K, reference->places + count);
            count += sampler_indices(sampler, step, rank, k, K, reference->indices + count);
        }
        add_gradient(reference, count);
    }
}

static void reference_step(Reference *reference, long step)
{
    Sampler *sampler = &reference->sampler;
    int64_t step_of_epoch;
    sampler_set_epoch(sampler, sampler_epoch_of_step(sampler, step, &step_of_epoch));
    reference->replica.counted_terms = 0;
    const int64_t global_samples = sampler_global_count(sampler, step_of_epoch);
    replica_set_samples(&reference->replica, step, reference->places, global_samples);
    if (reference->replica.options->verify == VERIFY_EXACT)
        gradient_by_shares(reference, step_of_epoch);
    else
        whole_gradient(reference, step_of_epoch);
    float scale = replica_gradient_scale(&reference->replica, global_samples);
    device_scale(reference->gradients, scale, reference->elements);
    replica_update(&reference->replica, step);
}

static void compare_parameter(const Parameter *parameter, const float *got, const float *expected, double tolerance,
                              Verification *result)
{
    double worst = 0;
    int64_t differing = 0;
    tolerance *= parameter->is_buffer ? VERIFY_BUFFERS : 1;
    for (int64_t i = 0; i < tensor_count(&parameter->tensor); i++) {
        double difference = fabs((double)got[i] - (double)expected[i]);
        if (!(difference <= worst)) /* NaN counts as the largest difference */
            worst = isnan(difference) ? INFINITY : difference;
        differing += memcmp(&got[i], &expected[i], sizeof got[i]) != 0;
    }
    bool same = tolerance > 0 ? worst <= tolerance : differing == 0 && worst == 0; /* two equal NaN fail, too */
    printf("  %-40s %12.3e   %s\n", parameter->name, worst, same ? "same" : "DIFFERENT");
    if (parameter->is_buffer && same)
        return; /* max_abs_diff is about weights only */
    bool first_to_differ = differing > 0 && result->differing == 0; /* perhaps only in the sign of a zero */
    if (worst > result->max_abs_diff || first_to_differ || result->worst_parameter[0] == '\0') {
        result->max_abs_diff = worst;
        snprintf(result->worst_parameter, sizeof result->worst_parameter, "%s", parameter->name);
    }
    result->differing += differing;
    result->passed = result->passed && same;
}

/* Rounding alone can make a correct stage fail. The advice helps to distinguish it from a mistake. */
static void print_advice(const Options *options, const Verification *result)
{
    if (result->passed || options->verify != VERIFY_WHOLE_BATCH)
        return;
    if (options->model.norm != NORM_NONE)
        printf("advice: batch norm of few samples enlarges rounding, by up to 300 in each layer, and the last batch of "
               "an epoch may have few: compare with another --batch-size\n");
    else if (options->optimizer.kind == OPTIMIZER_ADAMW)
        printf("advice: this may be rounding, which AdamW enlarges, up to the learning rate, if a gradient is near 0; "
               "compare whole batches with --optimizer sgd, and prove AdamW with --verify exact --allreduce ordered "
               "(notes/equality.md)\n");
    else
        printf("advice: a mistake usually shows after one step (--steps 1); rounding grows from step to step, faster "
               "with a larger --lr, and in jumps with --activation relu; --verify exact --allreduce ordered excludes "
               "rounding (notes/equality.md)\n");
}

static void compare(const Reference *reference, const ParameterList *trained, Verification *result)
{
    const Options *options = reference->replica.options;
    const ParameterList *expected = &reference->replica.model.parameters;
    size_t total = (size_t)parameters_total(trained);
    float *got = alloc_or_fault(total * sizeof *got), *want = alloc_or_fault(total * sizeof *want);
    parameters_to_host(trained, got);
    parameters_to_host(expected, want);
    result->passed = true;
    result->tolerance = options->verify == VERIFY_EXACT            ? 0
                        : options->precision == DTYPE_F32 && !options->tf32 ? VERIFY_TOLERANCE
                                                                            : VERIFY_TOLERANCE_HALF;
    printf("\nWeights of %d rank(s) against one process, %s:\n", reference->sampler.world_size,
           options->verify == VERIFY_EXACT ? "every bit (the ranks' shares one after the other)" : "on whole batches");
    printf("  %-40s %12s   verdict\n", "parameter", "max |diff|");
    size_t offset = 0;
    for (int i = 0; i < trained->count; i++) {
        compare_parameter(trained->items[i], got + offset, want + offset, result->tolerance, result);
        offset += (size_t)tensor_count(&trained->items[i]->tensor);
    }
    printf("verify: %s, max |diff| %.3e in %s, ", result->passed ? "passed" : "FAILED", result->max_abs_diff,
           result->worst_parameter);
    if (result->tolerance > 0)
        printf("allowed %.0e\n", result->tolerance);
    else
        printf("%lld of %zu elements differ in some bit\n", (long long)result->differing, total);
    print_advice(options, result);
    free(got);
    free(want);
}

Verification verify_training(const Options *options, ProcessGroup *pg, const Dataset *dataset, Replica *trained,
                             const float *initial, long first_step)
{
    Verification result = {0};
    if (pg_rank(pg) == 0) {
        local_work_begin("trains", "the process to compare with (--verify)");
        Reference reference;
        reference_create(&reference, options, dataset, pg, trained->total_steps, initial);
        for (long step = first_step; step < trained->total_steps; step++)
            reference_step(&reference, step);
        compare(&reference, &trained->model.parameters, &result);
        reference_free(&reference);
        local_work_end();
    }
    _Static_assert(sizeof result % sizeof(int32_t) == 0, "the result travels as int32 words");
    pg_broadcast(pg, &result, sizeof result / sizeof(int32_t), DTYPE_I32, 0, "result of the verification");
    return result;
}
