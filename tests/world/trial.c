/* trial.c: the loop. */
#include "world/trial.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "world/suspects.h"

const Mode *trial_mode;

typedef struct Trial {
    const Mode *mode;
    const TrialHooks *hooks;
} Trial;

static void check_all_weights(const Toy *toy, int step, const char *when)
{
    for (int p = 0; p < toy->list.count; p++) {
        const Parameter *parameter = toy->list.items[p];
        const float *values = parameter->tensor.data;
        for (int64_t i = 0; i < tensor_count(&parameter->tensor); i = toy_next(i, tensor_count(&parameter->tensor)))
            if (values == NULL || values[i] != toy_weight(toy->mode, step, p, i))
                suspects_of_weight(toy, parameter, i, step, when);
    }
}

/* Stage 5 has sums in this rank's slices; the other stages have them everywhere. */
static void check_sums(const Toy *toy, Ddp *ddp)
{
    const Partition *partition = ddp_partition(ddp);
    for (int p = 0; p < toy->list.count; p++) {
        const Parameter *parameter = toy->list.items[p];
        if (!parameter->tensor.requires_grad)
            continue;
        const Slice whole = {.count = tensor_count(&parameter->tensor), .grad = parameter->tensor.grad};
        const Slice slice = partition != NULL ? partition->slices[p] : whole;
        if (slice.count > 0 && slice.grad == NULL)
            world_fault("%s has no gradient after ddp_after_backward(): its pointer is NULL", parameter->name);
        for (int64_t i = 0; i < slice.count; i = toy_next(i, slice.count))
            if (slice.grad[i] != TOY_SCALE * toy_sum(toy->mode, toy->step, p, slice.begin + i))
                suspects_of_gradient(toy, parameter, slice.begin + i, slice.grad[i]);
        if (parameter->has_gradient != toy_is_used(toy->mode, toy->step, p))
            world_fault("has_gradient of %s is %s after the step, but %s has used it: the optimizer must %s it",
                        parameter->name, parameter->has_gradient ? "true" : "false",
                        parameter->has_gradient ? "no rank" : "a rank", parameter->has_gradient ? "skip" : "update");
    }
}

/* Before the last micro-batch, each gradient is this rank's own sum, unscaled. */
static void check_shares(const Toy *toy)
{
    for (int p = 0; p < toy->list.count; p++) {
        const Parameter *parameter = toy->list.items[p];
        const float *grad = parameter->tensor.grad;
        const int64_t count = grad != NULL && parameter->tensor.requires_grad ? tensor_count(&parameter->tensor) : 0;
        for (int64_t i = 0; i < count; i = toy_next(i, count))
            if (grad[i] != toy_share(toy->mode, toy->rank, toy->step, toy->micro_batch + 1, p, i))
                world_fault("element %lld of the gradient of %s is %g after micro-batch %d; this rank's own sum is %g: "
                            "before the last micro-batch, nothing is sent and nothing scaled", (long long)i,
                            parameter->name, (double)grad[i], toy->micro_batch,
                            (double)toy_share(toy->mode, toy->rank, toy->step, toy->micro_batch + 1, p, i));
    }
}

static void update(Toy *toy, Ddp *ddp)
{
    const Partition *partition = ddp_partition(ddp);
    for (int p = 0; p < toy->list.count; p++) {
        Parameter *parameter = toy->list.items[p];
        const Slice whole = {.count = tensor_count(&parameter->tensor), .weight = parameter->tensor.data,
                             .grad = parameter->tensor.grad};
        const Slice slice = partition != NULL ? partition->slices[p] : whole;
        if (!parameter->tensor.requires_grad || !parameter->has_gradient)
            continue;
        for (int64_t i = 0; i < slice.count; i++)
            slice.weight[i] -= TOY_RATE * slice.grad[i];
        parameter_changed(parameter);
    }
    ddp_after_update(ddp);
    parameters_zero_gradients(&toy->list);
}

static void train_micro_batch(Toy *toy, Ddp *ddp, int step, int micro_batch)
{
    log_set_step(toy->rank, step, micro_batch);
    job_set_step(step); /* this rank runs already */
    world_log(LOG_FORWARD, "");
    ddp_before_forward(ddp, micro_batch == toy->mode->micro_batches - 1);
    Tensor *loss = toy_forward(toy, step, micro_batch);
    ddp_before_backward(ddp, loss);
    watch_events(&toy->tape); /* again, if the stage has listened anew */
    world_log(LOG_BACKWARD, "");
    tape_backward(&toy->tape, loss, 1);
    world_log(LOG_BACKWARD_END, "");
    ddp_after_backward(ddp, TOY_SCALE);
    world_log(LOG_AFTER, "");
}

static void train_step(Toy *toy, Ddp *ddp, int step)
{
    for (int m = 0; m < toy->mode->micro_batches; m++) {
        train_micro_batch(toy, ddp, step, m);
        if (m < toy->mode->micro_batches - 1)
            check_shares(toy);
    }
    check_sums(toy, ddp);
}

static Ddp *create(Toy *toy, ProcessGroup *pg)
{
    const Mode *mode = toy->mode;
    const ShardingOptions sharding = {.level = mode->level, .shard_ranks = mode->shard_ranks,
                                      .bucket_per_layer = mode->bucket_per_layer};
    const DdpOptions options = {.bucket_cap_bytes = mode->cap, .first_bucket_cap_bytes = mode->first_cap,
                                .rebuild_buckets = mode->rebuild, .find_unused_parameters = mode->find_unused,
                                .static_graph = mode->static_graph, .codec = codec_find(mode->wire),
                                .sharding = &sharding};
    return ddp_create(pg, &toy->list, &toy->tape, &options);
}

static void run_rank(ProcessGroup *pg, void *argument)
{
    const Trial *trial = argument;
    const TrialHooks *hooks = trial->hooks;
    Toy toy;
    toy_create(&toy, trial->mode, pg_rank(pg));
    if (hooks->before_create != NULL)
        hooks->before_create(&toy);
    Ddp *ddp = create(&toy, pg);
    watch_events(&toy.tape);
    if (trial->mode->level < 3)
        check_all_weights(&toy, 0, "after ddp_create()");
    if (hooks->created != NULL)
        hooks->created(&toy, ddp);
    for (int step = 0; step < trial->mode->steps; step++) {
        train_step(&toy, ddp, step);
        if (hooks->after_backward != NULL)
            hooks->after_backward(&toy, ddp, pg);
        update(&toy, ddp);
        world_log(LOG_STEP_END, "");
        if (hooks->step_over != NULL)
            hooks->step_over(&toy, ddp, pg);
    }
    ddp_gather_weights(ddp);
    check_all_weights(&toy, trial->mode->steps, "at the end");
    unwatch_events(&toy.tape);
    ddp_destroy(ddp);
    check_all_weights(&toy, trial->mode->steps, "after ddp_destroy()");
    if (pg_shared_bytes(pg) != 0)
        world_fault("%zu bytes of pg_alloc_shared() are left after ddp_destroy()", pg_shared_bytes(pg));
    if (toy.tape.listener.self != NULL)
        world_fault("ddp_destroy() still listens to the tape");
    toy_free(&toy);
}

void trial_run(const Mode *mode, const TrialHooks *hooks)
{
    static const TrialHooks none;
    Trial trial = {.mode = mode, .hooks = hooks != NULL ? hooks : &none};
    trial_mode = mode;
    world_run(mode->ranks, mode->seed, run_rank, &trial);
    trial_mode = NULL;
}
