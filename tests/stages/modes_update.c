/* modes_update.c: the optimizer of a trial. See modes_trial.h. */
#include <stdlib.h>

#include "base/check.h"
#include "device/device.h"
#include "modes_trial.h"

static const float update = 0.02f; /* the learning rate */

static void add(float *weights, const float *gradients, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        weights[k] -= update * gradients[k];
}

/* Each element is not zero on one rank: its owner. */
static void add_up_over_ranks(Trial *trial)
{
    const ParameterList *parameters = &trial->whole.parameters;
    const int64_t count = parameters_total(parameters);
    float *all = alloc_or_fault((size_t)count * sizeof *all);
    parameters_to_host(parameters, all);
    pg_all_reduce(trial->pg, all, all, (size_t)count, DTYPE_F32, REDUCE_SUM, trial_weights);
    parameters_from_host(&trial->whole.parameters, all);
    free(all);
}

/* Whether another rank holds this rank's shards, too, and is the one that counts. */
static bool is_a_copy(const Trial *trial)
{
    const int ranks = trial->mode->sharding.shard_ranks;
    return ranks > 0 && pg_rank(trial->pg) >= ranks;
}

/* What the ranks have is what the single process goes on with: a rounded gradient's error does not grow. */
static void take_weights(Trial *trial)
{
    const Partition *partition = ddp_partition(trial->ddp);
    for (int i = 0; i < trial->whole.parameters.count; i++) {
        float *to = trial->whole.parameters.items[i]->tensor.data;
        if (i == trial->mode->frozen) {
            if (partition != NULL && pg_rank(trial->pg) > 0)
                device_zero(to, (size_t)tensor_count(trial_tensor(trial, i)) * sizeof(float));
            continue;
        }
        if (partition == NULL) {
            device_copy(to, trial_tensor(trial, i)->data, (size_t)tensor_count(trial_tensor(trial, i)) * sizeof(float));
            continue;
        }
        const Slice *slice = &partition->slices[i];
        device_zero(to, (size_t)tensor_count(trial_tensor(trial, i)) * sizeof(float));
        if (!is_a_copy(trial))
            device_copy(to + slice->begin, slice->weight, (size_t)slice->count * sizeof(float));
    }
    if (partition != NULL)
        add_up_over_ranks(trial);
}

void trial_end_step(Trial *trial)
{
    parameters_zero_gradients(&trial->ranks->parameters);
    ddp_after_update(trial->ddp);
}

void trial_update(Trial *trial)
{
    const Partition *partition = ddp_partition(trial->ddp);
    for (int i = 0; i < trial->ranks->parameters.count; i++) {
        if (i == trial->mode->frozen)
            continue;
        if (partition != NULL)
            add(partition->slices[i].weight, partition->slices[i].grad, partition->slices[i].count);
        else
            add(trial_tensor(trial, i)->data, trial_tensor(trial, i)->grad, tensor_count(trial_tensor(trial, i)));
    }
    parameters_changed(&trial->ranks->parameters);
    take_weights(trial);
    trial_end_step(trial);
}
