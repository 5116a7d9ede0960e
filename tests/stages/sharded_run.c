/* sharded_run.c: see sharded_run.h. */
#include "sharded_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "device/device.h"
#include "given.h"
#include "lent.h"
#include "mpi_main.h"

enum { MOST_SECONDS = 8 /* less than a collective may take in grading */ };

Seen seen = {.held_bucket = -1};

/* ---- collectives ---- */

void seen_wait_for(atomic_bool *flag)
{
    const double deadline = now_seconds() + MOST_SECONDS;
    while (!atomic_load(flag) && now_seconds() < deadline)
        sleep_seconds(1e-4);
    if (!atomic_load(flag))
        atomic_store(&seen.gave_up, true);
}

static int bucket_number(const Collective *c)
{
    const char *number = strstr(c->carries, "bucket ");
    return number != NULL ? atoi(number + strlen("bucket ")) : -1;
}

static void called(void *self, const Collective *c)
{
    if (bucket_number(c) < 0)
        return;
    if (c->operation == OP_ALL_GATHER && seen.gather_seconds > 0)
        sleep_seconds(seen.gather_seconds);
    if (c->operation != seen.held_operation || bucket_number(c) != seen.held_bucket)
        return;
    atomic_store(&seen.has_come, true);
    seen_wait_for(&seen.released);
}

static void done(void *self, const Collective *c)
{
    const size_t used = strlen(seen.log), bytes = collective_bytes(c, pg_world_size(seen.pg));
    const char *names[] = {[OP_BARRIER] = "B", [OP_BROADCAST] = "BC", [OP_ALL_REDUCE] = "AR", [OP_ALL_GATHER] = "AG",
                           [OP_REDUCE_SCATTER] = "RS"};
    if (!pg_is_measuring(seen.pg))
        return;
    if (bucket_number(c) >= 0)
        snprintf(seen.log + used, LOG_ROOM - used, "%s%d ", names[c->operation], bucket_number(c));
    else
        snprintf(seen.log + used, LOG_ROOM - used, "%s ", names[c->operation]);
    seen.gathered += c->operation == OP_ALL_GATHER ? bytes : 0;
    seen.scattered += c->operation == OP_REDUCE_SCATTER ? bytes : 0;
}

void seen_start(ProcessGroup *pg)
{
    seen.pg = pg;
    pg_observe(pg, &(GroupObserver){.called = called, .done = done});
}

void seen_forget(void)
{
    pg_barrier(seen.pg); /* the communication thread has nothing to do afterwards */
    seen.log[0] = '\0';
    seen.gathered = seen.scattered = 0;
}

void seen_hold(Operation operation, int bucket)
{
    atomic_store(&seen.has_come, false);
    atomic_store(&seen.released, false);
    seen.held_operation = operation;
    seen.held_bucket = bucket;
}

/* ---- the model ---- */

Options run_options(const char *model, int zero)
{
    Options options = toy_options(model);
    options.sharding.level = zero;
    options.sharding.bucket_per_layer = true;
    options.optimizer.kind = OPTIMIZER_ADAMW;
    return options;
}

bool run_has_level(int zero)
{
    return given_level() == 0 || given_level() == zero;
}

Run *run_create(const Options *options)
{
    Run *run = alloc_or_fault(sizeof *run);
    run->options = *options;
    run->dataset = toy_dataset(&run->options, 64);
    run->inputs = alloc_or_fault(SAMPLES * run->dataset.input_bytes);
    run->targets = alloc_or_fault(SAMPLES * run->dataset.target_bytes);
    run->replica = replica_lend(&run->options, 1 + (uint64_t)pg_rank(seen.pg), 100);
    run->options.ddp.sharding = &run->options.sharding;
    run->ddp = ddp_create(seen.pg, &run->replica->model.parameters, &run->replica->tape, &run->options.ddp);
    if (ddp_partition(run->ddp) == NULL)
        fail_msg("ddp_partition() returns NULL: every rank would update everything, and keep all optimizer state");
    optimizer_set_partition(&run->replica->optimizer, ddp_partition(run->ddp));
    return run;
}

void run_free(Run *run)
{
    ddp_destroy(run->ddp);
    replica_take_back(run->replica);
    dataset_close(&run->dataset);
    free(run->inputs);
    free(run->targets);
    free(run);
}

void run_micro_batch(Run *run, bool last)
{
    int64_t indices[SAMPLES] = {0, 1, 2, 3, 4, 5, 6, 7};
    dataset_get(&run->dataset, 0, indices, SAMPLES, run->inputs, run->targets);
    ddp_before_forward(run->ddp, last);
    Tensor *loss = replica_loss(run->replica, &run->dataset, run->inputs, run->targets, SAMPLES);
    ddp_before_backward(run->ddp, loss);
    run->in_backward = true;
    replica_backward(run->replica, loss);
    run->in_backward = false;
    ddp_after_backward(run->ddp, 1e-3f);
}

void run_update(Run *run, long step)
{
    replica_update(run->replica, step);
    ddp_after_update(run->ddp);
}

int run_bucket(const Run *run, const Parameter *parameter)
{
    const ParameterList *parameters = &run->replica->model.parameters;
    return parameters->items[parameters->count - 1]->layer - parameter->layer;
}

static float *whole(Run *run, int i, const float *slice)
{
    const Partition *partition = ddp_partition(run->ddp);
    const Tensor *tensor = &run->replica->model.parameters.items[i]->tensor;
    float *values = device_alloc((size_t)tensor_count(tensor) * sizeof *values);
    partition->gather(partition->owner, i, slice, values);
    return values;
}

float *run_whole_weight(Run *run, int parameter)
{
    return whole(run, parameter, ddp_partition(run->ddp)->slices[parameter].weight);
}

float *run_whole_gradient(Run *run, int parameter)
{
    return whole(run, parameter, ddp_partition(run->ddp)->slices[parameter].grad);
}

/* ---- events ---- */

static struct Between { /* between the tape and the stage */
    Run *run;
    TapeListener stage;
    void (*after_needed)(Run *run, Parameter *const *parameters, int count);
    void (*after_gradient)(Run *run, Parameter *parameter);
} between;

static void pass_needed(void *listener, Parameter *const *parameters, int count)
{
    between.stage.parameters_needed(between.stage.self, parameters, count);
    if (between.after_needed != NULL)
        between.after_needed(between.run, parameters, count);
}

static void pass_gradient_needed(void *listener, Parameter *parameter)
{
    between.stage.gradient_needed(between.stage.self, parameter);
    if (between.after_gradient != NULL)
        between.after_gradient(between.run, parameter);
}

void run_intercept(Run *run, void (*after_needed)(Run *run, Parameter *const *parameters, int count),
                   void (*after_gradient)(Run *run, Parameter *parameter))
{
    const TapeListener stage = run->replica->tape.listener;
    if (stage.parameters_needed == NULL || stage.gradient_needed == NULL || stage.gradient_ready == NULL)
        fail_msg("ddp_create() must listen to three events of the tape: parameters needed, gradient needed, gradient "
                 "ready");
    between = (struct Between){
        .run = run, .stage = stage, .after_needed = after_needed, .after_gradient = after_gradient};
    tape_listen(&run->replica->tape, (TapeListener){.self = stage.self, .gradient_ready = stage.gradient_ready,
                                                   .gradient_needed = pass_gradient_needed,
                                                   .parameters_needed = pass_needed});
}
